"""Scheduled jobs: one file says what is enriched, and every run says what changed."""
