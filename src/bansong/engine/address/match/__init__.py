"""The building that an address means, looked up in the gazetteer.

- ``matcher``: reads an address in one way after another, the surest first
- ``candidates``: the proposals of each way
- ``decide``: the choice of a candidate, and whether other words of the row confirm a repair
- ``ambiguity``: doubts about the choice
- ``format``: the official address and the changes
- ``suggest``: possible places, for a person to choose from
- ``building_codes``: the official numbers of buildings
- ``gazetteer_lookups``: the gazetteer, searchable by name, number and region; ``open_lookups`` opens it
"""

from bansong.engine.address.match.building_codes import building_code
from bansong.engine.address.match.format import format_match
from bansong.engine.address.match.matcher import LEVELS, match_addresses
from bansong.engine.address.match.open_lookups import lookups_of
from bansong.engine.address.match.suggest import SUGGESTED, suggest_places

__all__ = ["LEVELS", "SUGGESTED", "building_code", "format_match", "lookups_of", "match_addresses", "suggest_places"]
