"""Regions: what an address begins with, what it is called today, and which postal codes are its own."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from random import Random

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bansong.engine.address.decide import postal_fits
from bansong.engine.address.region_split import split_anywhere, split_region
from bansong.engine.address.regions import members, present_day, regions, spellings
from examples import examples
from gazetteers import matched
from golden_cases import cases, check

TODAY = [*regions().today]
NAMES = ("sido", "sigungu", "emd")


def split(*texts: str | None) -> pl.DataFrame:
    return split_region(pl.LazyFrame({"text": list(texts)}, schema={"text": pl.String})).collect()


def names_of_today(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(present_day(*map(pl.col, NAMES)).alias("now")).unnest("now")


def test_the_region_is_taken_off_and_held_against_the_postal_code() -> None:
    asked = cases("regions.csv").select("address", "zipcode", "why")
    found = split_region(asked.lazy(), "address").collect()
    judged = matched(None, asked.select("address", "zipcode").rows()).drop("address", "zipcode")
    check("regions.csv", found.hstack(judged), inputs=2)
    assert set(judged["covered"]) == {False}
    assert judged.select("form", "unit", "zipcode_right", "changes", "fixed_address").null_count().sum_horizontal()[
        0
    ] == 5 * len(asked)


def test_no_address_and_no_readable_one_has_no_region() -> None:
    assert split(None).select("sido", "sigungu", "region_typed", "rest").row(0) == (None,) * 4
    odd = [None, "-", "서울특별시 강남구 역삼로 *** *층", "a" * 100_000, "=HYPERLINK(1)\x00😀"]
    found = matched(None, [(text, "30100") for text in odd])
    assert found["match_level"].to_list() == [None, None, None, "none", "none"]
    assert set(found["zipcode_given"]) == {"30100"}
    assert found["postal_match"].null_count() == len(odd)


def test_without_a_gazetteer_a_batch_of_many_kinds_is_judged_as_each_row_alone() -> None:
    asked = [*cases("regions.csv").select("address", "zipcode").rows()[::9], (None, "06236")]
    assert pl.concat(matched(None, [row]) for row in asked).equals(matched(None, asked))


def test_a_name_of_any_date_has_one_name_of_today_or_keeps_its_own() -> None:
    asked = cases("region_names.csv")
    found = names_of_today(asked)
    check("region_names.csv", asked.select(NAMES).hstack(found.rename(lambda name: f"now_{name}")), inputs=3)
    today = pl.DataFrame(TODAY, schema=["sido", "sigungu"], orient="row").with_columns(emd=pl.lit("어느동"))
    assert names_of_today(today).equals(today)


def test_every_region_that_a_change_leads_to_exists_today() -> None:
    table = regions()
    cities = {(place.sido, place.sigungu.split(" ")[0]) for place in table.today}
    leads_to = [*table.renamed.values(), *(new for parts in table.parts.values() for new in parts.values())]
    assert {new for new in leads_to if new not in table.today and new not in cities} == set()


def test_a_typed_name_means_the_regions_that_it_covers() -> None:
    means: dict[tuple[str, str], set[str]] = {}
    for sido, sigungu, _, member in members().rows():
        means.setdefault((sido, sigungu), set()).add(member)
    wards = {"수원시", "수원시 장안구", "수원시 권선구", "수원시 팔달구", "수원시 영통구"}
    assert means["경기도", "수원시"] == wards
    assert means["경기도", "화성시 동탄구"] == {"화성시", "화성시 동탄구"}
    assert means["인천광역시", "중구"] == {"중구", "제물포구", "영종구"}
    assert means["인천광역시", "영종구"] == {"영종구", "중구"}
    assert means["광주광역시", ""] == {"동구", "서구", "남구", "북구", "광산구"}
    assert len(means["전라남도", ""]) == 22


@pytest.mark.parametrize("spaces", [True, False])
def test_every_district_is_read_from_its_official_name(spaces: bool) -> None:
    texts = (f"{sido} {sigungu} 가나다로 1".replace("  ", " ") for sido, sigungu in TODAY)
    glued = (f"{sido}{sigungu}가나다로 1".replace(" ", "", 1) for sido, sigungu in TODAY)
    found = split(*(texts if spaces else glued))
    assert found.select("sido", "sigungu").rows() == TODAY
    if spaces:
        assert set(found.select("rest", "region_change").rows()) == {("가나다로 1", None)}


@st.composite
def typed(draw: st.DrawFn) -> tuple[tuple[str, str], str]:
    sido, sigungu = draw(st.sampled_from(TODAY))
    province = next(province for province in regions().provinces if province.name == sido)
    ways = [text for text, (_, full) in province.written.items() if not province.former.get(full)]
    first = draw(st.sampled_from([*ways, ""]))
    second = draw(st.sampled_from([way.text for way in spellings(sigungu)])) if sigungu else ""
    words = f"{first} {second}".split()
    text = words[0] if words else ""
    for word in words[1:]:
        text += draw(st.sampled_from([" ", " ", " ", ""])) + word
    road = draw(st.sampled_from(["삼성로 1", "중앙로 3", "5길 7", "대로 2", "시장길 3", "역삼동 1", "(역삼동)", ""]))
    return (sido, sigungu), (text + draw(st.sampled_from([" ", " ", ""])) + road).strip()


@examples(25)
@given(st.lists(typed(), min_size=20, max_size=20))
def test_however_it_is_written_a_district_is_never_another(drawn: list[tuple[tuple[str, str], str]]) -> None:
    found = split(*(text for _, text in drawn)).iter_rows(named=True)
    for ((sido, sigungu), text), one in zip(drawn, found, strict=True):
        assert one["sido"] in (sido, None)
        assert one["sigungu"] in (sigungu, sigungu.split(" ")[-1], sigungu.split(" ")[0], None)
        if one["region_typed"] is not None:
            assert f"{one['region_typed']}{one['rest']}".replace(" ", "") == text.replace(" ", "")


FITS = postal_fits(pl.col("zipcode"), pl.col("sido"), pl.col("sigungu"))


def test_a_postal_code_fits_contradicts_or_says_nothing() -> None:
    check("postal_codes.csv", cases("postal_codes.csv").with_columns(fits=FITS), inputs=3)


def test_real_addresses_are_all_recognised_and_none_is_accused(shared: Path) -> None:
    with (shared / "address" / "localdata_vet_half.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    pairs = [
        (re.sub(r"\s+", " ", row[name].strip()), row["도로명우편번호"])
        for row in rows
        for name in ("도로명전체주소", "소재지전체주소")
        if row[name].strip()
    ]
    frame = pl.LazyFrame(pairs, schema=["text", "zipcode"], orient="row")
    found = split_region(frame).with_columns(fits=FITS).collect()
    assert found.height > 8000
    assert found["sido"].null_count() == found["sigungu"].null_count() == 0
    assert found.filter(pl.col("region_conflict") | (pl.col("region_change") == "typo") | ~pl.col("fits")).height == 0
    coded = found.filter(pl.col("zipcode").str.contains("^[0-9]{5}$"))
    assert coded["fits"].sum() > 0.998 * coded.height  # the rest: 군위군, whose codes changed when it moved


def test_every_district_of_the_official_list_is_known(shared: Path) -> None:
    """The list is of 2025: each district in it is one of today, was renamed, or was split."""
    names = [name.split() for name in official_names(shared, districts=True)]
    old = pl.DataFrame([(name[0], " ".join(name[1:]), None) for name in names], schema=NAMES, orient="row")
    found = set(names_of_today(old.cast(pl.String)).select("sido", "sigungu").rows())
    cities = {(sido, sigungu.split(" ")[0]) for sido, sigungu in TODAY}
    split_districts = {("인천광역시", "중구"), ("인천광역시", "서구")}
    provinces = {(province.name, "") for province in regions().provinces}
    assert found - set(TODAY) - cities - split_districts - provinces == set()
    new = {"영종구", "서해구", "검단구", *(f"화성시 {ward}구" for ward in ("만세", "효행", "병점", "동탄"))}
    assert {sigungu for _, sigungu in set(TODAY) - found} == new


def official_names(shared: Path, *, districts: bool) -> list[str]:
    lines = (shared / "address" / "legal_dong_codes_2025.txt").read_text(encoding="cp949").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return [name for code, name, state in rows if state == "존재" and code.endswith("00000") == districts]


def test_every_legal_dong_is_read_without_any_space(shared: Path) -> None:
    """Three of 20,275 are not: 시장북로 (중구), 역동 (광주시), 청동 (나주시) look like 시장, 역, 시청."""
    names = official_names(shared, districts=False)
    spaced, glued = (split(*(f"{name}123-4" for name in way)) for way in (names, [n.replace(" ", "") for n in names]))
    same = (spaced["sido"] == glued["sido"]) & (spaced["sigungu"] == glued["sigungu"])
    assert len(names) - same.sum() <= 3


ODD = ["영통구 1", "영통 중앙로 3", "강남구 3", "영퉁구 삼성로 1", "세종특별자치시 1", "(역삼동)", "", "5길 7"]


def mistyped(text: str, random: Random) -> str:
    place = random.randrange(min(len(text), 16))
    return text[:place] + random.choice(["", " ", "  ", "시", "구", "경", text[place] * 2]) + text[place + 1 :]


def test_the_quick_way_says_what_the_slow_one_says_of_every_region() -> None:
    random = Random(7)
    heads = [" ".join([sido, *filter(None, sigungu.split(" ")[:count])]) for sido, sigungu in TODAY for count in (1, 2)]
    texts = [f"{head}{space}{rest}" for head in heads for rest in ODD for space in (" ", "  ", "")]
    texts += [*(mistyped(text, random) for text in texts), "대한민국", " 서울특별시 강남구 1"]
    frame = pl.DataFrame({"text": [*texts, None]}, schema={"text": pl.String})
    assert split_region(frame.lazy()).collect().equals(frame.hstack(split_anywhere(frame["text"])))
