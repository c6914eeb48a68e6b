"""Erase business numbers, and check an installation."""
