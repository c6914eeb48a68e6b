"""What all floors stand on: errors, messages, options, files, the number."""
