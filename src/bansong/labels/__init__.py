"""Outcomes of mailings: read, matched to mailed rows, recorded, written and sent."""
