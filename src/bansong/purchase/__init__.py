"""Paid verification: choose lookups, send them within rate and quota, and match the answers to rows."""
