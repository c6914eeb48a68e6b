"""Finds English in what is said in Korean."""

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
_WORDS = re.compile(r"(?<![\w가-힣-])[A-Za-z']{2,} [a-z']{2,}(?![\w가-힣-])")

_COMMAND = re.compile(r"\bbansong [a-z-]+(?: [a-z-]+)?|pip install")


def english_sentences(text: str) -> list[str]:
    """Three English words and more, one after the other, that are no path, option, value or name."""
    return _SENTENCE.findall(_NO_SENTENCE.sub("…", text))


def english_words(text: str) -> list[str]:
    """Two English words, one after the other, that are no command and none of the above."""
    return _WORDS.findall(_COMMAND.sub("…", _NO_SENTENCE.sub("…", text)))
