"""Golden files of texts and what a reader makes of each; ⏎ ␍ ␀ ⇥ stand for characters that no line can hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bansong.errors import BansongError
from conftest import ROOT

SIGNS = {"⏎": "\n", "␍": "\r", "␀": "\0", "⇥": "\t"}
FIELDS = ("where", "line", "column", "start", "number", "key", "fields", "found", "character", "said", "error")


def answer_of(read: Callable[..., Any], given: list[str]) -> str:
    """The rows, as JSON, or the code of an error (without one, its sentence) and the fields that say where it is."""
    for sign, meant in SIGNS.items():
        given = [text.replace(sign, meant) for text in given]
    try:
        return json.dumps(read(*given), ensure_ascii=False)
    except BansongError as error:
        what = error.code or str(error).split(": ", 1)[1]
        return " ".join(["!", what, *(str(error.fields[name]) for name in FIELDS if name in error.fields)])


def differing(name: str, read: Callable[..., Any]) -> dict[str, str]:
    """The lines of a golden file whose texts ``read`` does not read, or refuse, as they say."""
    found: dict[str, str] = {}
    for line in (ROOT / "tests/golden" / name).read_text(encoding="utf-8").splitlines()[1:]:
        *given, wanted = line.split("\t")
        answer = answer_of(read, given)
        refused = wanted.startswith("!") and all(part in answer for part in wanted.split(" … "))
        if not refused and answer != wanted:
            found[line] = answer
    return found
