"""Record the outcomes of letters, and send them to the service."""
