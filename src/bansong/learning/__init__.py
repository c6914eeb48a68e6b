"""Learn the scorecard from returned letters; a gate decides on its promotion."""
