"""The additive risk model: features of a row, and the scorecard that weighs them."""
