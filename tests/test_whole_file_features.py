"""What only the whole file tells: many businesses at one address, several addresses of one number."""

from __future__ import annotations

from datetime import date
from itertools import islice
from pathlib import Path

import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import CONTEXT_COLUMNS, RECORD_COLUMNS
from bansong.engine.protocol import LOOKUP
from bansong.engine.records import ALIKE, CROWD, CROWDED, SEVERAL, records, with_cross_row_features
from bansong.purchase.lookups import assess_lookups, lookup_expr, lookups_of
from bansong.tables import frames
from bansong.tables.columns import choose_columns
from bansong.tables.detect import open_table
from bansong.testing import FakeService, Fault, Status
from conftest import NOTHING_CHECKED, write
from customers import QUICK, numbers

OFFICE = "서울특별시 강남구 테헤란로 152, 3층"


def facts(folder: Path, rows: list[tuple[str, str]]) -> pl.DataFrame:
    """The two facts of each row of a file with these numbers and addresses."""
    lines = "\n".join(f'{b_no},"{address}"' for b_no, address in rows)
    with open_table(write(folder / "in.csv", f"사업자번호,주소\n{lines}\n")) as table:
        chosen = choose_columns(table, (*RECORD_COLUMNS, *CONTEXT_COLUMNS)).columns
        found = with_cross_row_features(records(table, chosen)).select(CROWDED, SEVERAL).collect(engine="streaming")
        assert found.height == len(rows)
        return found


def spelled(b_no: str) -> list[str]:
    return [b_no, f"{b_no[:3]}-{b_no[3:5]}-{b_no[5:]}", f"{b_no[:3]} {b_no[3:5]} {b_no[5:]}"]


def test_an_address_is_crowded_where_as_many_businesses_are_as_the_threshold(tmp_path: Path) -> None:
    """However it is spelled, where some spell it alike; a business counts once, wrong numbers and blanks do not."""
    numbered = iter(numbers(12 * CROWD))

    def some(count: int) -> list[str]:
        return [*islice(numbered, count)]

    respelled = ["서울특별시 강남구 테헤란로 152, 3층"] * ALIKE + ["서울특별시 강남구 테헤란로152 3층"] * ALIKE
    respelled += ["서울특별시 강남구 테헤란로 152 (3층)"] * (CROWD - len(respelled))
    wrong = [f"{b_no[:9]}{(int(b_no[9]) + 1) % 10}" for b_no in some(CROWD)]
    once = [*spelled(some(1)[0]) * CROWD, *some(CROWD - 2)]
    cases: dict[str, tuple[list[str], list[str], bool]] = {
        "full": (some(CROWD), ["부산 해운대구 센텀중앙로 97"] * CROWD, True),
        "one fewer": (some(CROWD - 1), ["부산 해운대구 센텀중앙로 98"] * CROWD, False),
        "a business often": (once, ["부산 해운대구 센텀중앙로 99"] * len(once), False),
        "spellings": (some(CROWD), respelled, True),
        "wrong numbers": (wrong, ["부산 해운대구 센텀중앙로 96"] * CROWD, False),
        **{blank: (some(CROWD), [blank] * CROWD, False) for blank in ("서울 강남구 테헤란로 1**", "-", "없음")},
    }
    rows = [(case, *row) for case, (b_nos, texts, _) in cases.items() for row in zip(b_nos, texts, strict=False)]
    found = facts(tmp_path, [row[1:] for row in rows])[CROWDED].fill_null(False)
    by_case = pl.DataFrame({"case": [row[0] for row in rows], "crowded": found})
    said = dict(by_case.group_by("case").agg(pl.col("crowded").unique()).iter_rows())
    assert said == {case: [crowded] for case, (_, _, crowded) in cases.items()}


SAME = [
    *("서울 강남구 테헤란로 152", "강남구 테헤란로 152", "테헤란로152", "서울특별시 강남구", "없음", ""),
    *("(06236) 서울특별시 강남구 테헤란로 152", "서울특별시 강남구 역삼동 737", "서울특별시 강남구 테헤란로 1**"),
    "서울특별시 강남구 테헤란로 152, 3층 301호 (역삼동, 강남파이낸스센터)",
]


def test_a_number_with_two_buildings_or_two_lots_has_several_addresses(tmp_path: Path) -> None:
    """Province, district, postal code, unit, building, the lot beside the road, and blanks make no second address."""
    road, lot = "서울특별시 강남구 테헤란로 152", "서울특별시 강남구 역삼동 737"
    pairs = [(road, "부산광역시 해운대구 센텀중앙로 97, 201호"), (lot, "경기도 수원시 영통구 매탄동 416")]
    pairs += [(road, other) for other in SAME]
    rows = [(spelled(b_no)[way], pair[way]) for b_no, pair in zip(numbers(12), pairs, strict=True) for way in (0, 1)]
    found = facts(tmp_path, rows)[SEVERAL].fill_null(False).to_list()
    assert [text for (_, text), several in zip(rows, found, strict=True) if several] == [*pairs[0], *pairs[1]]


def test_rows_without_a_number_or_an_address_say_nothing(tmp_path: Path) -> None:
    """Where number or address is missing, both facts are null: not known is not a no."""
    one = numbers(1)[0]
    with open_table(write(tmp_path / "in.csv", f"사업자번호,주소\n,부산\n{one},\n{one},부산\n")) as table:
        found = with_cross_row_features(records(table, choose_columns(table, RECORD_COLUMNS).columns))
        assert found.select(CROWDED, SEVERAL).collect().rows() == [(None, None), (None, None), (False, False)]


def test_long_files_keep_facts_with_their_rows(tmp_path: Path) -> None:
    count = 20_000
    crowd = set(range(7, count, 1_999))
    roads = (f"서울특별시 강남구 테헤란로 {place + 1}" for place in range(count))
    named = enumerate(zip(numbers(count), roads, strict=True))
    rows = [(b_no, OFFICE if place in crowd else road) for place, (b_no, road) in named]
    assert len(crowd) >= CROWD
    assert set(facts(tmp_path, rows).with_row_index("row").filter(CROWDED)["row"]) == crowd


def crowd_file(path: Path) -> Path:
    """A crowded address, a number with two addresses, an ordinary row."""
    one, two, *others = numbers(CROWD + 2)
    rows = [(b_no, OFFICE) for b_no in others]
    rows += [
        (one, "대전광역시 서구 둔산로 100"),
        (one, "대전광역시 유성구 대학로 99"),
        (two, "울산광역시 남구 중앙로 201"),
    ]
    lines = [f'{b_no},상사,"{address}",2026-10-01' for b_no, address in rows]
    return write(path, "\n".join(["사업자번호,상호,주소,주소확인일", *lines, ""]))


def reasons(frame: pl.DataFrame) -> list[list[str]]:
    """What goes before the texts of each row's reasons, ``[place +9]``."""
    listed = frame["reasons"].str.split(" | ") if frame.schema["reasons"] == pl.String else frame["reasons"]
    return [[reason.partition("]")[0] + "]" for reason in row] for row in listed]


def test_a_run_tells_crowds_and_second_addresses(tmp_path: Path) -> None:
    report = bs.enrich(crowd_file(tmp_path / "in.csv"), tmp_path / "out.parquet", today=date(2026, 11, 22))
    found = reasons(pl.read_parquet(tmp_path / "out.parquet"))
    assert report.counts["verified"] == len(found) == CROWD + 3
    places = [[reason for reason in row if reason.startswith("[place ")] for row in found]
    assert places == [*[["[place +9]"]] * CROWD, ["[place +10]"], ["[place +10]"], []]
    alone = bs.verify(numbers(1)[0], address=OFFICE)
    assert not any("[place" in reason for reason in alone.reasons)


@NOTHING_CHECKED
def test_a_frame_is_looked_over_as_a_file_is(tmp_path: Path) -> None:
    """verify_frame() knows of crowds, too, also of a lazy frame, whose rows it reads once."""
    frame = pl.read_csv(crowd_file(tmp_path / "in.csv"), infer_schema=False)
    reads = []

    def counted(part: pl.DataFrame) -> pl.DataFrame:
        reads.append(part.height)
        return part

    lazy = frame.lazy().map_batches(counted)
    found = bs.verify_frame(lazy).collect()
    assert sum("[place +9]" in row for row in reasons(found)) == CROWD
    assert sum(reads) == frame.height
    assert found.equals(bs.verify_frame(frame))


def test_what_stands_beside_a_record_counts_where_lookups_are_chosen(tmp_path: Path) -> None:
    """The hybrid engine judges a lookup with all that the local one knows of its rows."""
    with open_table(crowd_file(tmp_path / "in.csv")) as table:
        chosen = choose_columns(table, (*RECORD_COLUMNS, *CONTEXT_COLUMNS)).columns
        rows = with_cross_row_features(records(table, chosen))
        lookups = lookups_of(rows.with_columns(lookup_expr(rows, suspect=False).alias(LOOKUP)))
    card = bs.LocalEngine(today=date(2026, 11, 22))
    full = assess_lookups(lookups, card)["bounce_prob"]
    without = assess_lookups(lookups.drop(CROWDED, SEVERAL), card)["bounce_prob"]
    stale = assess_lookups(lookups.with_columns(confirmed=pl.lit("2020-01-01")), card)["bounce_prob"]
    assert (full > without).to_list() == [True] * (CROWD + 2) + [False]
    assert (stale > full).all()


CONFIRMED = ["주소확인일", "주소 갱신일", "주소변경일자", "최종주소확인일", "고객주소수정일"]
CONFIRMED += ["address_verified_at", "Address updated at"]
OTHER_DAYS = ["최근거래일", "등록일", "가입일", "메일주소변경일", "주소변경여부", "updated_at"]


def test_the_day_on_which_an_address_was_made_sure_of_is_found_and_other_days_are_not(tmp_path: Path) -> None:
    """By its header, or named; its age is a reason. It holds the word for address, and is never taken for one."""
    roles, rows = (*RECORD_COLUMNS, *CONTEXT_COLUMNS), numbers(3)
    found = {}
    for header in (*CONFIRMED, *OTHER_DAYS):
        frame = pl.DataFrame({"사업자번호": rows, header: ["2020-01-05"] * 3})
        found[header] = choose_columns(frames.read(frame), roles).columns
    assert [header for header, chosen in found.items() if "confirmed" in chosen] == CONFIRMED
    assert [header for header, chosen in found.items() if "address" in chosen] == []
    source = write(tmp_path / "in.csv", f"사업자번호,주소,등록일\n{rows[0]},서울 강남구 테헤란로 152,2020-01-05\n")
    for options, told in (({}, False), ({"columns": {"confirmed": "등록일"}}, True)):
        bs.enrich(source, today=date(2026, 11, 22), **options)
        listed = reasons(pl.read_csv(tmp_path / "in.enriched.csv", infer_schema=False))[0]
        assert any(reason.startswith("[freshness ") for reason in listed) is told


@pytest.mark.usefixtures("url")
def test_the_service_is_not_told_what_stands_beside_a_record(tmp_path: Path, service: FakeService) -> None:
    """Neither the day of confirmation nor what the whole file tells leaves the machine, or makes another lookup."""
    asked: list[dict[str, str]] = []
    service.faults.add(Fault("verify", Status(503), when=lambda one: asked.append(one.query()) or False))
    source = crowd_file(tmp_path / "in.csv")
    assert bs.enrich(source, engine="verify", **QUICK).counts["verified"] == CROWD + 3
    assert {name for one in asked for name in one} <= {"b_no", "name", "address"}
    pl.read_csv(source, infer_schema=False).drop("주소확인일").write_csv(tmp_path / "plain.csv")
    assert bs.enrich(tmp_path / "plain.csv", engine="verify", **QUICK).counts["cached"] == CROWD + 3
    bs.enrich(source, engine="batch", max_age=0, **QUICK)
    assert {upload.header for upload in service.uploads} == {b"b_no,name,address"}
