"""The base of all other packages: errors, messages, options, files and the business number."""
