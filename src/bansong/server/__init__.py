"""The self-hosted service: all of INTERFACE.md over HTTP, answered by the embedded engine (extra `server`)."""
