"""One module a group of paths: read the request, do it, answer. The paths themselves are in ``server/app.py``."""
