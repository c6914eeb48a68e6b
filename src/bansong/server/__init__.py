"""The service of one's own: the whole interface over HTTP, answered by the embedded engine. Needs the extra `server`.

``app`` makes the ASGI app and runs uvicorn; ``routes`` is the table of path, method, handler and documentation;
``handlers`` answer, with the models of ``payloads`` and the refusals of ``errors``. ``auth`` checks keys, ``settings``
has the options, the plans, the clock, the log and the request's id and language, ``http_limits``,
``bounded_connection``, ``key_bounds`` and ``upload_form`` bound what is received,
``idempotency`` answers repeated requests.
``engine_pool`` has the engine of each key, ``reference_files`` its files and the sources of statuses, ``learning`` what
outcomes teach (``pool_agreement`` what keys learn from each other, ``letters`` what a scope knows of both,
``former_pool`` what earlier releases left). ``lookup/`` answers single lookups, ``jobs/`` files, ``watch/`` checks and
notifies, ``status/`` asks the tax authority, ``store/`` is the one SQLite file. ``metrics/`` tells a
monitor of them.
"""
