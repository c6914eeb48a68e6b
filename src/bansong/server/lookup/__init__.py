"""Single lookups: many answered by one query of the engine, each paid from its key's quota.

``microbatch`` collects lookups and answers them together, ``prepared_query`` is the engine's query made once,
``quota`` takes lookups from the quota and gives them back.
"""
