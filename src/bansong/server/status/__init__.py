"""Statuses from the tax authority: stored, cached, within one daily budget."""
