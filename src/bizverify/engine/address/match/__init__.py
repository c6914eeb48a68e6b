"""Which building is meant: ``match`` reads an address in one way after another, the surest first.

``roads`` and ``lots`` propose candidates, ``judge`` decides, ``official`` tells the answer; ``lookups`` (the gazetteer,
searchable), ``scope`` (which regions the words allow), ``typos`` and ``index`` serve them.
"""

from bizverify.engine.address.match.format import told
from bizverify.engine.address.match.lookups import lookups_of
from bizverify.engine.address.match.match import LEVELS, Matcher

__all__ = ["LEVELS", "Matcher", "lookups_of", "told"]
