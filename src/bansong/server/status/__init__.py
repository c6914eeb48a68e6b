"""Statuses that the server asks the tax authority for: stored, remembered, within one budget a day.

- ``nts_statuses``: :class:`NtsStatuses`, the source of single lookups, jobs and the watch list
- ``single_statuses``: the statuses of single lookups, which share calls and wait for none for long
- ``circuit_breaker``: after failures nobody is asked for a while
"""
