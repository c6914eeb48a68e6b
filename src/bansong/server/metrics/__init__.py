"""What a monitor is told of a server, as Prometheus reads it: counted on the way, or read from the parts when asked.

``counts`` holds what is counted while the server works, ``gauges`` reads the state of its parts when a monitor asks,
``listener`` answers ``GET /metrics`` on an address of its own.
"""
