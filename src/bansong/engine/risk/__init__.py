"""Bounce probability, grade, action and reasons of a row."""
