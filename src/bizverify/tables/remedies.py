"""Which options a message may name: not every caller offers them, and one offers them under other names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

OPTIONS: Final = {"sheet": "sheet", "encoding": "encoding", "json_path": "json_path"}
"""The options of reading, and what they are called by the caller."""
FILE_OPTIONS: Final = {option: f"file_{option}" for option in OPTIONS}
"""Their names where two files are read, and this is the enriched one."""
ONLY_ENCODING: Final = {"encoding": "encoding"}

_NAMED: Final = re.compile("`(sheet|encoding|json_path)=")
"""An option as :func:`bizverify.errors.parameter` writes it."""
_INSTEAD: Final = {
    re.compile(r"choose with `json_path=[^`]*`"): "keep one of them in the file",
    re.compile(r"name its encoding with `encoding=`"): "save it as UTF-8",
    re.compile(r"in an encoding that `encoding=` has to name"): "not in UTF-8",
    re.compile(r"`sheet=` chooses another"): "the one that is meant must be the first",
    re.compile(r"choose another with `sheet=`"): "put a table first",
}


def reword_options(message: str, options: Mapping[str, str]) -> str:
    """A message of a reader with the options that its caller has; another remedy for those that it does not have."""
    for remedy, instead in _INSTEAD.items():
        found = remedy.search(message)
        if found and any(option[1] not in options for option in _NAMED.finditer(found[0])):
            message = remedy.sub(instead, message)
    return _NAMED.sub(lambda option: f"`{options.get(option[1], option[1])}=", message)
