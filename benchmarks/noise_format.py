"""Format noise: spacing, abbreviation, brackets, lot form, detail. The address says as much, written otherwise."""

from __future__ import annotations

import unicodedata

from noise_parts import Typed, alone, as_lot, noise
from noise_truth import written

WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)} | {0x20: 0x3000}
OPEN, CLOSE = "[{（［｛【〔「『《〈<", "]}）］｝】〕」』》〉>"
DASHES = ("–", "—", "－", "−", "‐", "―", " - ", "- ", " -", "ㅡ")
DETAILS = (
    "2층",
    "3층 301호",
    "지하1층",
    "502호",
    "101동 1203호",
    "상가동 2층 2229호",
    "가동 201호",
    "B동 102호",
    "1층 (주)대한상사",
    "나래빌딩 4층",
    "현대상가 4층",
    "미래부동산",
    "한국정밀 내",
    "204호(우리세무회계)",
    "A-305호",
    "별관 1층",
    "지층 비01호",
    "옥탑",
    "3F",
    "101-1203",
    "1203",
    "1~2층",
    "A동",
    "1층, 2층 일부",
    "㈜나래통상 별관",
    "3층 #302",
)
GLUED = ("현대상가 4층", "나래빌딩 201호", "미래부동산", "상가동 102호", "별관", "우리마트 1층")


@noise("format", "region")
def sido_short(typed: Typed) -> bool:
    typed.sido = typed.rng.choice(("세종", "세종시", "세종특별시", "세종자치시", "세종특별자치시 세종시"))
    return True


@noise("format", "region")
def sido_missing(typed: Typed) -> bool:
    """The province left out; the 읍 or 면, or the reference to the 동 that ends an official address, is there."""
    typed.sido = ""
    if not typed.area and not typed.lot:
        typed.note = typed.note or f" ({typed.building.emd})"
    return True


@noise("format", "region", "emd")
def region_old(typed: Typed) -> bool:
    """연기군 of 충청남도, which became 세종 in 2012, with the old names of three of its 면."""
    if typed.building.emd not in ("조치원읍", "금남면", "전의면", "전동면", "소정면", "연동면", "연서면", "연기면"):
        return False
    typed.sido = typed.rng.choice(("충청남도 연기군", "충남 연기군"))
    old = {"연동면": "동면", "연서면": "서면", "연기면": "남면"}
    typed.area = old.get(typed.building.emd, typed.building.emd)
    return True


@noise("format", "emd")
def emd_missing(typed: Typed) -> bool:
    had, typed.area = typed.area, ""
    return bool(had) and not typed.lot


@noise("format", "form", "road", "number", "emd")
def lot_form(typed: Typed) -> bool:
    as_lot(typed)
    typed.digits += typed.rng.choice(("", "", "번지"))
    return alone(typed)


@noise("format", "form", "road", "number", "emd")
def lot_form_words(typed: Typed) -> bool:
    as_lot(typed)
    main, sub = typed.number
    hill = typed.rng.choice(("산 ", "산")) if typed.building.san else ""
    if sub:
        said = typed.rng.choice(
            (f"{main}번지 {sub}호", f"{main}번지{sub}호", f"{main}번지의 {sub}", f"{main}의{sub}번지", f"{main}의{sub}")
        )
    else:
        said = typed.rng.choice((f"{main}번지", f"{main} 번지"))
    typed.digits = hill + said
    one = typed.building
    return alone(typed) and ("호" not in said or not typed.truth.lots(one.emd, one.dong, one.san, (main, 0)))


@noise("format", "form", "road", "number", "emd", "space")
def lot_form_glued(typed: Typed) -> bool:
    as_lot(typed)
    typed.glue, typed.digits = "", typed.digits.replace(" ", "") + typed.rng.choice(("", "번지"))
    if typed.rng.random() < 0.5:
        typed.separator = ""
    return alone(typed)


@noise("format", "road")
def road_spaced(typed: Typed) -> bool:
    digits = [place for place, letter in enumerate(typed.road) if letter.isdigit()]
    if not digits and not typed.road.endswith("대로"):
        return False
    place = digits[0] if digits else len(typed.road) - 2
    typed.road = f"{typed.road[:place]} {typed.road[place:]}"
    return place > 0


@noise("format", "number", "space")
def number_glued(typed: Typed) -> bool:
    typed.glue = ""
    return not typed.lot


@noise("format", "number")
def number_words(typed: Typed) -> bool:
    main, sub = typed.number
    with_sub, without = ("{}의{}", "{}의 {}", "{}-{}번지", "{}의{}번지"), ("{}번지", "{}번")
    typed.digits = typed.rng.choice(with_sub if sub else without).format(main, sub)
    return not typed.lot


@noise("format", "number")
def hyphen_variants(typed: Typed) -> bool:
    main, sub = typed.number
    typed.digits = f"{main}{typed.rng.choice(DASHES)}{sub}"
    return bool(sub) and not typed.lot


@noise("format", "detail")
def detail_attached(typed: Typed) -> bool:
    detail = typed.rng.choice(DETAILS)
    typed.detail = typed.rng.choice((", ", " ", ",")) + detail
    typed.kept.append(detail)
    return True


@noise("format", "detail")
def detail_glued(typed: Typed) -> bool:
    typed.detail = typed.rng.choice(GLUED)
    typed.kept.append(typed.detail)
    return True


@noise("format", "note")
def reference_brackets(typed: Typed) -> bool:
    one = typed.building
    words = [one.dong, *([one.name] if one.name else ())]
    typed.note = typed.rng.choice((" (", "(")) + typed.rng.choice((", ", ",")).join(words) + ")"
    typed.kept.extend(words[1:])
    return True


@noise("format", "note", "detail")
def brackets(typed: Typed) -> bool:
    """Brackets of every kind around the reference, the detail or nothing, and one that is never closed."""
    kind = typed.rng.randrange(len(OPEN))
    inside = typed.rng.choice((typed.building.dong, "2층", "현대상가 4층", "101동 1203호", typed.building.dong))
    closed = CLOSE[kind] if typed.rng.random() < 0.9 else ""
    typed.note = typed.rng.choice((" ", "")) + OPEN[kind] + inside + closed
    typed.kept.extend([inside] if inside != typed.building.dong else [])
    return True


@noise("format", "note", "detail", "form", "road")
def two_addresses(typed: Typed) -> bool:
    """The road address and the lot of the same building in one cell."""
    one = typed.building
    lot = " ".join(filter(None, (one.emd, one.ri, "산" if one.san else "", written(one.lot))))
    typed.note = typed.rng.choice((" ({})", " / {}", " ({}번지)", ", {}")).format(lot)
    return not typed.lot


@noise("format", "zip")
def zip_inside(typed: Typed) -> bool:
    code, typed.zipcode = typed.building.zipcode, None
    if typed.rng.random() < 0.7:
        typed.lead = typed.rng.choice(("({}) ", "[{}] ", "{} ", "우){} ", "우편번호 {} ", "(우 {})", "〒{} ")).format(
            code
        )
    else:
        typed.note += typed.rng.choice((" ({})", ", {}", " {}", " 우편번호:{}")).format(code)
    return True


@noise("format", "zip")
def old_zip(typed: Typed) -> bool:
    """A code of six digits, as they were until 2015."""
    code = f"339-{typed.rng.randint(700, 899)}"
    typed.zipcode = typed.rng.choice((None, code, code.replace("-", "")))
    if typed.zipcode is None:
        typed.lead = typed.rng.choice((f"({code}) ", f"{code} ", f"[{code}] "))
    return True


@noise("format", "zip")
def zip_as_number(typed: Typed) -> bool:
    typed.zipcode = typed.rng.choice(("{}.0", " {} ", "'{}", "{}")).format(typed.building.zipcode)
    return True


@noise("format", "space")
def no_spaces(typed: Typed) -> bool:
    """No white space at all; a detail of digits keeps the comma without which nobody could read it."""
    if typed.detail[:1] == " ":
        typed.detail = "," + typed.detail[1:]
    typed.finish.append(lambda text: "".join(text.split()))
    return True


@noise("format", "space")
def doubled_spaces(typed: Typed) -> bool:
    gaps = ("  ", "   ", "\t", "\u00a0", "\u3000", " \u00a0")

    def widely_spaced(text: str) -> str:
        wide = "".join(typed.rng.choice(gaps) if letter == " " else letter for letter in text)
        return typed.rng.choice(("", " ", "\u3000")) + wide + typed.rng.choice(("", " ", "\r\n"))

    typed.finish.append(widely_spaced)
    return True


@noise("format", "width")
def full_width(typed: Typed) -> bool:
    typed.finish.append(lambda text: text.translate(WIDE))
    return True


@noise("format", "normal")
def nfd(typed: Typed) -> bool:
    """Decomposed Hangul, as macOS writes it."""
    typed.finish.append(lambda text: unicodedata.normalize("NFD", text))
    return True
