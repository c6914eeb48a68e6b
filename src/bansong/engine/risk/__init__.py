"""The additive risk model: features of a row, and the scorecard that weighs them.

- ``features``: the levels of each feature, as expressions (a new feature: here, then in ``scorecard.toml``)
- ``scorecard``: the file of points, texts, grades and actions, and its checks
- ``assess``: score, probability, grade, action and reasons of a batch, by pattern of levels
- ``reason_texts``: the texts of reasons; ``reason_parser``: levels and score read back from them
"""
