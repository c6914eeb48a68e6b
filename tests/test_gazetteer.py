"""The gazetteer: what is read from the official files, what is refused, and that opening it is cheap."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import openpyxl
import polars as pl
import pyarrow.parquet as pq
import pytest

import bansong as bs
from bansong.engine.address import lookups as open_lookups
from bansong.engine.address.attach import attach, building_code
from bansong.engine.address.gazetteer import (
    METADATA_KEY,
    Gazetteer,
    StoredSection,
    Tables,
    building_key,
    compact_name,
    lot_key,
)
from bansong.errors import GazetteerError, UsageError
from bansong.reference import gazetteer as gazetteer_builder
from bansong.reference.address_files import shown_name
from bansong.reference.gazetteer import GazetteerReport

REASON = 20
POSTAL_HEADER = (
    "우편번호|시도|시도영문|시군구|시군구영문|읍면|읍면영문|도로명코드|도로명|도로명영문|지하여부|건물번호본번|건물번호부번|건물관리번호|"
    "다량배달처명|시군구용건물명|법정동코드|법정동명|리명|행정동명|산여부|지번본번|읍면동일련번호|지번부번|구우편번호|우편번호일련번호"
)


def row(
    number: int,
    *,
    sub: int = 0,
    road: str = "한누리대로",
    road_code: str = "361102000002",
    emd: str = "반곡동",
    ri: str = "",
    dong: str = "3611010100",
    sido: str = "세종특별자치시",
    sigungu: str = "",
    lot: str = "0|47|1",
    admin: str = "반곡동",
    zipcode: str = "30145",
    apartment: int = 0,
    reason: str = "",
    register: str = "",
    building: str = "",
    under: str = "0",
    effective: str = "20181204",
) -> str:
    """A line of the official file of buildings."""
    key = f"{dong[:8]}{road_code[5:]}0{number:05d}{sub:05d}"
    return (
        f"{key}|{dong}|{sido}|{sigungu}|{emd}|{ri}|{lot}|{road_code}|{road}|{under}|{number}|{sub}|3611055600|{admin}|"
        f"{zipcode}||{effective}|{apartment}|{reason}|{register}|{building}|"
    )


def lot_row(number: int, lot: str, *, dong: str = "3611010100", emd: str = "반곡동", reason: str = "") -> str:
    """A line of the official file of additional lots, for the building ``row(number)``."""
    key = row(number).split("|")[0]
    return f"{key}|{dong}|세종특별자치시||{emd}||{lot}|361102000002|0|{number}|0|{reason}"


def postal_row(number: int, *, sido: str = "세종특별자치시", building: str = "", zipcode: str = "30145") -> str:
    """A line of the post office's file."""
    key = f"36110101001004700010{number:05d}"
    return (
        f"{zipcode}|{sido}|Sejong||||| 361102000002|한누리대로|Hannuri-daero|0|{number}|0|{key}||{building}|3611010100|"
        "반곡동||반곡동|0|47|01|1||"
    ).replace("| 3611", "|3611")


def put(path: Path, *lines: str, encoding: str = "cp949") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    return path


def build(folder: Path, *sources: Path) -> tuple[GazetteerReport, Tables]:
    output = folder / "out.parquet"
    report = bs.build_gazetteer(sources or [folder], output)
    return report, Gazetteer.open(output).tables


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """Three buildings on two roads, one additional lot."""
    put(
        tmp_path / "rnaddrkor_sejong.txt",
        row(1811, building="수루배마을5단지 상가동", apartment=1),
        row(1820, lot="0|862|0", zipcode="30146", register="왕관빌딩"),
        row(5, road="세종로", road_code="361103000189", dong="3611025021", emd="조치원읍", ri="원리", admin="조치원읍"),
    )
    put(tmp_path / "jibun_rnaddrkor_sejong.txt", lot_row(1820, "0|46|2"))
    return tmp_path


def places(tables: Tables, road: str, main: int, sub: int = 0) -> list[int]:
    """The places of the buildings with a road's name and a number."""
    number = tables.roads.filter(pl.col("name") == road)["road"].item()
    key = pl.select(building_key(*(pl.lit(value) for value in (number, 0, main, sub)))).item()
    return (tables.building_key == key).arg_true().to_list()


def test_a_building_is_found_by_its_road_and_number_with_all_that_is_known_of_it(full: Path) -> None:
    report, tables = build(full)
    assert tables.regions.rows() == [(0, "세종특별자치시", "")]
    assert tables.dongs.select("emd", "ri", "code").rows() == [
        ("반곡동", "", 3611010100),
        ("조치원읍", "원리", 3611025021),
    ]
    assert tables.roads["name"].to_list() == ["세종로", "한누리대로"]
    assert tables.admins.select("name", "dong").rows() == [("반곡동", 0), ("조치원읍", 1)]
    (place,) = places(tables, "한누리대로", 1811)
    assert tables.building_zip[place] == 30145
    assert tables.building_apartment[place] is True
    assert tables.building_name[place] == "수루배마을5단지 상가동"
    assert tables.building_name.to_list().count("왕관빌딩") == 1
    assert (report.buildings, report.roads, report.additional_lots, report.provinces) == (
        3,
        2,
        1,
        {"세종특별자치시": 3},
    )


def test_an_additional_lot_leads_to_its_building_and_never_replaces_the_representative_one(full: Path) -> None:
    put(full / "jibun_rnaddrkor_sejong.txt", lot_row(1820, "0|46|2"), lot_row(1820, "0|862|0"))
    _, tables = build(full)
    (place,) = places(tables, "한누리대로", 1820)
    for main, sub, representative in ((862, 0, True), (46, 2, False)):
        key = pl.select(lot_key(*(pl.lit(value) for value in (0, 0, main, sub)))).item()
        found = (tables.lots["key"] == key).arg_true().to_list()
        assert [tables.lots["building"][at] for at in found] == [place]
        assert [tables.lots["representative"][at] for at in found] == [representative]


def test_keys_are_sorted_and_repeat_where_two_roads_of_a_district_have_one_name(tmp_path: Path) -> None:
    other = row(1811, road_code="361102000003", zipcode="30999")
    _, tables = build(tmp_path, put(tmp_path / "rnaddrkor_sejong.txt", row(1811), row(3), other))
    assert tables.building_key.is_sorted()
    assert [tables.building_zip[place] for place in places(tables, "한누리대로", 1811)] == [30145, 30999]


def test_a_number_too_large_for_a_key_has_none() -> None:
    keys = pl.select(
        *(building_key(*(pl.lit(part) for part in (1, 0, main, 0))).alias(str(main)) for main in (7, 131072))
    )
    assert keys.row(0) == ((1 << 36) + (7 << 17), None)


def test_a_road_is_compared_without_spaces_and_dots() -> None:
    assert pl.select(compact_name(pl.lit("３·1만세 로 2.8길"))).item() == "31만세로28길"


@pytest.mark.parametrize("where", ["zip", "nested folder", "zip in a folder"])
def test_the_download_is_read_as_it_is(full: Path, tmp_path_factory: pytest.TempPathFactory, where: str) -> None:
    """A zip, its folder unpacked, or a folder of zips: the same gazetteer, and other files are passed over."""
    folder = tmp_path_factory.mktemp("download")
    readme = put(full / "읽어주세요.txt", "안내문")
    if where == "nested folder":
        for path in full.glob("*.txt"):
            put(folder / "202306" / "전체분" / path.name, path.read_bytes().decode("cp949").rstrip("\n"))
        source = folder
    else:
        with ZipFile(folder / "202306_도로명주소 한글_전체분.zip", "w") as archive:
            for path in full.glob("*.txt"):
                archive.write(path, f"전체분/{path.name}")
        source = folder if where == "zip in a folder" else folder / "202306_도로명주소 한글_전체분.zip"
    found, tables = build(folder, source)
    readme.unlink()
    assert tables.building_key.to_list() == build(full)[1].building_key.to_list()
    assert found.version.startswith("2023-06-30-")
    assert [name.split(": ")[-1].split("/")[-1] for name in found.passed_over] == ["읽어주세요.txt"]


def test_names_of_zip_members_are_read_as_korean_zips_write_them() -> None:
    assert shown_name("rnaddrkor_서울.txt".encode("cp949").decode("cp437")) == "rnaddrkor_서울.txt"


def test_the_same_file_twice_is_read_once(full: Path) -> None:
    with ZipFile(full / "all.zip", "w") as archive:
        archive.write(full / "rnaddrkor_sejong.txt", "rnaddrkor_sejong.txt")
    report, _ = build(full)
    assert report.buildings == 3
    assert report.duplicates == 0


def test_a_repeated_row_counts_once(tmp_path: Path) -> None:
    report, _ = build(tmp_path, put(tmp_path / "rnaddrkor_sejong.txt", row(1), row(1), row(2)))
    assert (report.buildings, report.duplicates) == (2, 1)


def test_quotation_marks_are_part_of_a_name(tmp_path: Path) -> None:
    _, tables = build(tmp_path, put(tmp_path / "rnaddrkor_sejong.txt", row(1, building='"가"동'), row(2, building='"')))
    assert sorted(tables.building_name.to_list()) == ['"', '"가"동']


def test_windows_line_ends_and_a_last_line_without_end_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rnaddrkor_sejong.txt"
    path.write_bytes(f"{row(1, building='끝')}\r\n{row(2)}".encode("cp949"))
    report, tables = build(tmp_path, path)
    assert report.buildings == 2
    assert tables.building_name.drop_nulls().to_list() == ["끝"]


def test_blocks_smaller_than_the_file_give_the_same(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(full)[0].version
    monkeypatch.setattr("bansong.reference.address_files.BLOCK", 50)
    assert build(full)[0].version == whole


def test_the_same_files_give_the_same_bytes(full: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    build(full)
    first = (full / "out.parquet").read_bytes()
    other = tmp_path_factory.mktemp("other") / "again.parquet"
    bs.build_gazetteer([full / "jibun_rnaddrkor_sejong.txt", full / "rnaddrkor_sejong.txt"], other)
    assert other.read_bytes() == first


def test_names_are_those_of_today(tmp_path: Path) -> None:
    """A file of 2022 says 강원도 and 경상북도 군위군; the gazetteer says what is written today."""
    gangwon = row(1, sido="강원도", sigungu="춘천시", emd="효자동", dong="4211010100", road_code="421102000001")
    gunwi = row(2, sido="경상북도", sigungu="군위군", emd="군위읍", dong="4772025001", road_code="477202000001")
    _, tables = build(tmp_path, put(tmp_path / "rnaddrkor_all.txt", gangwon, gunwi))
    assert tables.regions.select("sido", "sigungu").rows() == [
        ("강원특별자치도", "춘천시"),
        ("대구광역시", "군위군"),
    ]


# Postal files


@pytest.mark.parametrize("encoding", ["utf-8-sig", "cp949"])
def test_the_postal_file_alone_gives_buildings(tmp_path: Path, encoding: str) -> None:
    put(tmp_path / "세종특별자치시.txt", POSTAL_HEADER, postal_row(7, building="우체국"), encoding=encoding)
    report, tables = build(tmp_path)
    (place,) = places(tables, "한누리대로", 7)
    assert (tables.building_zip[place], tables.building_name[place]) == (30145, "우체국")
    assert report.read == {"postal": 1}


def test_beside_the_agencys_file_the_postal_one_only_adds_names(full: Path) -> None:
    put(
        full / "세종특별자치시.txt",
        POSTAL_HEADER,
        postal_row(1811, building="다른 이름", zipcode="99999"),
        postal_row(1820, building="다른 이름"),
        postal_row(99),
    )
    put(full / "rnaddrkor_sejong.txt", row(1811), row(1820, register="왕관빌딩"), row(1830))
    report, tables = build(full)
    named = dict(zip(tables.building_zip.to_list(), tables.building_name.to_list(), strict=True))
    assert report.buildings == 3
    assert sorted(tables.building_name.drop_nulls()) == ["다른 이름", "왕관빌딩"]
    assert 99999 not in named
    assert report.notes[0].startswith("the postal files gave 1 names of buildings")


# Daily changes


def daily(folder: Path, day: str, *lines: str, lots: tuple[str, ...] = ("No Data",)) -> None:
    """The zip of one day, as it is published."""
    with ZipFile(folder / f"{day}_dailyjusukrdata.zip", "w") as archive:
        for name, body in (("MST", lines), ("LNBR", lots)):
            text = "".join(f"{line}\n" for line in body)
            archive.writestr(f"AlterD.JUSUKR.{day}.TH_SGCO_RNADR_{name}.TXT", text.encode("cp949"))


def test_daily_changes_are_applied_in_the_order_of_their_days(full: Path) -> None:
    daily(full, "20230703", row(1820, reason="63"), row(1811, zipcode="30300", reason="34"))
    daily(full, "20230701", row(1811, zipcode="30200", reason="35"), row(1, reason="31"), row(9, reason="33"))
    daily(full, "20230702", row(9, reason="64"), row(404, reason="63"))
    report, tables = build(full)
    assert not places(tables, "한누리대로", 1820)
    assert not places(tables, "한누리대로", 9)
    assert places(tables, "한누리대로", 1)
    assert tables.building_zip[places(tables, "한누리대로", 1811)[0]] == 30300
    assert report.changes == {
        "inserted": 1,
        "updated": 1,
        "deleted": 1,
        "deleted but not there": 2,
        "of other provinces": 0,
    }
    assert report.additional_lots == 0, "the lot of a building that went goes with it"
    assert report.version.startswith("2023-07-03-")


def test_the_day_of_changes_may_be_in_the_name_of_their_folder(full: Path) -> None:
    """Three days of which the first and the last are the same, byte for byte: the last word is the last day's."""
    for day, reason in (("20230701", "31"), ("20230702", "63"), ("20230703", "31")):
        put(full / f"AlterD.JUSUKR.{day}.MatchingTable" / "TH_SGCO_RNADR_MST.TXT", row(9, reason=reason))
    report, tables = build(full)
    assert places(tables, "한누리대로", 9)
    assert report.version.startswith("2023-07-03-")


def test_changes_of_additional_lots_are_applied(full: Path) -> None:
    lots = (lot_row(1820, "0|46|2", reason="63"), lot_row(1811, "0|46|9", reason="31"))
    daily(full, "20230701", "No Data", lots=lots)
    report, tables = build(full)
    assert report.additional_lots == 1
    more = tables.lots["key"].filter(~tables.lots["representative"])
    assert more.to_list() == [(46 << 17) + 9]


def test_changes_of_other_provinces_do_not_make_them_look_covered(full: Path) -> None:
    seoul = row(
        1, sido="서울특별시", sigungu="중구", emd="명동", dong="1114012700", reason="31", road_code="111402000001"
    )
    daily(full, "20230701", seoul)
    report, _ = build(full)
    assert report.provinces == {"세종특별자치시": 3}
    assert report.changes["of other provinces"] == 1


def test_a_day_without_changes_says_no_data(full: Path) -> None:
    daily(full, "20230701", "No Data")
    assert build(full)[0].buildings == 3


def test_changes_older_than_the_full_set_are_pointed_out(full: Path) -> None:
    daily(full, "20180101", row(1811, reason="34"))
    assert "are older than the buildings of 2018-12-04" in build(full)[0].notes[0]


def test_changes_alone_are_no_gazetteer(tmp_path: Path) -> None:
    daily(tmp_path, "20230701", row(1, reason="31"))
    with pytest.raises(GazetteerError, match=r"no file with buildings was given, only changes, lot changes; give"):
        build(tmp_path)


# The map of administrative dongs


def test_the_official_map_adds_administrative_dongs_that_are_in_force(full: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(["행정동코드", "시도명", "시군구명", "읍면동명", "법정동코드", "동리명", "생성일자", "말소일자"])
    sheet.append(["3611055600", "세종특별자치시", None, "반곡제1.2동", "3611010100", "반곡동", "20200101", None])
    sheet.append(["3611055600", "세종특별자치시", None, "옛동", "3611010100", "반곡동", "20100101", "20200101"])
    sheet.append(["3611025000", "세종특별자치시", None, "조치원읍", "3611025021", "원리", "20120701", None])
    book.save(full / "KIKmix.20230501.xlsx")
    _, tables = build(full)
    assert tables.admins.select("name", "dong").rows() == [("반곡동", 0), ("반곡제12동", 0), ("조치원읍", 1)]


# Bad input


def test_a_truncated_file_is_named_with_its_last_line(tmp_path: Path) -> None:
    path = put(tmp_path / "rnaddrkor_sejong.txt", row(1), row(2), row(3)[:60])
    with pytest.raises(GazetteerError, match=r"rnaddrkor_sejong.txt, line 3: \d+ columns instead of 24 .*truncated"):
        build(tmp_path, path)


def test_a_line_of_other_columns_is_named(tmp_path: Path) -> None:
    """Also where a line with too few stands beside one with too many, so that the sum is right."""
    long, short = row(2) + "||", row(3).removesuffix("||") + "x"
    path = put(tmp_path / "rnaddrkor_sejong.txt", row(1), long, short.rsplit("|", 1)[0], row(4))
    with pytest.raises(GazetteerError, match=r"rnaddrkor_sejong.txt, line 2: 26 columns instead of 24"):
        build(tmp_path, path)


def test_a_file_of_other_columns_is_not_taken_for_its_name(tmp_path: Path) -> None:
    path = put(tmp_path / "rnaddrkor_sejong.txt", lot_row(1, "0|1|1"))
    with pytest.raises(GazetteerError, match=r"line 1: 14 columns instead of 24"):
        build(tmp_path, path)


def test_an_empty_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = put(tmp_path / "rnaddrkor_sejong.txt", row(1), "", row(2))
    with pytest.raises(GazetteerError, match=r"line 2: 1 columns instead of 24"):
        build(tmp_path, path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_file_in_utf8_is_refused(tmp_path: Path, encoding: str) -> None:
    path = put(tmp_path / "rnaddrkor_sejong.txt", row(1), row(2), encoding=encoding)
    with pytest.raises(GazetteerError, match=r"rnaddrkor_sejong.txt, line 1: is UTF-8, but the official file is CP949"):
        build(tmp_path, path)


def test_a_byte_that_is_no_cp949_is_named_with_its_line(tmp_path: Path) -> None:
    path = put(tmp_path / "rnaddrkor_sejong.txt", row(1), row(2), row(3))
    path.write_bytes(path.read_bytes().replace(b"|2|0|", b"|2\xff|0|"))
    with pytest.raises(GazetteerError, match=r"rnaddrkor_sejong.txt, line 2: the byte 0xff is not CP949"):
        build(tmp_path, path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GazetteerError, match=r"rnaddrkor_sejong.txt: holds no rows"):
        build(tmp_path, put(tmp_path / "rnaddrkor_sejong.txt"))


def test_a_province_in_two_files_is_refused(full: Path) -> None:
    put(full / "202307" / "rnaddrkor_sejong.txt", row(1))
    with pytest.raises(
        GazetteerError, match=r"세종특별자치시 is in two files, .*rnaddrkor_sejong.txt and .*; give each"
    ):
        build(full)


def test_additional_lots_of_a_province_in_two_files_are_refused(full: Path) -> None:
    put(full / "202307" / "jibun_rnaddrkor_sejong.txt", lot_row(1811, "0|46|2"))
    with pytest.raises(GazetteerError, match=r"district 36110 is in two files, .*/jibun_rnaddrkor_sejong.txt and"):
        build(full)


def test_an_additional_lot_may_lie_in_the_next_province(full: Path) -> None:
    """As those of a housing estate on a border; that district is then not given twice."""
    put(full / "rnaddrkor_daejeon.txt", row(9, sido="대전광역시", sigungu="유성구", dong="3020014400", emd="금고동"))
    across = lot_row(1820, "0|5|0", dong="3020014400", emd="금고동").replace("세종특별자치시|", "대전광역시|유성구")
    put(full / "jibun_rnaddrkor_sejong.txt", across)
    own = row(9, dong="3020014400").split("|")[0]
    beside = lot_row(9, "0|6|0", dong="3020014400", emd="금고동").replace("세종특별자치시|", "대전광역시|유성구")
    put(full / "jibun_rnaddrkor_daejeon.txt", own + beside[len(own) :])
    report, tables = build(full)
    assert report.additional_lots == 2
    assert tables.dongs.join(tables.regions, on="region").filter(pl.col("emd") == "금고동")["sido"].to_list() == [
        "대전광역시"
    ]


def test_additional_lots_without_their_buildings_are_refused(full: Path) -> None:
    path = put(full / "jibun_rnaddrkor_sejong.txt", *(lot_row(number, "0|1|1") for number in range(100, 120)))
    with pytest.raises(
        GazetteerError, match=rf"{path.name}: 20 of 20 additional lots belong to buildings that no file"
    ):
        build(full)


def test_single_bad_rows_are_left_out_and_listed(tmp_path: Path) -> None:
    bad = [
        row(1, zipcode="3014"),
        row(2).replace("|2|0|", "|2의1|0|"),
        row(3, reason="63"),
        row(4, road=""),
        row(5).replace("36110", "3611O", 1),
        row(6, lot="7|1|1"),
    ]
    path = put(tmp_path / "rnaddrkor_sejong.txt", *bad, row(7))
    report, tables = build(tmp_path, path)
    assert report.buildings == 1
    assert report.refused == {
        "postal code": 1,
        "management number": 1,
        "building number": 1,
        "known move reason": 1,
        "road name": 1,
        "mountain sign": 1,
    }
    assert report.examples[0].endswith("rnaddrkor_sejong.txt, line 1: '3014' is no postal code")
    assert report.examples[1].endswith("rnaddrkor_sejong.txt, line 2: '2의1-0' is no building number")
    assert len(report.examples) == 6
    assert tables.building_key.len() == 1


def test_a_file_with_many_bad_rows_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "rnaddrkor_sejong.txt", row(1), *(row(number, zipcode="12") for number in range(2, 30)))
    with pytest.raises(
        GazetteerError, match=r"28 of 29 rows cannot be used.*the first: line 2: '12' is no postal code"
    ):
        build(tmp_path, path)


def test_a_damaged_zip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "full.zip"
    with ZipFile(path, "w") as archive:
        archive.writestr("rnaddrkor_sejong.txt", row(1).encode("cp949"))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(GazetteerError, match=r"full.zip: the zip is damaged or cut off"):
        build(tmp_path, path)


def test_a_zip_within_a_zip_is_pointed_out(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.writestr("202306.zip", b"PK")
    with pytest.raises(GazetteerError, match=r"202306\.zip\); a zip within a zip is not opened: unpack"):
        build(tmp_path, tmp_path / "outer.zip")


def test_two_wrong_lines_do_not_make_up_for_each_other(tmp_path: Path) -> None:
    """One column too many here and one too few there: the sum is right, both rows are wrong."""
    path = put(tmp_path / "rnaddrkor_sejong.txt", row(1), f"{row(2)}|", row(3).rsplit("|", 1)[0], row(4))
    with pytest.raises(GazetteerError, match=r"line 2: 25 columns instead of 24"):
        build(tmp_path, path)


def test_a_file_that_ends_within_a_character_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rnaddrkor_sejong.txt"
    path.write_bytes(f"{row(1)}\n{row(2)}\n".encode("cp949") + row(3).encode("cp949").split(b"|3611010100|")[0])
    path.write_bytes(path.read_bytes() + "|3611010100|세".encode("cp949")[:-1])
    with pytest.raises(GazetteerError, match=r"line 3: its last line is cut off within a character.*download it again"):
        build(tmp_path, path)


def test_a_file_without_line_ends_is_refused_before_it_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zip of a megabyte may unfold to gigabytes of one line."""
    monkeypatch.setattr("bansong.reference.address_files.BLOCK", 1 << 17)
    with ZipFile(tmp_path / "full.zip", "w", ZIP_DEFLATED) as archive:
        archive.writestr("rnaddrkor_sejong.txt", f"{row(1)}\n".encode("cp949") + b"0" * (8 << 20))
    read = []
    with pytest.raises(GazetteerError, match=r"line 2: is longer than 65,536 bytes"):
        bs.build_gazetteer([tmp_path], tmp_path / "out.parquet", progress=lambda done, _: read.append(done))
    assert sum(read) == 0


def test_days_without_a_date_have_no_order(full: Path) -> None:
    for name in ("one", "two"):
        put(full / name / "TH_SGCO_RNADR_MST.TXT", row(9, reason="31" if name == "one" else "63"))
    with pytest.raises(GazetteerError, match=r"the order of the daily changes is not known; put it as YYYYMMDD"):
        build(full)


def test_a_source_that_is_none_is_named(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "none.txt", "there is no such file or folder"),
        (put(tmp_path / "list.txt", "a|b"), "is none of the official address files; rnaddrkor_"),
    ):
        with pytest.raises(GazetteerError, match=said):
            build(tmp_path, path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(GazetteerError, match="no official address file was found"):
        build(tmp_path, tmp_path / "empty")


def test_an_output_that_is_no_parquet_or_is_a_source_is_refused(full: Path) -> None:
    with pytest.raises(UsageError, match=r"call it \.parquet"):
        bs.build_gazetteer([full], full / "out.db")
    build(full)
    with pytest.raises(UsageError, match="is one of the sources"):
        bs.build_gazetteer([full / "out.parquet"], full / "out.parquet")


def test_after_an_error_the_old_gazetteer_is_what_it_was(full: Path) -> None:
    build(full)
    before = (full / "out.parquet").read_bytes()
    put(full / "rnaddrkor_sejong.txt", row(1), "cut|off")
    with pytest.raises(GazetteerError):
        build(full)
    assert (full / "out.parquet").read_bytes() == before
    assert not list(full.glob(".bansong-*"))


# Opening


def test_opening_reads_the_footer_only_and_says_what_it_holds(full: Path) -> None:
    report, _ = build(full)
    output = full / "out.parquet"
    data = bytearray(output.read_bytes())
    footer = int.from_bytes(data[-8:-4], "little")
    data[4 : len(data) - 8 - footer] = bytes(len(data) - 12 - footer)
    output.write_bytes(data)
    opened = Gazetteer.open(output)
    assert (opened.version, opened.buildings, opened.about["provinces"]) == (report.version, 3, {"세종특별자치시": 3})
    names = [(source["name"], source["kind"], source["date"]) for source in opened.about["sources"]]
    assert names[0] == ("rnaddrkor_sejong.txt", "buildings", "2018-12-04")
    with pytest.raises(GazetteerError, match="damaged, build it again"):
        opened.check()


def test_an_opened_gazetteer_can_be_sent_to_another_process_and_is_loaded_once(full: Path) -> None:
    build(full)
    opened = Gazetteer.open(full / "out.parquet")
    copy = pickle.loads(pickle.dumps(opened))
    assert copy == opened
    assert copy.tables is opened.tables
    opened.check()


def test_a_gazetteer_that_is_replaced_while_in_use_is_not_mixed_with_the_new_one(full: Path) -> None:
    _, tables = build(full)
    put(full / "rnaddrkor_sejong.txt", row(1))
    (full / "jibun_rnaddrkor_sejong.txt").unlink()
    bs.build_gazetteer([full], full / "out.parquet")
    with pytest.raises(GazetteerError, match=r"was replaced by version .* open it again"):
        tables.lots["key"]


def test_a_changed_bit_is_noticed_when_the_section_is_read(full: Path) -> None:
    """A postal code with another digit would be an authority for a wrong one."""
    _, tables = build(full)
    right = (tables.building_zip.to_list(), tables.roads.rows(), tables.lots["key"].to_list())
    output = full / "out.parquet"
    whole = output.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little")
    for place in range(4, len(whole) - 8 - footer, 41):
        output.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with suppress(GazetteerError):
            tables = Tables(Gazetteer.open(output))
            assert (tables.building_zip.to_list(), tables.roads.rows(), tables.lots["key"].to_list()) == right


STEPS = pytest.mark.parametrize("step", [151, pytest.param(37, marks=pytest.mark.fuzz)])
"""Every how many bytes one is changed."""


@STEPS
def test_a_damaged_footer_is_an_error_and_no_defect(full: Path, step: int) -> None:
    """The footer has no checksum of its own: whatever a byte in it becomes, what is read is right or refused."""
    _, tables = build(full)
    right = (tables.building_zip.to_list(), tables.roads.rows(), tables.lots["key"].to_list())
    output = full / "out.parquet"
    whole = output.read_bytes()
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    about = whole.index(b'"sections"')
    for place in [*range(begin, len(whole), step), *range(about, about + 60, step // 12)]:
        for bit in (1, 128):
            output.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            with suppress(GazetteerError):
                tables = Tables(Gazetteer.open(output))
                assert (tables.building_zip.to_list(), tables.roads.rows(), tables.lots["key"].to_list()) == right


@STEPS
def test_a_damaged_footer_hides_no_building_from_a_few_rows(
    full: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The footer says which row groups may hold a key: what it says must be borne out by what is read there."""
    monkeypatch.setattr(gazetteer_builder, "_GROUP", 2)
    _, tables = build(full)
    right = [(place, key) for place, key in enumerate(tables.building_key)]
    output = full / "out.parquet"
    whole = output.read_bytes()
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    refused = 0
    said = [found.start() for _, key in right for found in re.finditer(re.escape(key.to_bytes(8, "little")), whole)]
    bounds = [(place + byte, 1 << bit) for place in said if place >= begin for byte in range(2, 5) for bit in range(8)]
    assert bounds
    for place, bit in [*bounds, *((place, 1) for place in range(begin, len(whole), step))]:
        output.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        for at, key in right:
            asked = pl.Series([key], dtype=pl.UInt64)
            try:
                section = StoredSection(Gazetteer.open(output), "building")
                assert (at, key) in section.between(asked, asked).rows()
                found = section.gather("zipcode", pl.Series([at, None], dtype=pl.UInt32))
                assert found.to_list() == [tables.building_zip[at], None]
            except GazetteerError:
                refused += 1
    assert refused


def test_a_gazetteer_that_is_gone_is_said_to_be_gone(full: Path) -> None:
    build(full)
    opened = Gazetteer.open(full / "out.parquet")
    (full / "out.parquet").unlink()
    with pytest.raises(GazetteerError, match="cannot be read: No such file"):
        opened.check()


def test_what_is_no_gazetteer_says_how_to_make_one(tmp_path: Path) -> None:
    remedy = "build one with: bansong data build-gazetteer"
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("PAR1 no")
    for name, said in (
        ("none", "there is no such gazetteer file"),
        ("other", "is a Parquet file but not a gazetteer"),
        ("text", "is not a gazetteer, or is cut off"),
    ):
        with pytest.raises(GazetteerError, match=f"{name}.parquet: {said}.*{remedy}"):
            Gazetteer.open(tmp_path / f"{name}.parquet")
    pl.DataFrame({"a": [1]}).write_parquet(
        tmp_path / "new.parquet", metadata={"bizverify.gazetteer": json.dumps({"format": 99})}
    )
    with pytest.raises(GazetteerError, match="another format"):
        Gazetteer.open(tmp_path / "new.parquet")


# The command


def test_the_command_reports_what_it_read(full: Path, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    put(full / "rnaddrkor_sejong.txt", row(1), row(1820), row(2, zipcode="x"))
    done = run("data", "build-gazetteer", full, "-o", "g.parquet")
    assert done.returncode == 0, done.stderr
    for part in (
        "buildings 3, lots 1 from 2 file(s)",
        "세종특별자치시 2",
        "no postal code 1",
        "line 3: 'x' is no postal code",
    ):
        assert part in done.stderr
    asked = run("data", "build-gazetteer", full, "-o", "g.parquet", "--json")
    assert json.loads(asked.stdout)["buildings"] == 2
    failed = run("data", "build-gazetteer", full / "none.zip", "-o", "g.parquet")
    assert (failed.returncode, "Traceback" in failed.stderr) == (2, False)


def test_a_real_province_is_whole(shared: Path, tmp_path: Path) -> None:
    """The official file of Sejong: 27,335 buildings, 27,322 distinct roads with number, none refused."""
    report, tables = build(tmp_path, shared / "address" / "rnaddrkor_sejong.txt", *(shared / "address").glob("KIK*"))
    assert (report.buildings, report.refused, report.duplicates) == (27_335, {}, 0)
    assert tables.building_key.n_unique() == 27_322
    assert tables.building_zip.is_between(30_000, 30_999).all()
    assert tables.regions.rows() == [(0, "세종특별자치시", "")]
    assert {"보람동", "대평동", "소담동"} <= set(tables.admins["name"])


# ── known, gone ──────────────────────────────────────────────────────────────────────────────────────────────────────


def asked(folder: Path, *addresses: str) -> list[tuple[str | None, str | None, str | None]]:
    """The match level, the corrected address and the changes of each address, by the gazetteer that was built."""
    frame = pl.LazyFrame(
        {"address": addresses, "zipcode": [None] * len(addresses)}, schema_overrides={"zipcode": pl.String}
    )
    found = attach(frame, Gazetteer.open(folder / "out.parquet"), "en")
    return found.select("match_level", "fixed_address", "changes").collect().rows()


def test_an_abolished_address_is_known_and_never_taken_for_another(full: Path) -> None:
    """What was deleted without a successor is said to be abolished, not to be missing, and is bent into nothing."""
    daily(
        full,
        "20230701",
        row(1820, lot="0|862|0", reason="63"),
        row(12, road="나성로", road_code="361102000009", reason="63"),
    )
    report, _ = build(full)
    assert report.abolished == 2
    assert dict(report.lines())["abolished"] == "2 addresses that are known to be gone"
    assert asked(full, "세종시 한누리대로 1820", "세종시 나성로 12", "세종시 나성로 13", "세종시 한누리대로 1821") == [
        ("abolished", None, "abolished address 한누리대로 1820"),
        ("abolished", None, "abolished address 나성로 12"),
        ("road_only", None, None),
        ("road_only", None, None),
    ]


def test_a_renumbered_building_is_the_successor_of_its_old_address(full: Path) -> None:
    """The same lot on the same day: one address went, one came; written beside the lot, it is that building's, too."""
    new = row(7, road="왕관로", road_code="361102000008", lot="0|862|0", zipcode="30146", reason="31")
    other = row(9, road="왕관로", road_code="361102000008", lot="0|863|0", zipcode="30146", reason="31")
    daily(full, "20230701", row(1820, lot="0|862|0", reason="63"), new, other)
    build(full)
    official = "세종특별자치시 왕관로 7, 3층 (반곡동)"
    assert asked(full, "세종시 한누리대로 1820, 3층", "세종시 반곡동 862") == [
        ("renumbered", official, "abolished address 한누리대로 1820 → 왕관로 7"),
        ("lot_to_road", official.replace(", 3층", ""), "lot 반곡동 862 → 왕관로 7"),
    ]
    beside_lot = asked(full, "세종시 한누리대로 1820 (반곡동 862)", "세종시 한누리대로 1820 (반곡동 863)")
    assert [one[0] for one in beside_lot] == ["renumbered", "ambiguous"]
    assert "왕관로 7" in str(beside_lot[0][1])


RENUMBERED = [
    # address, postal code, whether other words bear out what was repaired besides; None: nothing was
    ("세종특별자치시 한누리대로 1820", None, None),
    ("세종특별자치시 반곡동 한누리대로 1820", "30146", None),
    ("세종 조치원읍 한누리대로 1820", None, False),
    ("세죵특별자치시 한누리대로 1820", None, False),
    ("세종특별자치시 한누리대로 1820", "32530", False),
    ("세죵특별자치시 한누리대로 1820", "30146", True),
]


@pytest.mark.parametrize(("address", "zipcode", "supported"), RENUMBERED)
def test_a_second_repair_beside_the_new_number_needs_support(
    full: Path, address: str, zipcode: str | None, supported: bool | None
) -> None:
    """The agency vouches for the successor, not for a region that was repaired too, nor against the postal code."""
    new = row(7, road="왕관로", road_code="361102000008", lot="0|862|0", zipcode="30146", reason="31")
    daily(full, "20230701", row(1820, lot="0|862|0", reason="63"), new)
    build(full)
    frame = pl.LazyFrame({"address": [address], "zipcode": [zipcode]}, schema_overrides={"zipcode": pl.String})
    found = attach(frame, Gazetteer.open(full / "out.parquet"), "en").collect()
    assert found.select("match_level", "supported").rows() == [("renumbered", supported)]


@pytest.mark.parametrize("later", [("20230702", ["862"]), ("20230701", ["862", "862"]), ("20230701", ["863"])])
def test_no_successor_is_guessed(full: Path, later: tuple[str, list[str]]) -> None:
    """Another day, two new buildings on the lot, or another lot: what came may be anything."""
    day, lots = later
    came = [
        row(7 + place, road="왕관로", road_code="361102000008", lot=f"0|{lot}|0", reason="31")
        for place, lot in enumerate(lots)
    ]
    gone = row(1820, lot="0|862|0", reason="63")
    if day == "20230701":
        daily(full, day, gone, *came)
    else:
        daily(full, "20230701", gone)
        daily(full, day, *came)
    build(full)
    assert asked(full, "세종시 한누리대로 1820")[0][:2] == ("abolished", None)


def test_an_address_that_came_back_is_not_abolished(full: Path) -> None:
    """Deleted on one day and there again on another."""
    daily(full, "20230701", row(1820, lot="0|862|0", reason="63"))
    daily(full, "20230702", row(1820, lot="0|862|0", zipcode="30146", reason="31"))
    report, _ = build(full)
    assert report.abolished == 0
    assert asked(full, "세종특별자치시 한누리대로 1820")[0][0] == "exact"


def test_an_update_that_changes_the_address_leaves_the_old_one_behind(full: Path) -> None:
    """One management number, another road: the building is its own successor."""
    old = row(1820, lot="0|862|0")
    new = row(1820, lot="0|862|0", road="왕관대로", zipcode="30146", reason="34")
    daily(full, "20230701", new.replace(new.split("|")[0], old.split("|")[0]))
    build(full)
    assert asked(full, "세종특별자치시 한누리대로 1820")[0][:2] == (
        "renumbered",
        "세종특별자치시 왕관대로 1820 (반곡동)",
    )


# ── what a gazetteer says of its sources ─────────────────────────────────────────────────────────────────────────────


def test_a_gazetteer_says_of_what_date_and_which_kinds_its_sources_are(full: Path) -> None:
    """The newest date that a file or its rows give, and every kind of file."""
    build(full)
    opened = Gazetteer.open(full / "out.parquet")
    assert opened.source_date == date(2018, 12, 4)
    assert opened.about["kinds"] == ["buildings", "lots"]
    daily(full, "20230703", row(1811, zipcode="30300", reason="34"))
    build(full)
    assert Gazetteer.open(full / "out.parquet").source_date == date(2023, 7, 3)


def test_old_sources_and_missing_lots_are_cautioned_against(full: Path) -> None:
    """Three months are fresh; what is older, or lacks the additional lots, is named with its remedy."""
    build(full)
    opened = Gazetteer.open(full / "out.parquet")
    assert opened.cautions(date(2019, 3, 4)) == ()
    (old,) = opened.cautions(date(2019, 3, 7))
    assert "out.parquet: the gazetteer's addresses are of 2018-12, older than 3 months" in old
    assert "build it again" in old
    (full / "jibun_rnaddrkor_sejong.txt").unlink()
    build(full)
    (lots,) = Gazetteer.open(full / "out.parquet").cautions(date(2019, 1, 1))
    assert "without the files of additional lots" in lots
    assert "jibun_rnaddrkor_*.txt" in lots


def as_earlier_format(path: Path, number: int) -> None:
    """Make of a gazetteer one of format 1, as it was written before 2026-12, or 2."""
    about = json.loads(pq.read_schema(path).metadata[METADATA_KEY.encode()])
    del about["building_codes"]
    later = ["street_code"]
    if number == 1:
        for name in ("source_date", "kinds", "abolished"):
            del about[name]
        del about["sections"]["gone"]
        later.append("several")
    table = pq.ParquetFile(path)
    groups = [table.read_row_group(group).drop_columns(later) for group in range(table.num_row_groups)]
    schema = groups[0].schema.with_metadata({METADATA_KEY: json.dumps(about | {"format": number})})
    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        for group in groups:
            writer.write_table(group.cast(schema))


def test_a_gazetteer_of_the_first_format_still_opens_and_answers(full: Path) -> None:
    """It knows of no abolished addresses and of no date, and cautions against nothing."""
    _, tables = build(full)
    as_earlier_format(full / "out.parquet", 1)
    opened = Gazetteer.open(full / "out.parquet")
    opened.check()
    assert (opened.source_date, opened.cautions(date(2030, 1, 1))) == (None, ())
    assert opened.tables.building_zip.to_list() == tables.building_zip.to_list()
    assert opened.tables.gone_key.is_empty()
    assert asked(full, "세종특별자치시 한누리대로 1811", "세종특별자치시 한누리대로 7")[0][0] == "exact"


def codes_of(path: Path, places: list[int | None]) -> list[str | None]:
    """The official numbers of buildings by their place."""
    opened = Gazetteer.open(path)
    frame = pl.DataFrame({"place": places}, schema={"place": pl.UInt32})
    return frame.select(building_code(opened, pl.col("place"))).to_series().to_list()


@pytest.mark.parametrize("few", [True, False])
def test_the_official_number_of_a_building_is_that_of_the_file(
    full: Path, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 26 digits, whether the gazetteer is in memory or only a part of its file is read; null without a place."""
    monkeypatch.setattr(open_lookups, "FEW", 16 if few else -1)
    build(full)
    written = [line.split("|")[0] for line in (full / "rnaddrkor_sejong.txt").read_text("cp949").splitlines()]
    found = codes_of(full / "out.parquet", [*range(len(written)), None])
    assert found[-1] is None
    assert sorted(map(str, found[:-1])) == sorted(written)
    assert len(written[0]) == 26
    assert Gazetteer.open(full / "out.parquet").about["building_codes"] == len(written)


def test_numbers_that_are_not_made_of_road_and_number_are_none(tmp_path: Path) -> None:
    """Those of the post office's file, and one that contradicts its row: no number is made up for them."""
    other_road = row(1811).replace("2000002001811", "2000003001811", 1)
    put(tmp_path / "rnaddrkor_sejong.txt", other_road, row(1820))
    build(tmp_path)
    assert sorted(codes_of(tmp_path / "out.parquet", [0, 1]), key=str) == ["36110101200000200182000000", None]
    (tmp_path / "postal").mkdir()
    put(tmp_path / "postal" / "zipcode_DB.txt", POSTAL_HEADER, postal_row(1811), encoding="utf-8")
    build(tmp_path / "postal")
    assert codes_of(tmp_path / "postal" / "out.parquet", [0]) == [None]
    assert not Gazetteer.open(tmp_path / "postal" / "out.parquet").has_building_codes


@pytest.mark.parametrize("number", [1, 2])
def test_a_gazetteer_of_an_earlier_format_has_no_building_codes(full: Path, number: int) -> None:
    """It opens, answers, and knows that it has none."""
    build(full)
    as_earlier_format(full / "out.parquet", number)
    opened = Gazetteer.open(full / "out.parquet")
    opened.check()
    assert not opened.has_building_codes
    assert codes_of(full / "out.parquet", [0, None]) == [None, None]
