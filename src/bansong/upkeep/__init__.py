"""Erasure, and checks of an installation."""
