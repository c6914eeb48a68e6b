"""The gazetteer: what is read from the official files, what is refused, and that opening it is cheap."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import openpyxl
import polars as pl
import pyarrow.parquet as pq
import pytest

import bansong as bs
from bansong.engine.address import lookups as open_lookups
from bansong.engine.address.attach import building_code
from bansong.engine.address.gazetteer import METADATA_KEY, Gazetteer, StoredSection, Tables, building_key, lot_key
from bansong.errors import GazetteerError, UsageError
from bansong.reference import gazetteer as gazetteer_builder
from bansong.reference.gazetteer import GazetteerReport
from gazetteers import matched, put, row
from golden_cases import cases, check

NAME = "rnaddrkor_sejong.txt"
POSTAL_HEADER = (
    "우편번호|시도|시도영문|시군구|시군구영문|읍면|읍면영문|도로명코드|도로명|도로명영문|지하여부|건물번호본번|건물번호부번|건물관리번호|"
    "다량배달처명|시군구용건물명|법정동코드|법정동명|리명|행정동명|산여부|지번본번|읍면동일련번호|지번부번|구우편번호|우편번호일련번호"
)
DAEJEON: dict[str, Any] = {"sido": "대전광역시", "sigungu": "유성구", "dong": "3020014400", "emd": "금고동"}


def lot_row(number: int, lot: str, *, dong: str = "3611010100", emd: str = "반곡동", reason: str = "") -> str:
    key = row(number).split("|")[0]
    return f"{key}|{dong}|세종특별자치시||{emd}||{lot}|361102000002|0|{number}|0|{reason}"


def postal_row(number: int, *, building: str = "", zipcode: str = "30145") -> str:
    return (
        f"{zipcode}|세종특별자치시|Sejong|||||361102000002|한누리대로|Hannuri-daero|0|{number}|0|"
        f"36110101001004700010{number:05d}||{building}|3611010100|반곡동||반곡동|0|47|01|1||"
    )


def daily(folder: Path, day: str, *lines: str, lots: tuple[str, ...] = ("No Data",)) -> None:
    """The zip of one day, as it is published."""
    with ZipFile(folder / f"{day}_dailyjusukrdata.zip", "w") as archive:
        for name, body in (("MST", lines), ("LNBR", lots)):
            text = "".join(f"{line}\n" for line in body)
            archive.writestr(f"AlterD.JUSUKR.{day}.TH_SGCO_RNADR_{name}.TXT", text.encode("cp949"))


def refused(call: Callable[[], object], kind: type[bs.BansongError] = GazetteerError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return caught.value.code.removeprefix("gazetteer.")


def build(folder: Path, *sources: Path) -> tuple[GazetteerReport, Tables]:
    output = folder / "out.parquet"
    report = bs.build_gazetteer(sources or [folder], output)
    return report, Gazetteer.open(output).tables


def make_full(folder: Path) -> Path:
    won = {"road": "세종로", "road_code": "361103000189", "dong": "3611025021", "emd": "조치원읍", "ri": "원리"}
    put(
        folder / NAME,
        row(1811, building="수루배마을5단지 상가동", apartment=1),
        row(1820, lot="0|862|0", zipcode="30146", register="왕관빌딩"),
        row(5, **won, admin="조치원읍"),
    )
    put(folder / f"jibun_{NAME}", lot_row(1820, "0|46|2"))
    return folder


@pytest.fixture
def full(tmp_path: Path) -> Path:
    return make_full(tmp_path)


def places(tables: Tables, road: str, main: int, sub: int = 0) -> list[int]:
    number = tables.roads.filter(pl.col("name") == road)["road"].item()
    key = pl.select(building_key(*(pl.lit(value) for value in (number, 0, main, sub)))).item()
    return (tables.building_key == key).arg_true().to_list()


def test_a_building_is_found_by_its_road_and_lots_with_all_that_is_known_of_it(full: Path) -> None:
    put(full / f"jibun_{NAME}", lot_row(1820, "0|46|2"), lot_row(1820, "0|862|0"))
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
    assert (report.buildings, report.roads, report.additional_lots) == (3, 2, 1)
    assert report.provinces == {"세종특별자치시": 3}
    (place,) = places(tables, "한누리대로", 1820)
    for main, sub, representative in ((862, 0, True), (46, 2, False)):
        key = pl.select(lot_key(*(pl.lit(value) for value in (0, 0, main, sub)))).item()
        lots = tables.lots.filter(pl.col("key") == key)
        assert lots.select("building", "representative").rows() == [(place, representative)]


@pytest.mark.parametrize("where", ["zip", "nested folder", "zip in a folder"])
def test_the_download_is_read_as_it_is(full: Path, tmp_path_factory: pytest.TempPathFactory, where: str) -> None:
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


def test_the_same_files_give_the_same_bytes_whatever_their_order_and_the_blocks_they_are_read_in(
    full: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(full)
    first = (full / "out.parquet").read_bytes()
    with ZipFile(full / "all.zip", "w") as archive:
        archive.write(full / NAME, NAME)
    other = tmp_path_factory.mktemp("other") / "again.parquet"
    monkeypatch.setattr("bansong.reference.address_files.BLOCK", 50)
    report = bs.build_gazetteer([full / f"jibun_{NAME}", full / NAME], other)
    assert other.read_bytes() == first
    assert (report.buildings, report.duplicates) == (build(full)[0].buildings, 0) == (3, 0)


def test_rows_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / NAME
    lines = [row(1, building='"가"동'), row(1, building='"가"동'), row(2, building='"')]
    path.write_bytes("\r\n".join(lines).encode("cp949"))
    report, tables = build(tmp_path, path)
    assert (report.buildings, report.duplicates) == (2, 1)
    assert sorted(tables.building_name.to_list()) == ['"', '"가"동']


def test_names_are_those_of_today(tmp_path: Path) -> None:
    gangwon = row(1, sido="강원도", sigungu="춘천시", emd="효자동", dong="4211010100", road_code="421102000001")
    gunwi = row(2, sido="경상북도", sigungu="군위군", emd="군위읍", dong="4772025001", road_code="477202000001")
    _, tables = build(tmp_path, put(tmp_path / "rnaddrkor_all.txt", gangwon, gunwi))
    regions = tables.regions.select("sido", "sigungu").rows()
    assert regions == [("강원특별자치도", "춘천시"), ("대구광역시", "군위군")]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "cp949"])
def test_the_postal_file_alone_gives_buildings_without_official_numbers(tmp_path: Path, encoding: str) -> None:
    put(tmp_path / "세종특별자치시.txt", POSTAL_HEADER, postal_row(7, building="우체국"), encoding=encoding)
    report, tables = build(tmp_path)
    (place,) = places(tables, "한누리대로", 7)
    assert (tables.building_zip[place], tables.building_name[place]) == (30145, "우체국")
    assert report.read == {"postal": 1}
    assert codes_of(tmp_path / "out.parquet", [place]) == [None]
    assert not Gazetteer.open(tmp_path / "out.parquet").has_building_codes


def test_beside_the_agencys_file_the_postal_one_only_adds_names(full: Path) -> None:
    names = {"building": "다른 이름"}
    postal = [postal_row(1811, **names, zipcode="99999"), postal_row(1820, **names), postal_row(99)]
    put(full / "세종특별자치시.txt", POSTAL_HEADER, *postal)
    put(full / NAME, row(1811), row(1820, register="왕관빌딩"), row(1830))
    report, tables = build(full)
    assert report.buildings == 3
    assert sorted(tables.building_name.drop_nulls()) == ["다른 이름", "왕관빌딩"]
    assert 99999 not in tables.building_zip.to_list()
    assert report.notes[0].startswith("the postal files gave 1 names of buildings")


def test_the_official_map_adds_administrative_dongs_that_are_in_force(full: Path) -> None:
    book = openpyxl.Workbook()
    for line in (
        ["행정동코드", "시도명", "시군구명", "읍면동명", "법정동코드", "동리명", "생성일자", "말소일자"],
        ["3611055600", "세종특별자치시", None, "반곡제1.2동", "3611010100", "반곡동", "20200101", None],
        ["3611055600", "세종특별자치시", None, "옛동", "3611010100", "반곡동", "20100101", "20200101"],
        ["3611025000", "세종특별자치시", None, "조치원읍", "3611025021", "원리", "20120701", None],
    ):
        book.active.append(line)
    book.save(full / "KIKmix.20230501.xlsx")
    _, tables = build(full)
    assert tables.admins.select("name", "dong").rows() == [("반곡동", 0), ("반곡제12동", 0), ("조치원읍", 1)]


def test_an_additional_lot_may_lie_in_the_next_province(full: Path) -> None:
    put(full / "rnaddrkor_daejeon.txt", row(9, **DAEJEON))
    dong, own = {name: DAEJEON[name] for name in ("dong", "emd")}, row(9, dong="3020014400").split("|")[0]
    across, beside = (
        lot_row(number, f"0|{lot}|0", **dong).replace("세종특별자치시|", "대전광역시|유성구")
        for number, lot in ((1820, 5), (9, 6))
    )
    put(full / f"jibun_{NAME}", across)
    put(full / "jibun_rnaddrkor_daejeon.txt", own + beside[len(own) :])
    report, tables = build(full)
    assert report.additional_lots == 2
    there = tables.dongs.join(tables.regions, on="region").filter(pl.col("emd") == "금고동")
    assert there["sido"].to_list() == ["대전광역시"]


def test_daily_changes_are_applied_in_the_order_of_their_days(full: Path) -> None:
    daily(full, "20230703", row(1820, reason="63"), row(1811, zipcode="30300", reason="34"))
    lots = (lot_row(1811, "0|46|9", reason="31"),)
    daily(
        full, "20230701", row(1811, zipcode="30200", reason="35"), row(1, reason="31"), row(9, reason="33"), lots=lots
    )
    seoul = {"sido": "서울특별시", "sigungu": "중구", "emd": "명동", "dong": "1114012700", "road_code": "111402000001"}
    daily(full, "20230702", row(9, reason="64"), row(404, reason="63"), row(1, **seoul, reason="31"))
    report, tables = build(full)
    assert [len(places(tables, "한누리대로", number)) for number in (1820, 9, 1)] == [0, 0, 1]
    assert tables.building_zip[places(tables, "한누리대로", 1811)[0]] == 30300
    counts = {"inserted": 1, "updated": 1, "deleted": 1, "deleted but not there": 2, "of other provinces": 1}
    assert report.changes == counts | {"lots changed": 1}
    assert report.provinces == {"세종특별자치시": 3}, "a change of another province does not make it look covered"
    lots_left = tables.lots.filter(~pl.col("representative"))["key"].to_list()
    assert lots_left == [(46 << 17) + 9], "the lot of a building that went goes with it"
    assert report.version.startswith("2023-07-03-")


def test_the_day_of_changes_may_be_in_the_name_of_their_folder(full: Path) -> None:
    """Three days of which the first and the last are the same, byte for byte: the last word is the last day's."""
    for day, reason in (("20230701", "31"), ("20230702", "63"), ("20230703", "31")):
        put(full / f"AlterD.JUSUKR.{day}.MatchingTable" / "TH_SGCO_RNADR_MST.TXT", row(9, reason=reason))
    report, tables = build(full)
    assert places(tables, "한누리대로", 9)
    assert report.version.startswith("2023-07-03-")


def test_changes_older_than_the_full_set_are_pointed_out(full: Path) -> None:
    daily(full, "20180101", row(1811, reason="34"))
    assert "are older than the buildings of 2018-12-04" in build(full)[0].notes[0]


CROWN: dict[str, Any] = {"road": "왕관로", "road_code": "361102000008", "zipcode": "30146"}
NASEONG: dict[str, Any] = {"road": "나성로", "road_code": "361102000009"}


def test_an_abolished_address_leads_to_its_successor_or_nowhere(tmp_path: Path) -> None:
    went = {number: f"0|{number - 958}|0" for number in (1820, 1830, 1840, 1850, 1860, 1870)}
    put(
        tmp_path / NAME,
        row(1811),
        row(12, **NASEONG),
        row(14, **NASEONG),
        *(row(n, lot=lot) for n, lot in went.items()),
    )
    update = row(1870, lot=went[1870], road="왕관대로", reason="34")
    daily(
        tmp_path,
        "20230701",
        *(row(number, lot=lot, reason="63") for number, lot in went.items() if number != 1870),
        row(12, **NASEONG, reason="63"),
        row(7, **CROWN, lot=went[1820], reason="31"),
        row(9, **CROWN, lot="0|863|0", reason="31"),
        *(row(number, **CROWN, lot=went[1840], reason="31") for number in (21, 23)),
        row(25, **CROWN, lot="0|899|0", reason="31"),
        update,
    )
    daily(tmp_path, "20230702", row(31, **CROWN, lot=went[1830], reason="31"), row(1860, lot=went[1860], reason="31"))
    report, _ = build(tmp_path)
    assert report.abolished == 6
    assert dict(report.lines())["abolished"] == "6 addresses that are known to be gone"
    asked = cases("moved_addresses.csv").select("address", "zipcode", "why")
    found = matched(Gazetteer.open(tmp_path / "out.parquet"), asked.drop("why").rows())
    check("moved_addresses.csv", found.with_columns(asked["why"]), inputs=2)


def zipped(path: Path, **members: bytes) -> Path:
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def cut_zip(folder: Path) -> None:
    path = zipped(folder / "full.zip", **{NAME: row(1).encode("cp949")})
    path.write_bytes(path.read_bytes()[:40])


def damaged_byte(folder: Path) -> None:
    path = put(folder / NAME, row(1), row(2), row(3))
    path.write_bytes(path.read_bytes().replace(b"|2|0|", b"|2\xff|0|"))


def cut_character(folder: Path) -> None:
    whole = put(folder / NAME, row(1), row(2), row(3)).read_bytes()
    (folder / NAME).write_bytes(whole[: whole.rindex("세종특별자치시".encode("cp949")) + 1])


def undated(folder: Path) -> None:
    for name in ("one", "two"):
        put(make_full(folder) / name / "TH_SGCO_RNADR_MST.TXT", row(9, reason="31" if name == "one" else "63"))


REFUSED: dict[str, tuple[Callable[[Path], object], str, dict[str, object]]] = {
    "a truncated last line": (lambda to: put(to / NAME, row(1), row(3)[:60]), "column_count_wrong", {"first": 2}),
    # the sum of both lines' columns is right
    "two wrong lines": (
        lambda to: put(to / NAME, row(1), f"{row(2)}|", row(3).rsplit("|", 1)[0], row(4)),
        "column_count_wrong",
        {"first": 2, "columns": 25},
    ),
    "an empty line": (lambda to: put(to / NAME, row(1), "", row(2)), "column_count_wrong", {"first": 2}),
    "utf-8": (lambda to: put(to / NAME, row(1), encoding="utf-8"), "source_not_cp949", {}),
    "no cp949": (damaged_byte, "source_byte_invalid", {"line": 2, "byte": 255}),
    "an empty file": (lambda to: put(to / NAME), "source_file_empty", {}),
    "cut off within a character": (cut_character, "source_cut_off", {"line": 3}),
    "many bad rows": (
        lambda to: put(to / NAME, row(1), *(row(number, zipcode="12") for number in range(2, 30))),
        "source_rows_unusable",
        {"bad": 28, "rows": 29},
    ),
    "a province twice": (lambda to: put(make_full(to) / "202307" / NAME, row(1)), "district_given_twice", {}),
    "lots without buildings": (
        lambda to: put(make_full(to) / f"jibun_{NAME}", *(lot_row(number, "0|1|1") for number in range(100, 120))),
        "lots_without_buildings",
        {"orphans": 20},
    ),
    "changes alone": (lambda to: daily(to, "20230701", row(1, reason="31")), "building_files_missing", {}),
    "days without a date": (undated, "date_not_named", {}),
    "a damaged zip": (cut_zip, "zip_unreadable", {}),
    "a zip within a zip": (lambda to: zipped(to / "outer.zip", **{"202306.zip": b"PK"}), "address_files_missing", {}),
    "no address file": (lambda to: put(to / "list.txt", "a|b"), "address_files_missing", {}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_official_file_or_is_damaged_is_refused_by_name_and_line(tmp_path: Path, what: str) -> None:
    make, code, fields = REFUSED[what]
    make(tmp_path)
    with pytest.raises(GazetteerError) as caught:
        build(tmp_path)
    assert caught.value.code == f"gazetteer.{code}"
    assert fields.items() <= caught.value.fields.items()
    assert not (tmp_path / "out.parquet").exists()


def test_single_bad_rows_are_left_out_and_listed(tmp_path: Path) -> None:
    bad = {
        "postal code": row(1, zipcode="3014"),
        "building number": row(2).replace("|2|0|", "|2의1|0|"),
        "known move reason": row(3, reason="63"),
        "road name": row(4, road=""),
        "management number": row(5).replace("36110", "3611O", 1),
        "mountain sign": row(6, lot="7|1|1"),
    }
    report, tables = build(tmp_path, put(tmp_path / NAME, *bad.values(), row(7)))
    assert (report.buildings, tables.building_key.len()) == (1, 1)
    assert report.refused == dict.fromkeys(bad, 1)
    assert [example.split(", line ")[1][0] for example in report.examples] == [*"123456"]
    assert report.examples[1].endswith("rnaddrkor_sejong.txt, line 2: '2의1-0' is no building number")


def test_a_file_without_line_ends_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zip of a megabyte may unfold to gigabytes of one line."""
    monkeypatch.setattr("bansong.reference.address_files.BLOCK", 1 << 17)
    zipped(tmp_path / "full.zip", **{NAME: f"{row(1)}\n".encode("cp949") + b"0" * (8 << 20)})
    read: list[int] = []
    build_it = partial(bs.build_gazetteer, [tmp_path], tmp_path / "out.parquet")
    assert refused(lambda: build_it(progress=lambda done, _: read.append(done))) == "source_line_too_long"
    assert sum(read) == 0


def test_a_source_that_is_none_and_an_output_that_cannot_be_are_named(full: Path) -> None:
    for path in (full / "none.txt", put(full / "list.txt", "a|b")):
        with pytest.raises(GazetteerError, match=path.name):
            build(full, path)
    outputs = {"out.db": "output_not_parquet", NAME.replace("txt", "parquet"): "output_is_source"}
    for name, code in outputs.items():
        assert (
            refused(lambda name=name: bs.build_gazetteer([full / NAME, full / name], full / name), UsageError) == code
        )


def test_after_an_error_the_old_gazetteer_is_what_it_was(full: Path) -> None:
    build(full)
    before = (full / "out.parquet").read_bytes()
    put(full / NAME, row(1), "cut|off")
    with pytest.raises(GazetteerError):
        build(full)
    assert (full / "out.parquet").read_bytes() == before
    assert not list(full.glob(".bansong-*"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_full(tmp_path_factory.mktemp("built"))
    build(folder)
    return folder / "out.parquet"


def footer_of(data: bytes | bytearray) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def test_opening_reads_the_footer_only_and_says_what_it_holds(built: Path, tmp_path: Path) -> None:
    data, path = bytearray(built.read_bytes()), tmp_path / "g.parquet"
    data[4 : footer_of(data)] = bytes(footer_of(data) - 4)
    path.write_bytes(data)
    opened = Gazetteer.open(path)
    assert (opened.version, opened.buildings) == (Gazetteer.open(built).version, 3)
    assert opened.about["provinces"] == {"세종특별자치시": 3}
    names = [(source["name"], source["kind"], source["date"]) for source in opened.about["sources"]]
    assert (NAME, "buildings", "2018-12-04") in names
    assert refused(opened.check) == "gazetteer_damaged"


def test_an_opened_gazetteer_can_be_sent_to_another_process_and_is_loaded_once(built: Path) -> None:
    opened = Gazetteer.open(built)
    copy = pickle.loads(pickle.dumps(opened))
    assert copy == opened
    assert copy.tables is opened.tables
    opened.check()


def test_a_gazetteer_that_is_replaced_or_gone_while_in_use_is_not_mixed_with_the_new_one(full: Path) -> None:
    _, tables = build(full)
    put(full / NAME, row(1))
    (full / f"jibun_{NAME}").unlink()
    bs.build_gazetteer([full], full / "out.parquet")
    assert refused(lambda: tables.lots) == "gazetteer_replaced"
    opened = Gazetteer.open(full / "out.parquet")
    (full / "out.parquet").unlink()
    assert refused(opened.check) == "gazetteer_unreadable"


def test_a_changed_bit_is_noticed_when_the_section_is_read(built: Path, tmp_path: Path) -> None:
    """A postal code with another digit would be an authority for a wrong one; the footer has no checksum of its own."""
    tables, whole, path = Gazetteer.open(built).tables, built.read_bytes(), tmp_path / "g.parquet"
    right = (tables.building_zip.to_list(), tables.roads.rows(), tables.lots["key"].to_list())
    about, step = whole.index(b'"sections"'), 401
    for place in [*range(4, len(whole) - 8, step), *range(about, about + 60, step // 12)]:
        for bit in (1, 128):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            with suppress(GazetteerError):
                tables = Tables(Gazetteer.open(path))
                assert (tables.building_zip.to_list(), tables.roads.rows(), tables.lots["key"].to_list()) == right


def test_a_damaged_footer_hides_no_building_from_a_few_rows(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The footer says which row groups may hold a key: what it says must be borne out by what is read there."""
    monkeypatch.setattr(gazetteer_builder, "_GROUP", 2)
    _, tables = build(full)
    at, key, output = 0, tables.building_key[0], full / "out.parquet"
    asked = pl.Series([key], dtype=pl.UInt64)
    whole, refused, begin = output.read_bytes(), 0, footer_of(output.read_bytes())
    keys = [re.escape(one.to_bytes(8, "little")) for one in tables.building_key]
    said = [found.start() for one in keys for found in re.finditer(one, whole)]
    bounds = [(place + byte, bit) for place in said if place >= begin for byte in range(2, 5) for bit in (1, 32)]
    assert bounds
    for place, bit in [*bounds, *((place, 1) for place in range(begin, whole.index(METADATA_KEY.encode()), 37))]:
        output.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            section = StoredSection(Gazetteer.open(output), "building")
            assert (at, key) in section.between(asked, asked).rows()
            found = section.gather("zipcode", pl.Series([at, None], dtype=pl.UInt32))
            assert found.to_list() == [tables.building_zip[at], None]
        except GazetteerError:
            refused += 1
    assert refused


def test_what_is_no_gazetteer_is_refused(tmp_path: Path) -> None:
    path, text = tmp_path / "other.parquet", tmp_path / "text.parquet"
    text.write_text("PAR1 no")
    newer = {"bizverify.gazetteer": json.dumps({"format": 99})}
    for metadata, code in ((None, "not_gazetteer"), (newer, "format_not_supported")):
        pl.DataFrame({"a": [1]}).write_parquet(path, metadata=metadata)
        assert refused(lambda: Gazetteer.open(path)) == code
    assert refused(lambda: Gazetteer.open(tmp_path / "none.parquet")) == "gazetteer_missing"
    assert refused(lambda: Gazetteer.open(text)) == "not_parquet"


def test_old_sources_and_missing_lots_are_cautioned_against(full: Path) -> None:
    build(full)
    opened = Gazetteer.open(full / "out.parquet")
    assert (opened.source_date, opened.about["kinds"]) == (date(2018, 12, 4), ["buildings", "lots"])
    assert opened.cautions(date(2019, 3, 4)) == ()
    (old,) = opened.cautions(date(2019, 3, 7))
    assert "addresses are of 2018-12, older than 3 months" in old
    (full / f"jibun_{NAME}").unlink()
    daily(full, "20230703", row(1811, zipcode="30300", reason="34"))
    build(full)
    opened = Gazetteer.open(full / "out.parquet")
    assert opened.source_date == date(2023, 7, 3)
    (lots,) = opened.cautions(date(2023, 8, 1))
    assert "without the files of additional lots" in lots


def as_earlier_format(source: Path, path: Path, number: int) -> None:
    """Make of a gazetteer one of format 1, as it was written before 2026-12, or 2."""
    about = json.loads(pq.read_schema(source).metadata[METADATA_KEY.encode()])
    del about["building_codes"]
    later = ["street_code"]
    if number == 1:
        for name in ("source_date", "kinds", "abolished"):
            del about[name]
        del about["sections"]["gone"]
        later.append("several")
    table = pq.ParquetFile(source)
    groups = [table.read_row_group(group).drop_columns(later) for group in range(table.num_row_groups)]
    schema = groups[0].schema.with_metadata({METADATA_KEY: json.dumps(about | {"format": number})})
    with pq.ParquetWriter(path, schema, write_page_checksum=True) as writer:
        for group in groups:
            writer.write_table(group.cast(schema))


@pytest.mark.parametrize("number", [1, 2])
def test_a_gazetteer_of_an_earlier_format_still_opens_and_answers(built: Path, tmp_path: Path, number: int) -> None:
    path = tmp_path / "g.parquet"
    as_earlier_format(built, path, number)
    opened = Gazetteer.open(path)
    opened.check()
    if number == 1:
        assert (opened.source_date, opened.cautions(date(2030, 1, 1))) == (None, ())
        assert opened.tables.gone_key.is_empty()
    assert opened.tables.building_zip.equals(Gazetteer.open(built).tables.building_zip)
    asked = [("세종특별자치시 한누리대로 1811", None), ("세종특별자치시 한누리대로 7", None)]
    assert matched(opened, asked)["match_level"].to_list() == ["exact", "road_only"]
    assert not opened.has_building_codes
    assert codes_of(path, [0, None]) == [None, None]


def codes_of(path: Path, places: list[int | None]) -> list[str | None]:
    frame = pl.DataFrame({"place": places}, schema={"place": pl.UInt32})
    return frame.select(building_code(Gazetteer.open(path), pl.col("place"))).to_series().to_list()


@pytest.mark.parametrize("few", [16, -1])
def test_official_numbers_are_those_of_the_file(tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 26 digits, from memory or a part of the file; null without a place, or if it contradicts its row."""
    monkeypatch.setattr(open_lookups, "FEW", few)
    other_road = row(1811).replace("2000002001811", "2000003001811", 1)
    build(tmp_path, put(tmp_path / NAME, other_road, row(1820), row(5)))
    found = codes_of(tmp_path / "out.parquet", [0, 1, 2, None])
    assert sorted(map(str, found)) == [*(row(number).split("|")[0] for number in (5, 1820)), "None", "None"]
    assert Gazetteer.open(tmp_path / "out.parquet").about["building_codes"] == 2
