"""Paid verification: choose lookups, send them within rate and quota, and match the answers to rows.

- ``paid_engines``: the engines that buy; ``purchase_run``: one run of them; ``selection``: which lookups are bought;
- ``purchase_context``: what a run's requests share, and when a service is not asked any more;
- ``single_lookups`` (``POST /verify``, and repeated requests), ``batch_upload`` (``POST /batch``), ``batch_jobs`` (its
  results);
- ``result_matching``: which result belongs to which row; ``answer_join``: the answers beside the rows.
"""
