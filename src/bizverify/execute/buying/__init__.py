"""Spending: paced, braked, and written into the ledger step by step."""
