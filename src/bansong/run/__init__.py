"""Parts of a run over the user's rows: records, lookups, plan, columns of the output, accounting, alerts."""
