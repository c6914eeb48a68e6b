"""Progress of a run: a bar on a terminal, one in a notebook, lines of text elsewhere."""
