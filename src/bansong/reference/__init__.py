"""Build and fetch reference data: registries, gazetteers, statuses, and choices of addresses."""
