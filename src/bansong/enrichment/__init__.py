"""One run over one table: columns chosen, rows answered by an engine, written, accounted for and published."""
