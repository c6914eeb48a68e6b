"""Batch jobs: a file is read in a process of its own, answered slice by slice, and its results kept for a while.

Files of a job are in ``jobs/JOB_ID/`` of the server's folder: ``records.parquet`` (rows in file order: ``row_id`` from
0, the record as written, what the whole file tells), ``results.parquet`` (the answers, highest risk first).
"""
