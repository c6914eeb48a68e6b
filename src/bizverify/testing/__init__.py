"""Fakes for tests of your own: the hosted service as a plain ASGI app, with faults at will."""
