"""Batch jobs: a file is read in an isolated process, answered slice by slice, and its results kept for a while.

``accept`` receives and queues a job, ``disk_use`` counts its bytes, ``reading_slots`` says when its file is read and
``isolated_reader`` reads it, ``worker`` answers it, ``results`` has its files: ``jobs/JOB_ID/`` of the server's folder
holds ``records.parquet`` (rows in file order: ``row_id`` from 0, the record as written, what the whole file tells) and
``results.parquet`` (the answers, highest risk first).
"""
