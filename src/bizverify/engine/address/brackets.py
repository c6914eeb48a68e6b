"""Which brackets are a reference beside the address, and which are part of the words they stand in.

``(서창리, 세종빌딩)`` is a reference: it is taken out. ``(주)대한상사``, ``쌍용(아)단지내상가`` and ``(3층)`` are part of
what is written after the number: their brackets become private characters until `restored` turns them back.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from bizverify.engine.address.text import DONG, compact, where, with_groups

_OPEN, _CLOSE, _UNIT_OPEN, _UNIT_CLOSE, _DONG_OPEN, _DONG_CLOSE = (chr(0xE000 + place) for place in range(6))
_HIDDEN: Final = f"[{_OPEN}-{_UNIT_CLOSE}]"
_COMPANY: Final = "(?:주|유|사|재|합)"
_MARK: Final = rf"\(({_COMPANY})\)"
_LETTER: Final = rf"([0-9].*?)\(([가-힣])\)"
_UNIT: Final = (
    r"\(((?:(?:지하|지상|반지하|옥상|제|[BbFf]) ?)?[0-9A-Za-z]{1,5}(?: ?[-~,.·/] ?[0-9]+)* ?(?:층|호|동(?:[ ,)0-9])|통 ?[0-9])"
)
"""placeholder"""
