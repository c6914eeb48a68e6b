"""Addresses that exist nowhere here, that nobody can decide, or with too much wrong: silence is the right answer."""

from __future__ import annotations

from noise_parts import ELSEWHERE, SYLLABLES, Typed, as_lot, noise, pick_other, stem, syllables
from noise_truth import written

ROADS = [
    "달구벌대로",
    "남부순환로",
    "경인로",
    "도산대로",
    "동일로",
    "오금로",
    "거제대로",
    "도봉로",
    "통일로",
    "수영로",
    "성남대로",
    "백범로",
    "선릉로",
    "경원대로",
    "장제로",
    "천호대로",
    "월드컵로",
    "백제고분로",
    "길주로",
    "뚝섬로",
    "올림픽로",
    "독서당로",
    "아차산로",
    "목동서로",
    "위례광장로",
    "관악대로",
    "일주동로",
    "퇴계로",
    "마들로",
    "압구정로",
    "역삼로",
    "낙동대로",
    "좌동순환로",
    "방어진순환도로",
    "왕십리로",
    "답십리로",
    "봉은사로",
    "석촌호수로",
    "아시아드대로",
    "해운대로",
    "콩쥐팥쥐로",
    "제비원로",
    "진양호로",
    "돌곶이로",
    "오패산로",
    "덕릉로",
    "한글비석로",
    "여의대방로",
    "신반포로",
    "테헤란로",
    "강남대로",
    "효령로53길",
    "남부순환로347길",
    "도산대로8길",
    "언주로146길",
]
FIRMS = (
    "(주)한국전자",
    "대한상사",
    "미래정밀공업 주식회사",
    "우리세무회계사무소",
    "㈜나래통상",
    "행복식당",
    "현대부동산 본점",
    "삼일유통 2공장",
)


@noise("nowhere", "number")
def number_off_by_many(typed: Typed) -> bool:
    typed.number = (typed.truth.last[typed.road] + 2000 + typed.rng.randrange(3000), 0)
    return not meant_by_any(typed)


@noise("nowhere", "number")
def number_off_by_few(typed: Typed) -> bool:
    """A number that its road does not have, among others that it has."""
    typed.number = (max(1, typed.number[0] + typed.rng.choice((-4, -2, 2, 4))), 0)
    return not typed.truth.subs.get((typed.road, typed.number[0])) and not meant_by_any(typed)


@noise("nowhere", "number")
def number_of_neighbour(typed: Typed) -> bool:
    """A number that its road does not have, but a road does whose name is one edit away: which of the two is wrong?"""
    pool = typed.truth.near_roads(typed.road)
    if not pool:
        return False
    typed.number = typed.rng.choice(typed.rng.choice(pool)).number
    return not typed.truth.roads(typed.road, typed.number)


@noise("nowhere", "number", "form", "road", "emd")
def lot_of_neighbour(typed: Typed) -> bool:
    """A lot that its 리 does not have, but a 리 of the same 읍 or 면 does whose name is one edit away."""
    one = typed.building
    as_lot(typed)
    typed.road = typed.rng.choice(typed.truth.near_dongs(one.emd, one.dong) or [one.dong])
    return typed.road != one.dong and not typed.truth.lots(one.emd, typed.road, one.san, one.lot)


@noise("nearby", "number")
def sub_number_off(typed: Typed) -> bool:
    """A sub-number that does not exist behind a main number that does."""
    main = typed.number[0]
    typed.number = (main, max(typed.truth.subs[typed.road, main]) + typed.rng.randint(1, 9))
    return not meant_by_any(typed)


@noise("nowhere", "number", "form", "road", "emd")
def lot_off_by_many(typed: Typed) -> bool:
    as_lot(typed)
    typed.number = (typed.number[0] + 4000, typed.rng.randrange(3))
    typed.digits = written(typed.number)
    return True


@noise("nowhere", "region", "zip")
def other_province(typed: Typed) -> bool:
    """The road and number in a district that has none such here, without a postal code."""
    typed.sido, typed.zipcode = typed.rng.choice(ELSEWHERE)[0], None
    typed.area = typed.rng.choice((typed.area, ""))
    return True


@noise("nowhere", "region", "zip")
def other_province_zip(typed: Typed) -> bool:
    """The same with a postal code of that district."""
    typed.sido, typed.zipcode = typed.rng.choice(ELSEWHERE)
    typed.area = typed.rng.choice((typed.area, ""))
    return True


@noise("nowhere", "region", "zip")
def other_province_our_zip(typed: Typed) -> bool:
    """The same with the postal code of the building here: the region that was given is not crossed."""
    typed.sido, typed.zipcode = typed.rng.choice(ELSEWHERE)[0], typed.building.zipcode
    return True


@noise("nowhere", "region", "zip", "form", "road", "number", "emd")
def other_province_lot(typed: Typed) -> bool:
    as_lot(typed)
    typed.sido, code = typed.rng.choice(ELSEWHERE)
    typed.zipcode = typed.rng.choice((None, code))
    return True


@noise("nowhere", "road")
def road_nowhere(typed: Typed) -> bool:
    typed.road = typed.rng.choice(ROADS)
    return typed.truth.road_is_near_none(typed.road)


@noise("nowhere", "form", "road", "number", "emd", "region")
def company_name_only(typed: Typed) -> bool:
    typed.whole = typed.rng.choice(FIRMS)
    return True


@noise("nowhere", "number")
def masked(typed: Typed) -> bool:
    typed.digits = typed.rng.choice(("**", "***", f"{str(typed.number[0])[0]}**"))
    return True


@noise("nowhere", "form", "road", "number", "emd", "region")
def po_box(typed: Typed) -> bool:
    box = typed.rng.randint(1, 400)
    typed.whole = typed.rng.choice(
        (f"세종우체국 사서함 {box}호", f"조치원우체국사서함 {box}", f"세종특별자치시 조치원읍 사서함 {box}호")
    )
    return True


@noise("nowhere", "form", "road", "number", "emd", "region")
def english(typed: Typed) -> bool:
    """An English road address: recognised and kept, not corrected."""
    typed.whole = f"{written(typed.number)}, {romanised(typed.road)}, Sejong-si, Republic of Korea"
    return True


@noise("undecidable", "form", "road", "number", "emd")
def shared_lot(typed: Typed) -> bool:
    """A lot with several buildings that neither the name nor the postal code tells apart."""
    one = typed.building
    as_lot(typed)
    there = typed.truth.lots(one.emd, one.dong, one.san, one.lot)
    if typed.zipcode:
        there = [other for other in there if other.zipcode == one.zipcode]
    return len({other.official for other in there}) > 1


@noise("undecidable", "note", "detail", "form", "road", "emd")
def two_buildings(typed: Typed) -> bool:
    """Two road addresses of different 읍면동 in one cell: which one is meant?"""
    other = typed.rng.choice(typed.truth.buildings)
    typed.note = typed.rng.choice((" / {}", ", {}")).format(other.official)
    return other.emd != typed.building.emd


@noise("beyond", "road")
def road_two_wrong(typed: Typed) -> bool:
    """Two wrong syllables: another road may be nearer than the one that was meant."""
    places = syllables(typed.road, stem(typed.road))
    if len(places) < 2:
        return False
    letters = list(typed.road)
    for place in typed.rng.sample(places, 2):
        letters[place] = pick_other(typed.rng, SYLLABLES, letters[place])
    typed.road = "".join(letters)
    return not typed.truth.roads(typed.road, typed.number)


@noise("beyond", "road", "number")
def road_and_number_wrong(typed: Typed) -> bool:
    """A wrong syllable and a number that the road does not have."""
    places = syllables(typed.road, stem(typed.road))
    if not places or not number_off_by_few(typed):
        return False
    place = typed.rng.choice(places)
    typed.road = typed.road[:place] + pick_other(typed.rng, SYLLABLES, typed.road[place]) + typed.road[place + 1 :]
    return not typed.truth.roads(typed.road, typed.number)


def meant_by_any(typed: Typed) -> bool:
    return bool(typed.truth.roads(typed.road, typed.number) or typed.truth.roads_near(typed.road, typed.number))


INITIALS = "g kk n d tt r m b pp s ss - j jj ch k t p h".replace("-", "").split(" ")
VOWELS = "a ae ya yae eo e yeo ye o wa wae oe yo u wo we wi yu eu ui i".split()  # noqa: SIM905
FINALS = " g kk gs n nj nh d l lg lm lb ls lt lp lh m b bs s ss ng j ch k t p h".split(" ")  # noqa: SIM905


def romanised(text: str) -> str:
    """Letter by letter, good enough for an address that must not be answered."""
    letters = []
    for letter in text:
        place = ord(letter) - 0xAC00
        known = 0 <= place < 11172
        letters.append(INITIALS[place // 588] + VOWELS[place % 588 // 28] + FINALS[place % 28] if known else letter)
    return "".join(letters)
