"""Learn a scorecard from returned letters, and test whether it should replace the one in use."""
