"""The queue of notifications."""
