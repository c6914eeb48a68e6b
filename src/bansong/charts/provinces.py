"""Map tiles of the provinces, and their short names."""

from __future__ import annotations

from typing import Final, NamedTuple

from bansong.schema import Lang


class Tile(NamedTuple):
    """The tile of a province: its column and row from the north-west, its short names."""

    column: int
    row: int
    en: str
    ko: str

    def name(self, lang: Lang) -> str:
        """Return the short name in a language."""
        return self.ko if lang == "ko" else self.en


TILES: Final = {
    "incheon": Tile(0, 0, "Incheon", "인천"),
    "seoul": Tile(1, 0, "Seoul", "서울"),
    "gyeonggi": Tile(2, 0, "Gyeonggi", "경기"),
    "gangwon": Tile(3, 0, "Gangwon", "강원"),
    "chungnam": Tile(0, 1, "Chungnam", "충남"),
    "sejong": Tile(1, 1, "Sejong", "세종"),
    "chungbuk": Tile(2, 1, "Chungbuk", "충북"),
    "gyeongbuk": Tile(3, 1, "Gyeongbuk", "경북"),
    "jeonbuk": Tile(0, 2, "Jeonbuk", "전북"),
    "daejeon": Tile(1, 2, "Daejeon", "대전"),
    "daegu": Tile(2, 2, "Daegu", "대구"),
    "ulsan": Tile(3, 2, "Ulsan", "울산"),
    "jeonnam_gwangju": Tile(0, 3, "Jeonnam·Gwangju", "전남·광주"),
    "gyeongnam": Tile(2, 3, "Gyeongnam", "경남"),
    "busan": Tile(3, 3, "Busan", "부산"),
    "jeju": Tile(0, 4, "Jeju", "제주"),
}
"""Tile of each level of the feature ``region``."""
