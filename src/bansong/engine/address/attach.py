"""Add the official address, postal code and codes of its building to each row; suggest addresses."""

from __future__ import annotations

from functools import cache, partial
from typing import Final

import polars as pl

from bansong.base.business_number import first_code
from bansong.base.messages import Lang, gettext
from bansong.engine.address import parse
from bansong.engine.address.batches import ROW, PreparedStep, for_few, lacks_any, scatter, text_key
from bansong.engine.address.candidates import split_joined_numbers
from bansong.engine.address.decide import (
    drop_repeated,
    hear_witnesses,
    judge_support,
    postal_fits,
)
from bansong.engine.address.gazetteer import Gazetteer, lot_key, unpack_numbers
from bansong.engine.address.judge_regions import JUDGED, judge_batch
from bansong.engine.address.lookups import FEW, Lookups, lookups_of
from bansong.engine.address.matcher import READINGS, match_addresses, open_rows, with_narrowed_regions
from bansong.engine.address.parse import describes_by_other, is_numbered, names_several
from bansong.engine.address.plain import answer_plain, changes_of_heads, plain_names
from bansong.engine.address.region_split import names_region
from bansong.engine.address.regions import level_of
from bansong.engine.text import is_blank, is_masked

_NOWHERE: Final = pl.Series([None], dtype=pl.UInt32)
_TOWN: Final = "[읍면]$"
# after a dong in brackets: nothing, or words after a comma; in 나성동 1234 and 나성동 홍길동 it is a part
_ALONE: Final = "^(?:$| ?[,/] ?(?:[^ 0-9산]|[0-9-]+ ?[층호동]))"
_SURE: Final = pl.col("place").is_not_null()
_LIKE_ROAD: Final = "(?:로|길)(?:[0-9]+[가-힣]{0,3})?$"

_TEXTS: Final[dict[str, dict[Lang, str]]] = {
    "added": {"en": "region added: ", "ko": "지역 보완: "},
    "region": {"en": "region ", "ko": "지역 "},
    "town": {"en": "district ", "ko": "읍면동 "},
    "dong": {"en": "dong ", "ko": "동 "},
    "road": {"en": "road ", "ko": "도로명 "},
    "number": {"en": "number ", "ko": "건물번호 "},
    "lot": {"en": "lot ", "ko": "지번 "},
    "building": {"en": "building ", "ko": "건물 "},
    "absent": {"en": "there is no number ", "ko": "없는 건물번호: "},
    "moved": {"en": "moved from ", "ko": "이전하기 전 주소 "},
    "abolished": {"en": "abolished address ", "ko": "폐지된 주소 "},
}


def format_match(lookups: Lookups, matched: pl.DataFrame, lang: Lang) -> pl.DataFrame:
    """Return the columns :data:`ADDED` for the result of :func:`~.matcher.match_addresses`."""
    rows = _with_dong_replaced(lookups, _with_building(lookups, matched))
    rows = _with_names_back(lookups, _with_units_back(lookups, rows))
    rows = _LEVEL.run(rows.hstack([_postal_match(lookups, rows).alias("postal_match")]))
    rows = rows.hstack([judge_support(lookups, rows).alias("supported")])
    return _answering(lang).run(rows)


@cache
def _answering(lang: Lang) -> PreparedStep:
    return PreparedStep(lambda rows: _select_answer(_with_changes(rows, lang)))


def _select_answer(rows: pl.LazyFrame) -> pl.LazyFrame:
    # without the building if the words name several numbers or a place beside it
    rows = rows.with_columns(
        official=_official(), beside=describes_by_other(pl.col("text")), several=names_several(pl.col("text"))
    )
    right = pl.col("zip").cast(pl.String).str.zfill(5)
    doubtful = (pl.col("beside") | pl.col("several")).fill_null(False)
    sure = pl.col("place").is_not_null() & ~doubtful
    postal_only = pl.when(~doubtful).then(pl.col("postal_only").cast(pl.String).str.zfill(5))
    reference = _reference()
    detail = pl.when((pl.col("detail") != pl.col("of_emd")).fill_null(True)).then("detail")  # it stands in brackets
    behind = pl.when(detail != "").then(pl.lit(", ") + detail).otherwise(pl.lit(""))
    return rows.select(
        match_level=pl.when(~is_blank(pl.col("address")) & ~is_masked(pl.col("address"))).then("level"),
        region=level_of(pl.coalesce("of_sido", "sido")),
        covered=pl.col("covered"),
        form=_form(),
        unit=first_code({"given": sure & pl.col("has_unit"), "missing": sure & pl.col("apartment")}),
        region_given=pl.col("sido").is_not_null(),
        numbered=(is_numbered() | (sure & pl.col("loose_main").is_not_null())) & ~pl.col("several"),
        beside=pl.col("beside"),
        postal_match=pl.when(~doubtful).then("postal_match"),
        supported=pl.col("supported"),
        zipcode_given=pl.col("zipcode_given"),
        zipcode_right=pl.when(sure).then(right),
        changes=pl.when(pl.col("changes") != "").then("changes"),
        fixed_zipcode=pl.when(sure).then(right).otherwise(postal_only),
        fixed_address=pl.when(sure).then(pl.concat_str(pl.col("official"), behind, reference)),
        district_code=pl.when(sure).then(pl.col("of_code").cast(pl.String).str.zfill(10)),
        place=pl.when(sure).then("place"),
    )


def _form() -> pl.Expr:
    # `neither`: a building's name and its units
    loose_road = pl.col("loose_road").str.contains(_LIKE_ROAD).fill_null(False) | (
        pl.col("place").is_not_null() & pl.col("loose_main").is_not_null()
    )
    return first_code(
        {
            "road": pl.col("main").is_not_null() | pl.col("road").is_not_null() | loose_road,
            "lot": pl.col("lot_main").is_not_null(),
            "english": pl.col("kind") == "english",
            "neither": (pl.col("kind") == "korean") & pl.col("place").is_null(),
        }
    )


def _with_building(lookups: Lookups, matched: pl.DataFrame) -> pl.DataFrame:
    tables, matched = lookups.tables, lookups.describe(matched)
    place, dong, road, home = (matched[name] for name in ("place", "dong", "road_id", "home"))
    apartment = tables.building_apartment[place]
    if apartment.null_count():
        apartment = apartment.fill_null(False)
    names = pl.Series([None], dtype=pl.String).new_from_index(0, len(place))
    if apartment.any():  # names are read from the file at their first use
        names = tables.building_name[place.zip_with(apartment, _NOWHERE)]
    known = {
        "apartment": apartment,
        "of_key": tables.building_key[place],
        "of_building": names,
        **{f"of_{name}": tables.dongs[name][dong] for name in ("emd", "ri", "code")},
        "of_road": tables.roads["name"][road],
        "of_road_key": tables.roads["key"][road],
        **{f"of_{name}": tables.regions[name][home] for name in ("sido", "sigungu")},
    }
    under, main, sub = unpack_numbers(pl.col("of_key"))
    return matched.hstack([values.alias(name) for name, values in known.items()]).with_columns(
        of_under=under, of_main=main, of_sub=sub
    )


def _with_units_back(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    # `301호` of `713번지 301호`, if it was no part of the lot's number
    if lacks_any(rows, "lot_ho", "place"):
        return rows
    read_as_lot = rows.filter(pl.col("lot_ho") & pl.col("place").is_not_null())
    if read_as_lot.is_empty():
        return rows
    key = lot_key(pl.col("dong"), pl.col("san"), pl.col("lot_main"), pl.col("lot_sub"))
    lots = lookups.lots.find(read_as_lot, key, "lot_place", ("place",)).filter(pl.col("place") == pl.col("lot_place"))
    units = read_as_lot.join(lots, on=ROW, how="anti").select(
        ROW,
        detail=pl.concat_str(
            pl.concat_str(pl.col("lot_sub").cast(pl.String), pl.lit("호")), "detail", separator=" ", ignore_nulls=True
        ),
        has_unit=pl.lit(True),
        lot_sub=pl.lit(0, pl.UInt32),
    )
    return rows if units.is_empty() else rows.update(units, on=ROW, how="left")


def _with_names_back(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    # words before the road that end like a place and are none (홍길동)
    if lacks_any(rows, "ahead", "place"):
        return rows
    named = rows.filter(pl.col("ahead").is_not_null() & pl.col("place").is_not_null())
    if named.is_empty():
        return rows
    word = pl.col("ahead")
    words = named.select(ROW, "detail", "of_emd", "of_ri", "of_road", word.str.split(" ")).explode("ahead")
    known = lookups.dong_words.holds(words.select(text_key("ahead")).to_series())
    misspelt = [_alike(word, pl.col(place)) for place in ("of_emd", "of_ri")]
    names = words.filter(~pl.any_horizontal(pl.lit(known), names_region(word), _gave_its_name(word), *misspelt))
    added = names.group_by(ROW, maintain_order=True).agg(pl.col("detail").first(), word.str.join(" "))
    detail = pl.concat_str("detail", "ahead", separator=", ", ignore_nulls=True)
    return rows.update(added.select(ROW, detail=detail), on=ROW, how="left")


def _gave_its_name(word: pl.Expr) -> pl.Expr:
    # 왕십리, 왕십리동 and 왕십리로
    place = pl.when(word.str.ends_with("리")).then(word).otherwise(word.str.extract("^(.{3,})동$"))
    return pl.col("of_road").str.starts_with(place).fill_null(False)


def _alike(word: pl.Expr, place: pl.Expr) -> pl.Expr:
    # misspelt or abbreviated
    begun = place.str.starts_with(word.str.head(1)) | (place.str.slice(1) == word.str.slice(1))
    return begun.fill_null(False)


def _official() -> pl.Expr:
    # 시도 시군구 읍면 도로명 [지하] 본번-부번
    town = pl.col("of_emd").str.contains(_TOWN)
    parts = [
        pl.col("of_sido"),
        pl.when(pl.col("of_sigungu") != "").then("of_sigungu"),
        pl.when(town).then("of_emd"),
        pl.col("of_road"),
        pl.concat_str(_under("of_under"), _number("of_main", "of_sub")),
    ]
    return pl.concat_str(parts, separator=" ", ignore_nulls=True)


def _under(column: str) -> pl.Expr:
    return first_code({"지하 ": pl.col(column) == 1, "공중 ": pl.col(column) == 2}, "")


def _number(main: str, sub: str) -> pl.Expr:
    return pl.concat_str(
        pl.col(main).cast(pl.String),
        pl.when(pl.col(sub).fill_null(0) > 0).then(pl.lit("-") + pl.col(sub).cast(pl.String)).otherwise(pl.lit("")),
    )


def _reference() -> pl.Expr:
    # the user's words in brackets, or the legal dong and the name of the apartment complex
    legal = pl.when(~pl.col("of_emd").str.contains(_TOWN)).then("of_emd")
    own = pl.concat_str(legal, pl.col("of_building"), separator=", ", ignore_nulls=True)
    corrected = pl.concat_str(legal, pl.col("brackets").str.slice(pl.col("hint_dong").str.len_chars()))
    theirs = pl.when("dong_replaced").then(corrected).otherwise("brackets")
    without_dong = legal.is_not_null() & ~theirs.str.contains(legal, literal=True)
    theirs = pl.when(without_dong).then(pl.concat_str(legal, pl.lit(", "), theirs)).otherwise(theirs)
    words = pl.coalesce(theirs, pl.when(own != "").then(own))
    return pl.when(words.is_not_null()).then(pl.concat_str(pl.lit(" ("), words, pl.lit(")"))).otherwise(pl.lit(""))


def _with_dong_replaced(lookups: Lookups, rows: pl.DataFrame) -> pl.DataFrame:
    # brackets that begin with an administrative or wrong dong; other words are somebody's: 홍길동, 성북동주민센터
    unchanged = rows.hstack([pl.Series("dong_replaced", [False]).new_from_index(0, rows.height)])
    if lacks_any(rows, "hint_dong", "brackets", "of_emd"):
        return unchanged
    suspect = _OTHER_DONG.run(rows).to_series()
    if not suspect.any():
        return unchanged
    suspects = rows.filter(suspect)
    known = lookups.is_dong_of(suspects, "home", "hint_dong")
    replaced = suspects.filter(known)[ROW]
    return rows.with_columns(dong_replaced=pl.col(ROW).is_in(replaced.implode()))


def _names_other_dong(rows: pl.LazyFrame) -> pl.LazyFrame:
    other = ~pl.col("of_emd").str.contains(_TOWN) & (pl.col("hint_dong") != pl.col("of_emd"))
    behind = pl.col("brackets").str.slice(pl.col("hint_dong").str.len_chars())
    whole = pl.col("brackets").str.starts_with(pl.col("hint_dong")) & behind.str.contains(_ALONE)
    return rows.select((other & whole).fill_null(False))


_OTHER_DONG: Final = PreparedStep(_names_other_dong)


def _with_level(rows: pl.LazyFrame) -> pl.LazyFrame:
    # worse if the region was filled in or respelled, a town replaced, or a move written
    repaired = (
        pl.col("narrowed")
        | (pl.col("region_change") == "typo").fill_null(False)
        | pl.col("region_conflict").fill_null(False)
        | _town_replaced()
        | pl.col("moved_from").is_not_null()
    )
    plain = pl.col("match_level").is_in(["exact", "lot_to_road"])
    return rows.with_columns(level=pl.when(plain & repaired).then(pl.lit("region_repaired")).otherwise("match_level"))


_LEVEL: Final = PreparedStep(_with_level)


def _town_replaced() -> pl.Expr:
    by_road = pl.col("road").is_not_null() & pl.col("place").is_not_null()
    return (by_road & (pl.col("emd") != pl.col("of_emd"))).fill_null(False)


def _with_changes(rows: pl.LazyFrame, lang: Lang) -> pl.LazyFrame:
    # composed only where something differs
    without_building = pl.col("match_level").is_in(["building_only", "abolished"])
    differs = (_SURE | without_building) & ~_as_written()
    moved = pl.when(_SURE).then(pl.concat_str(_word("moved", lang), "moved_from"))
    pieces = [moved, *_region_changes(lang), *_name_changes(lang)]
    changes = pl.concat_str(pieces, separator="; ", ignore_nulls=True).str.replace_all("|", "/", literal=True)
    needs = tuple(dict.fromkeys(changes.meta.root_names()))
    return for_few(rows, differs, lambda few: few.with_columns(changes=changes), needs, {"changes": pl.String})


def _as_written() -> pl.Expr:
    same = [
        pl.col("match_level") == "exact",
        pl.col("moved_from").is_null(),
        pl.col("sido_given") & (pl.col("sido") == pl.col("of_sido")) & (pl.col("sigungu") == pl.col("of_sigungu")),
        ~pl.col("region_change").is_in(["renamed", "typo"]).fill_null(False),
        (pl.col("emd") == pl.col("of_emd")).fill_null(True),
        (pl.col("hint_dong") == pl.col("of_emd")).fill_null(True),
        pl.col("road") == pl.col("of_road_key"),
        pl.col("under") == pl.col("of_under"),
    ]
    return pl.all_horizontal(same).fill_null(False)


def _region_changes(lang: Lang) -> list[pl.Expr]:
    region = pl.concat_str(
        pl.col("of_sido"), pl.when(pl.col("of_sigungu") != "").then("of_sigungu"), separator=" ", ignore_nulls=True
    )
    other = (
        pl.col("region_change").is_in(["renamed", "typo"]).fill_null(False)
        | pl.col("region_conflict").fill_null(False)
        | (pl.col("sido") != pl.col("of_sido")).fill_null(False)
        | ~_means(pl.col("sigungu"), pl.col("of_sigungu"))
    )
    missing = pl.col("sido").is_null() & pl.col("sigungu").is_null()
    no_province = ~pl.col("sido_given").fill_null(False)
    added = _word("added", lang)
    return [
        pl.when(_SURE & missing).then(pl.concat_str(added, region)),
        pl.when(_SURE & ~missing & other).then(_arrow("region", lang, pl.col("region_typed"), region)),
        pl.when(_SURE & ~missing & ~other & no_province).then(pl.concat_str(added, pl.col("of_sido"))),
        pl.when(_SURE & _town_replaced()).then(_arrow("town", lang, pl.col("emd"), pl.col("of_emd"))),
        pl.when(_SURE & pl.col("dong_replaced")).then(_arrow("dong", lang, pl.col("hint_dong"), pl.col("of_emd"))),
    ]


def _name_changes(lang: Lang) -> list[pl.Expr]:
    road, level = pl.coalesce("road", "loose_road"), pl.col("match_level")
    lot = pl.concat_str(
        pl.col("lot_dong"),
        pl.when(pl.col("san") == 1).then(pl.lit(" 산 ")).otherwise(pl.lit(" ")),
        _number("lot_main", "lot_sub"),
    )
    official = pl.concat_str(pl.col("of_road"), pl.lit(" "), _number("of_main", "of_sub"))
    below = pl.concat_str(_under("of_under"), _number("of_main", "of_sub"))
    by_road = _SURE & ~level.is_in(["lot_to_road", "renumbered"])
    by_lot = _SURE & (road.is_null() | (level == "lot_to_road")) & pl.col("lot_main").is_not_null()
    other_name = (road.str.replace_all(r"[ .·]", "") != pl.col("of_road_key")).fill_null(False)
    other_side = (pl.col("under") != pl.col("of_under")).fill_null(False)
    written = pl.concat_str(road, pl.lit(" "), _number("main", "sub"))
    gone = level == "abolished"
    return [
        pl.when(by_road & other_name).then(_arrow("road", lang, road, pl.col("of_road"))),
        pl.when(by_road & other_side).then(_arrow("number", lang, _number("main", "sub"), below)),
        pl.when(by_lot).then(_arrow("lot", lang, lot, official)),
        pl.when(_SURE & (level == "building_only")).then(_arrow("building", lang, pl.col("building"), official)),
        pl.when(level == "renumbered").then(_arrow("abolished", lang, written, official)),
        pl.when(~_SURE & gone).then(pl.concat_str(_word("abolished", lang), written)),
        pl.when(~_SURE & ~gone).then(pl.concat_str(_word("absent", lang), written)),
    ]


def _word(code: str, lang: Lang) -> pl.Expr:
    return pl.lit(_TEXTS[code][lang])


def _arrow(code: str, lang: Lang, before: pl.Expr, after: pl.Expr) -> pl.Expr:
    return pl.concat_str(_word(code, lang), before, pl.lit(" → "), after)


def _means(typed: pl.Expr, official: pl.Expr) -> pl.Expr:
    return (
        typed.is_null()
        | (typed == official)
        | official.str.starts_with(typed)
        | official.str.ends_with(typed)
        | typed.str.starts_with(official)
    ).fill_null(True)


def _postal_match(lookups: Lookups, rows: pl.DataFrame) -> pl.Series:
    if lacks_any(rows, "zipcode_given"):
        return pl.Series([None], dtype=pl.String).new_from_index(0, rows.height)
    pairs = rows.select("zip", "dong", "road_id", zip_given=pl.col("zipcode_given").cast(pl.UInt32, strict=False))
    differs = (pairs["zip_given"] != pairs["zip"]).fill_null(False)
    near = pl.lit(scatter(lookups.is_neighbouring(pairs.filter(differs)), differs))
    rules = {"right": pl.col("zip_given") == pl.col("zip"), "neighbouring": near, "other_district": ~near}
    return pairs.select(first_code(rules)).to_series()


def building_code(gazetteer: Gazetteer, place: pl.Expr) -> pl.Expr:
    """Return the 도로명주소관리번호 (26 digits, String) of the building at ``place`` (UInt32); null if unknown."""
    return place.map_batches(partial(_look_up_codes, gazetteer), return_dtype=pl.String, is_elementwise=True)


def _look_up_codes(gazetteer: Gazetteer, places: pl.Series) -> pl.Series:
    tables = lookups_of(gazetteer, 0).tables
    found = pl.DataFrame({"street": tables.building_street[places], "key": tables.building_key[places]})
    under, main, sub = unpack_numbers(pl.col("key"))
    parts = ((pl.col("street"), 15), (under, 1), (main, 5), (sub, 5))
    code = pl.concat_str(part.cast(pl.String).str.zfill(width) for part, width in parts)
    return found.select(code.alias(places.name)).to_series()


SUGGESTED: Final = {"row": pl.UInt32, "address": pl.String, "zipcode": pl.String, "changes": pl.String}


def suggest(addresses: pl.DataFrame, gazetteer: Gazetteer, lang: Lang, most: int = 5) -> pl.DataFrame:
    """Return up to ``most`` official addresses (:data:`SUGGESTED`) that each address may mean, the likeliest first."""
    # any reading may propose a place; places are ordered by the number of witnesses, then by the reading
    parsed = parse.parse(addresses.lazy().select("address", "zipcode")).collect()
    lookups = lookups_of(gazetteer, len(parsed))
    rows = open_rows(lookups, split_joined_numbers(lookups, parsed.with_row_index(ROW)))
    narrowed = with_narrowed_regions(lookups, rows)
    proposed = [
        reading.propose(lookups, each).select(ROW, "place", rank=pl.lit(rank, pl.UInt32))
        for rank, reading in enumerate(READINGS)
        for each in (rows, narrowed)
    ]
    ranks = pl.concat(proposed).group_by(ROW, "place").agg(pl.col("rank").min())
    if ranks.is_empty():
        return pl.DataFrame(schema=SUGGESTED)
    heard = hear_witnesses(lookups, narrowed, drop_repeated(lookups, ranks)).select(ROW, "place", "pro")
    best = (
        heard.join(ranks, on=[ROW, "place"])
        .sort(ROW, pl.col("pro"), "rank", "place", descending=[False, True, False, False])
        .group_by(ROW, maintain_order=True)
        .head(most)
    )
    lines = best.select(pl.col(ROW).alias("of_row"), pl.col("place").cast(pl.UInt32)).join(
        rows.rename({ROW: "of_row"}), on="of_row", how="left", maintain_order="left"
    )
    named = lines.drop("of_row").with_row_index(ROW)  # steps are prepared for the columns of a match only
    matched = named.with_columns(match_level=pl.lit("exact"), postal_only=pl.lit(None, pl.UInt32))
    found = format_match(lookups, matched, lang)
    return found.select(row=lines["of_row"], address="fixed_address", zipcode="fixed_zipcode", changes="changes")


ADDED: Final[dict[str, type[pl.DataType]]] = {  # the columns that `attach` adds
    "match_level": pl.String,  # one of LEVELS, null without a readable address
    "region": pl.String,  # level of the province of today, the building's if one was found
    "covered": pl.Boolean,  # the gazetteer holds the named region, so that unfound addresses do not exist
    "form": pl.String,  # road or lot, english, or neither
    "unit": pl.String,  # given, or missing in an apartment complex
    "region_given": pl.Boolean,  # the address names one province, or a district of a single province
    "numbered": pl.Boolean,  # a road or lot with its number
    "beside": pl.Boolean,  # a place described by another one (맞은편, 옆 건물, 앞)
    "postal_match": pl.String,  # right, neighbouring (a code of the same dong or road), other_district
    "supported": pl.Boolean,  # other words of the row confirm the repair, null without one
    "zipcode_given": pl.String,  # five digits
    "zipcode_right": pl.String,
    "changes": pl.String,  # corrections, in words of the language
    "fixed_zipcode": pl.String,  # as the address, null if uncertain
    "fixed_address": pl.String,
    "district_code": pl.String,  # ten digits of the building's legal dong (법정동코드)
    "place": pl.UInt32,  # of the building in the gazetteer
}


def attach(frame: pl.LazyFrame, gazetteer: Gazetteer | None, lang: Lang) -> pl.LazyFrame:
    """Add the columns of :data:`ADDED` to each row; without a gazetteer, only compare the postal code to the region."""
    answer = judge_batch if gazetteer is None else partial(_match_batch, gazetteer, lang)
    added = {name: dtype for name, dtype in ADDED.items() if gazetteer is not None or name in JUDGED}
    rows = pl.struct("address", "zipcode")
    found = rows.map_batches(answer, return_dtype=pl.Struct(added), is_elementwise=True)
    frame = frame.with_columns(found.alias("bv:address")).unnest("bv:address")
    if gazetteer is not None:
        return frame
    nothing = {name: pl.lit(None, dtype) for name, dtype in ADDED.items() if name not in added}
    given = {"covered": pl.lit(False), "region_given": pl.col("region").is_not_null()}
    return frame.with_columns(**nothing | given)


def load(gazetteer: Gazetteer) -> None:
    """Load the whole gazetteer, with the indexes that most batches need."""
    lookups = lookups_of(gazetteer, FEW + 1)
    lookups.build_for_many()
    plain_names(lookups)


def _match_batch(gazetteer: Gazetteer, lang: Lang, addresses: pl.Series) -> pl.Series:
    lookups, rows = lookups_of(gazetteer, len(addresses)), addresses.struct.unnest()
    try:
        answers = answer_plain(lookups, rows, _changes_of_heads(lang), partial(_read, lookups, lang))
        return answers[list(ADDED)].to_struct("address")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # else the user's file is blamed
        raise RuntimeError(gettext("the address engine failed: {error}", error=error)) from error


def _read(lookups: Lookups, lang: Lang, parsed: pl.DataFrame) -> pl.DataFrame:
    return _with_postal_conflict(format_match(lookups, match_addresses(lookups, parsed), lang), parsed)


@cache
def _changes_of_heads(lang: Lang) -> pl.Series:
    return changes_of_heads(pl.concat_str(_region_changes(lang), separator="; ", ignore_nulls=True))


def _with_postal_conflict(answers: pl.DataFrame, parsed: pl.DataFrame) -> pl.DataFrame:
    # where no building was found, compare the postal code to the region, as without a gazetteer
    if lacks_any(answers, "zipcode_given"):
        return answers
    unjudged = answers["fixed_zipcode"].is_null() & answers["zipcode_given"].is_not_null()
    if not unjudged.any():
        return answers
    elsewhere = scatter(_POSTAL_CONFLICT.run(parsed.filter(unjudged)).to_series(), unjudged)
    return answers.with_columns(pl.coalesce("postal_match", elsewhere))


def _find_postal_conflict(parsed: pl.LazyFrame) -> pl.LazyFrame:
    fits = postal_fits(pl.col("zipcode_given"), pl.col("sido"), pl.col("sigungu")) | pl.col("region_conflict")
    return parsed.select(pl.when(~fits).then(pl.lit("other_district")))


_POSTAL_CONFLICT: Final = PreparedStep(_find_postal_conflict)
