"""The scorecards of a user: those that were learned, and which one answers."""
