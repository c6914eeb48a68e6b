"""The local engine: registry, addresses, risk."""
