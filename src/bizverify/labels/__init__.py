"""What became of the letters: outcomes read, matched to what was mailed, remembered, and joined back."""
