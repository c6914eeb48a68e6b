"""What users call: files enriched, frames and single businesses verified."""
