"""The official address and postal code of an address as people type it."""
