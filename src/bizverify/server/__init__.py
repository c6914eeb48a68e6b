"""The service of one's own: the whole interface over HTTP, answered by the embedded engine. Needs the extra `server`.

From outside in: ``process`` runs uvicorn, ``app`` wires routes and background work, ``endpoints/`` answer the paths,
``store/`` is the one SQLite file. What clients send and get is in ``wire``; who may do what in ``auth`` and ``plans``.
"""
