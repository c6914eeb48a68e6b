"""JSON and NDJSON."""
