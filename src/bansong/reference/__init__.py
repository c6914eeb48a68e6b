"""Registries, gazetteers, statuses and choices, built and fetched."""
