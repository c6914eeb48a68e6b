"""Something is wrong or left out: a character, a 읍 or 면, the postal code. The truth can nearly always be found."""

from __future__ import annotations

from noise_parts import ELSEWHERE, SYLLABLES, Typed, alone, as_lot, jamo_off, noise, pick_other, stem, syllables
from noise_truth import compact


@noise("open", "region", "emd")
def region_missing(typed: Typed) -> bool:
    """Only road and number: another province might have them too, so silence is no fault."""
    typed.sido = typed.area = ""
    return True


@noise("open", "region")
def region_typo(typed: Typed) -> bool:
    word = typed.rng.choice(("세종특별자치시", "세종시"))
    place = typed.rng.randrange(len(word) - 1)
    wrong = (
        jamo_off(word[place], typed.rng)
        if typed.rng.random() < 0.5
        else typed.rng.choice(("", pick_other(typed.rng, SYLLABLES, word[place])))
    )
    typed.sido = word[:place] + wrong + word[place + 1 :]
    return True


@noise("open", "emd")
def emd_wrong(typed: Typed) -> bool:
    """Another real 읍 or 면 before a road that the 시 has once only."""
    had = typed.area
    typed.area = typed.rng.choice([emd for emd in typed.truth.emds if emd.endswith(("읍", "면")) and emd != had])
    return bool(had) and not typed.lot


@noise("open", "emd")
def emd_typo(typed: Typed) -> bool:
    if not typed.area:
        return False
    place = typed.rng.randrange(len(typed.area) - 1)
    wrong = (
        jamo_off(typed.area[place], typed.rng)
        if typed.rng.random() < 0.5
        else pick_other(typed.rng, SYLLABLES, typed.area[place])
    )
    typed.area = typed.area[:place] + wrong + typed.area[place + 1 :]
    return typed.area not in typed.truth.emds


@noise("open", "form", "road", "number", "emd")
def admin_dong(typed: Typed) -> bool:
    """The administrative 동 instead of the legal one, where that is not another building's legal one."""
    one = typed.building
    as_lot(typed)
    typed.area, typed.road = "", one.admin
    fits = not one.ri and one.admin not in ("", one.emd) and alone(typed)
    return fits and not typed.truth.lots("", one.admin, one.san, one.lot)


@noise("open", "form", "road", "number", "emd")
def ri_missing(typed: Typed) -> bool:
    """A lot of a 읍 or 면 without its 리, where one 리 only has a building on such a lot."""
    one = typed.building
    as_lot(typed)
    typed.area, typed.road = "", one.emd
    there = typed.truth.lots_of_emd[one.emd, one.san, one.lot]
    return bool(one.ri) and one.lot[0] > 0 and len(there) == 1


@noise("open", "form", "road", "number", "emd")
def numbered_ri(typed: Typed) -> bool:
    """A 리 as its villagers count it: 신흥2리 for 신흥리."""
    as_lot(typed)
    typed.road = f"{typed.building.ri[:-1]}{typed.rng.randint(1, 4)}리"
    return alone(typed) and bool(typed.building.ri) and typed.road not in typed.truth.dongs


@noise("open", "form", "road", "number", "emd")
def lot_typo(typed: Typed) -> bool:
    """One wrong syllable in the name of the 리 or 동 of a lot address."""
    as_lot(typed)
    place = typed.rng.randrange(len(typed.road) - 1)
    wrong = (
        jamo_off(typed.road[place], typed.rng)
        if typed.rng.random() < 0.5
        else pick_other(typed.rng, SYLLABLES, typed.road[place])
    )
    typed.road = typed.road[:place] + wrong + typed.road[place + 1 :]
    return alone(typed) and typed.road not in typed.truth.dongs


@noise("open", "form", "road", "number", "emd", "detail", "note")
def building_name_only(typed: Typed) -> bool:
    one = typed.building
    typed.whole = f"{one.sido} {one.emd} {one.name}"
    return len(compact(one.name)) > 3 and len(typed.truth.by_name[one.emd, compact(one.name)]) == 1


@noise("character", "road")
def road_syllable_wrong(typed: Typed) -> bool:
    if not (places := syllables(typed.road, stem(typed.road))):
        return False
    place = typed.rng.choice(places)
    typed.road = typed.road[:place] + pick_other(typed.rng, SYLLABLES, typed.road[place]) + typed.road[place + 1 :]
    return True


@noise("character", "road")
def road_jamo_wrong(typed: Typed) -> bool:
    if not (places := syllables(typed.road, stem(typed.road))):
        return False
    place = typed.rng.choice(places)
    typed.road = typed.road[:place] + jamo_off(typed.road[place], typed.rng) + typed.road[place + 1 :]
    return True


@noise("character", "road")
def road_syllable_missing(typed: Typed) -> bool:
    places = syllables(typed.road, stem(typed.road))
    if len(places) < 2:
        return False
    place = typed.rng.choice(places)
    typed.road = typed.road[:place] + typed.road[place + 1 :]
    return True


@noise("character", "road")
def road_syllable_extra(typed: Typed) -> bool:
    place = typed.rng.randint(1, stem(typed.road))
    typed.road = typed.road[:place] + typed.rng.choice(SYLLABLES) + typed.road[place:]
    return True


@noise("open", "road", "number", "space")
def suffix_missing(typed: Typed) -> bool:
    """서초중앙 160 for 서초중앙로 160, where that is not a lot of 서초중앙리."""
    typed.road = typed.road[: stem(typed.road)]
    lot = any(typed.truth.lots("", typed.road, san, typed.number) for san in (False, True))
    return len(typed.road) > 1 and not lot


@noise("open", "road")
def suffix_wrong(typed: Typed) -> bool:
    typed.road = typed.road[:-1] + ("길" if typed.road.endswith("로") else "로")
    return True


@noise("open", "road")
def road_digit_wrong(typed: Typed) -> bool:
    """Another digit inside the road's name, where no such road has the number."""
    if not (places := [place for place, letter in enumerate(typed.road) if letter.isdigit()]):
        return False
    place = typed.rng.choice(places)
    typed.road = typed.road[:place] + pick_other(typed.rng, "123456789", typed.road[place]) + typed.road[place + 1 :]
    return True


@noise("postal", "zip")
def zip_missing(typed: Typed) -> bool:
    typed.zipcode = None
    return True


@noise("postal", "zip")
def zip_wrong_near(typed: Typed) -> bool:
    """Another code of the same 읍면동, or the next code of the province."""
    right = typed.building.zipcode
    place = typed.truth.zipcodes.index(right)
    next_ones = typed.truth.zipcodes[max(0, place - 1) : place + 2]
    pool = typed.truth.zips_of_emd[typed.building.emd] if typed.rng.random() < 0.5 else next_ones
    others = [code for code in pool if code != right] or [code for code in next_ones if code != right]
    typed.zipcode = typed.rng.choice(others)
    return True


@noise("postal", "zip")
def zip_wrong_far(typed: Typed) -> bool:
    typed.zipcode = typed.rng.choice(ELSEWHERE)[1]
    return True


@noise("postal", "zip")
def zip_swapped_digits(typed: Typed) -> bool:
    code = typed.building.zipcode
    place = typed.rng.choice([place for place in range(4) if code[place] != code[place + 1]])
    typed.zipcode = code[:place] + code[place + 1] + code[place] + code[place + 2 :]
    return True
