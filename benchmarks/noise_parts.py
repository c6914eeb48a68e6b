"""What the noise classes share: the parts of an address on its way to being typed, the register, the draw of a sample.

A noise takes a :class:`Typed`, changes its parts in place by the dice it holds and says whether it could.
:func:`sample` makes one address of one or several noises. Where noise turns an address into another real one (a wrong
syllable that is another road with that number) the draw is made again; where the address still fits several buildings,
the meant one among them, it stays and is marked ``doubtful``: nobody could decide it, silence is right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from noise_truth import Building, Number, Truth, chosen, written


@dataclass
class Typed:
    """An address on its way to being typed: its parts, and what was done to them."""

    rng: random.Random
    truth: Truth
    building: Building
    sido: str
    area: str
    road: str
    number: Number
    zipcode: str | None
    lot: bool = False
    digits: str = ""
    glue: str = " "
    detail: str = ""
    note: str = ""
    lead: str = ""
    whole: str = ""
    separator: str = " "
    kept: list[str] = field(default_factory=list)
    finish: list[Callable[[str], str]] = field(default_factory=list)
    """What is done to the finished text: spacing, width, normal form."""

    def text(self) -> str:
        street = self.road + self.glue + (self.digits or written(self.number))
        words = filter(None, (self.sido, self.building.sigungu if self.sido else "", self.area, street))
        text = self.whole or self.lead + self.separator.join(words) + self.detail + self.note
        for change in self.finish:
            text = change(text)
        return text


Noise = Callable[[Typed], bool]


@dataclass(frozen=True, slots=True)
class Kind:
    """One noise class: its group decides the goal, its slots which others it can be combined with."""

    name: str
    group: str
    slots: frozenset[str]
    apply: Noise


@dataclass(frozen=True, slots=True)
class Sample:
    """A typed address, the building that was meant, the words that must survive, whether it can be decided at all."""

    noises: tuple[str, ...]
    address: str
    zipcode: str | None
    building: Building
    kept: tuple[str, ...]
    doubtful: bool


SYLLABLES = (
    "가강경고광구금기남내대덕도동두마매명문미바방배백벌보봉부북사산삼상새서석선성세소송수신안양여연영오용우원월유은이인장전정조주중지진"
    "창천청초탄태평하한해현호홍화황흥"
)
ELSEWHERE = (
    ("경상남도 창원시 마산회원구", "51311"),
    ("전라남도 나주시", "58238"),
    ("울산광역시 중구", "44529"),
    ("경기도 양평군", "12551"),
    ("서울특별시 동대문구", "02637"),
    ("전라남도 해남군", "59041"),
    ("경기도 남양주시", "12147"),
    ("강원특별자치도 평창군", "25376"),
    ("서울특별시 도봉구", "01330"),
    ("경상남도 함안군", "52011"),
    ("인천광역시 계양구", "21034"),
    ("충청남도 예산군", "32403"),
    ("충청북도 제천시", "27169"),
    ("부산광역시 금정구", "46283"),
    ("전북특별자치도 군산시", "54039"),
    ("충청남도 부여군", "33145"),
    ("경기도 용인시 수지구", "16873"),
    ("전북특별자치도 전주시 완산구", "55122"),
    ("서울특별시 종로구", "03165"),
    ("경기도 과천시", "13837"),
    ("대전광역시 중구", "34893"),
    ("충청남도 천안시 동남구", "31125"),
    ("충청북도 청주시 흥덕구", "28427"),
    ("경상북도 영천시", "38839"),
    ("제주특별자치도 제주시", "63019"),
    ("서울 종로구", "03165"),
    ("경기 용인시 수지구", "16873"),
    ("충남 부여군", "33145"),
)

KINDS: dict[str, Kind] = {}


def noise(group: str, *slots: str) -> Callable[[Noise], Noise]:
    def register(function: Noise) -> Noise:
        name = function.__name__
        KINDS[name] = Kind(name, group, frozenset(slots), function)
        return function

    return register


def sample(names: tuple[str, ...], building: Building, rng: random.Random, truth: Truth) -> Sample | None:
    """One address with these noises, or None where they do not apply or only another real address comes out."""
    kinds = [KINDS[name] for name in sorted(names, key=list(KINDS).index)]
    for _ in range(4):
        zipcode = building.zipcode if rng.random() < 0.5 else None
        typed = Typed(rng, truth, building, building.sido, building.area, building.road, building.number, zipcode)
        if not all(kind.apply(typed) for kind in kinds):
            continue
        nowhere = any(kind.group in ("nowhere", "undecidable", "beyond") for kind in kinds)
        fits = meant(typed)
        if not nowhere and fits and building.official not in fits:
            continue
        doubtful = nowhere or len(fits) > 1 or other_reading(typed)
        return Sample(names, typed.text(), typed.zipcode, building, tuple(typed.kept), doubtful)
    return None


def other_reading(typed: Typed) -> bool:
    """Whether the road as typed is real but has no such number: is it the road or the number that is wrong?"""
    return not typed.lot and typed.road in typed.truth.names and not typed.truth.roads(typed.road, typed.number)


def meant(typed: Typed) -> set[str]:
    """Official addresses that the typed one can mean, nearest first: the very words, else one edit away."""
    truth = typed.truth
    if typed.lot:
        dong = typed.road
        exact = truth.lots(typed.area, dong, typed.building.san, typed.number)
        near = truth.lots_near(typed.building.emd, dong, typed.building.san, typed.number)
        return chosen(exact or near, typed.area, typed.zipcode)
    exact = truth.roads(typed.road, typed.number)
    return chosen(exact or truth.roads_near(typed.road, typed.number), typed.area, typed.zipcode)


def as_lot(typed: Typed) -> None:
    one = typed.building
    typed.lot, typed.road, typed.number = True, one.dong, one.lot
    typed.area = one.emd if one.ri else ""
    typed.digits = ("산 " if one.san else "") + written(one.lot)


def alone(typed: Typed) -> bool:
    one = typed.building
    return one.lot[0] > 0 and len(typed.truth.lots(one.emd, one.dong, one.san, one.lot)) == 1


def pick_other(rng: random.Random, pool: str, not_this: str) -> str:
    return rng.choice([letter for letter in pool if letter != not_this])


def jamo_off(syllable: str, rng: random.Random) -> str:
    """The syllable with one of its two or three jamo replaced, a final put in or left out among them."""
    place = ord(syllable) - 0xAC00
    parts = [place // 588, place % 588 // 28, place % 28]
    which = rng.randrange(3)
    parts[which] = rng.choice([n for n in range((19, 21, 28)[which]) if n != parts[which]])
    return chr(0xAC00 + parts[0] * 588 + parts[1] * 28 + parts[2])


def stem(road: str) -> int:
    """How many characters come before the 대로, 로 or 길 at the end."""
    return len(road) - (2 if road.endswith("대로") else 1)


def syllables(word: str, end: int) -> list[int]:
    return [place for place, letter in enumerate(word[:end]) if "가" <= letter <= "힣"]
