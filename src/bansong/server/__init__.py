"""The service of one's own, over HTTP. Needs the extra `server`."""
