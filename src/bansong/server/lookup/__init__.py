"""Single lookups: many answered by one query of the engine, each paid from its key's quota.

``microbatch`` collects lookups and answers them together by a query of the engine that is made once,
``quota`` takes lookups from the quota and gives them back.
"""
