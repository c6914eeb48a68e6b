"""How far a run is: a bar on a terminal, one in a notebook, lines of text elsewhere."""
