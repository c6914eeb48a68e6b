"""Batch jobs: read in an isolated process, answered slice by slice, results kept for a while.

A job has the folder ``jobs/JOB_ID/`` with ``records.parquet`` (rows in file order: ``row_id`` from 0, the record, and
features of the whole file) and ``results.parquet`` (answers, highest risk first).
"""
