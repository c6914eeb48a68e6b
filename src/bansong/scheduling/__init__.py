"""Scheduled jobs: a job file names what is enriched every night; each run reports what changed since the last."""
