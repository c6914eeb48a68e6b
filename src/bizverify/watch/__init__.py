"""The watch list: businesses that may close, kept at the service or in a local file, and checked again and again."""
