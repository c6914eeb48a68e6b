"""Scheduled jobs: a file describes the job, and every run reports changes."""
