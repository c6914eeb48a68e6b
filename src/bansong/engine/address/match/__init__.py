"""The building that an address means, looked up in the gazetteer."""

from bansong.engine.address.match.building_codes import building_code
from bansong.engine.address.match.format import format_match
from bansong.engine.address.match.matcher import LEVELS, match_addresses
from bansong.engine.address.match.open_lookups import lookups_of
from bansong.engine.address.match.suggest import SUGGESTED, suggest_places

__all__ = ["LEVELS", "SUGGESTED", "building_code", "format_match", "lookups_of", "match_addresses", "suggest_places"]
