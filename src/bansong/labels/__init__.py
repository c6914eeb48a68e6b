"""Record what came back, and send it to the service."""
