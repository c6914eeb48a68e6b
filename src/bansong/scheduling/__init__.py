"""Scheduled jobs: one file says what is enriched every night, and every run says what changed since the one before.

``job_file`` is the file, what can be wrong with it, and its deadline; ``inputs`` finds what it names,
``output_names`` says what is written where, ``input_enrichment`` verifies one
input, ``output_files`` makes folders and copies, ``recorder`` takes down the answers of a run,
:mod:`bansong.run.changes` compares them with the run before, ``run_store`` keeps both in SQLite, ``run_message``
tells them, ``job`` puts it together, and ``earlier_runs`` looks back.
"""
