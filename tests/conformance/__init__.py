"""What INTERFACE.md promises, asked of a service from outside. It shares nothing with the client or the server."""
