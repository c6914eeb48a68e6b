"""Scheduled jobs: one file says what is enriched every night, and every run says what changed since the one before.

``job_file`` is the file, ``job_file_errors`` says what is wrong with it, ``job_file_fields`` names its fields in other
messages, ``inputs`` finds what it names, ``output_names`` says what is written where, ``input_enrichment`` verifies one
input, ``output_files`` makes folders and copies, ``recorder`` takes down the answers of a run,
:mod:`bansong.run.changes` compares them with the run before, ``run_store`` keeps both in SQLite, ``run_message``
tells them, ``deadline`` ends a run in time, ``job`` puts it together, and ``earlier_runs`` looks back.
"""
