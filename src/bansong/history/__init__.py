"""The label store and the learned scorecards."""
