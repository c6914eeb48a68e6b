"""Finds English sentences in what is said in Korean."""

from __future__ import annotations

import re

_NO_SENTENCE = re.compile(
    r"`[^`]*`"  # parameters and commands
    r"|'[^'\n]*'|\"[^\"\n]*\""  # values of a file
    r"|https?://\S+|(?:\.{0,2}/)?[\w.-]+(?:/[\w.-]+)+"  # addresses and paths
    r"|--[a-z][a-z-]*(?:[ =]\S+)?"  # options
    r"|\S*[_.#=@]\S*"  # names of columns, files and parts
)
_SENTENCE = re.compile(r"[A-Za-z']{2,}[,;:]? [a-z']{2,}[,;:]? [a-z']{2,}")


def english_sentences(text: str) -> list[str]:
    """Three English words and more, one after the other, that are no path, option, value or name."""
    return _SENTENCE.findall(_NO_SENTENCE.sub("…", text))
