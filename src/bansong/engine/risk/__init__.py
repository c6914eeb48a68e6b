"""The additive risk model: features of a row, and the scorecard that weighs them.

- ``features``: the levels of each feature, as expressions (a new feature: here, then in ``scorecard.toml``)
- ``scorecard``: the file of points, texts, grades and actions, and what can be wrong with it
- ``assess``: score, probability, grade, action and reasons of a batch, by pattern of levels, with texts and points
  made beforehand
- ``reason_texts``: the texts of reasons; ``reason_parser``: levels and score read back from them
"""
