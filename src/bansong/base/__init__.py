"""Errors, messages, options, files and the business number, for all other floors."""
