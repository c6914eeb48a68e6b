"""The self-hosted HTTP service, with the interface of the hosted one. Needs the extra `server`."""
