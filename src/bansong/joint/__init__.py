"""One run over several inputs: each table read, all answered together, each output written, accounted for, published.

1. ``survey``: every table is opened once, its columns are chosen, and its records kept (``kept_records``). What cannot
   be read, or written where it is to be (``output_places``), is found here, before anything is bought.
2. ``joint_run``: statuses, cross-row features and bought answers are found out once, for the records of all tables;
   then each file is opened again, answered from that, and published by itself; then one list for the mail house.
3. ``report``: one report over all, with the accounts of each table.
"""
