"""Outcomes of mailings: read, matched to mailed rows, recorded, written and sent.

- ``labelling``: :func:`bansong.label`, which does all of it
- ``outcomes``, ``mailing``: the two inputs, a table of outcomes and the enriched file that was mailed
- ``enrichments``: which run wrote such a file, by its manifest
- ``mailing_terms``: what the user says of a mailing (day, returns requested, complete, sent)
- ``matching``: which outcome is of which mailed row
- ``label_store``: the label store, one Parquet file a mailing; ``history``: what a run takes from it
- ``output_columns``: the three label columns in the enriched file
- ``label_sender``, ``outbox``: labels for the service: which of them, and how they are sent
- ``report``: what labelling did
"""
