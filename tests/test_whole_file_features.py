"""What only the whole file tells: many businesses at one address, several addresses of one number."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import CONTEXT_COLUMNS, RECORD_COLUMNS
from bansong.engine.records import ALIKE, CROWD, CROWDED, SEVERAL, records, with_cross_row_features
from bansong.purchase.lookups import LOOKUP, assess_lookups, lookup_expr, lookups_of
from bansong.tables.columns import choose_columns
from bansong.tables.detect import open_table
from bansong.testing import FakeService, Fault, Status, serve
from conftest import NOTHING_CHECKED, write

OFFICE = "서울특별시 강남구 테헤란로 152, 3층"
RESPELLED = "서울특별시 강남구 테헤란로152 3층"


def numbers(count: int, first: int = 100_000_000) -> list[str]:
    """Different numbers with right check digits."""
    found = []
    for nine in range(first, first + count):
        digits = [int(digit) for digit in str(nine)]
        total = sum(digit * weight for digit, weight in zip(digits, (1, 3, 7, 1, 3, 7, 1, 3, 5), strict=True))
        found.append(f"{nine}{(10 - (total + digits[8] * 5 // 10) % 10) % 10}")
    return found


def facts(folder: Path, rows: list[tuple[str, str]]) -> pl.DataFrame:
    """The two facts of each row of a file with these numbers and addresses."""
    lines = "\n".join(f'{b_no},"{address}"' for b_no, address in rows)
    with open_table(write(folder / "in.csv", f"사업자번호,주소\n{lines}\n")) as table:
        chosen = choose_columns(table, (*RECORD_COLUMNS, *CONTEXT_COLUMNS)).columns
        found = with_cross_row_features(records(table, chosen)).select(CROWDED, SEVERAL).collect(engine="streaming")
        assert found.height == len(rows)
        return found


def test_an_address_is_crowded_from_the_threshold_on(tmp_path: Path) -> None:
    """As many businesses as the threshold make an address crowded, one fewer do not, and others are left alone."""
    full = [(b_no, OFFICE) for b_no in numbers(CROWD)]
    fewer = [(b_no, "부산광역시 해운대구 센텀중앙로 97") for b_no in numbers(CROWD - 1, 200_000_000)]
    found = facts(tmp_path, [*fewer, *full])
    assert found[CROWDED].to_list() == [False] * (CROWD - 1) + [True] * CROWD


def test_a_business_counts_once_at_its_address(tmp_path: Path) -> None:
    """The same number on many rows, however it is written, is one business."""
    one = numbers(1)[0]
    spelled = [one, f"{one[:3]}-{one[3:5]}-{one[5:]}", f"{one[:3]} {one[3:5]} {one[5:]}"]
    others = numbers(CROWD - 2, 200_000_000)
    found = facts(tmp_path, [*((b_no, OFFICE) for b_no in spelled * CROWD), *((b_no, OFFICE) for b_no in others)])
    assert not found[CROWDED].any()


def test_another_spelling_of_a_crowded_address_is_crowded_too(tmp_path: Path) -> None:
    """Spaces, punctuation, case and width do not make another address, where some businesses spell it alike."""
    written = [OFFICE] * ALIKE + [RESPELLED] * ALIKE
    written += ["서울특별시 강남구 테헤란로 152 (3층)"] * (CROWD - len(written))
    assert len(set(written)) == 3
    found = facts(tmp_path, list(zip(numbers(CROWD), written, strict=True)))
    assert found[CROWDED].all()


def test_numbers_that_are_wrong_make_no_crowd(tmp_path: Path) -> None:
    """A number whose check digit is wrong is no business that could crowd an address."""
    wrong = [f"{b_no[:9]}{(int(b_no[9]) + 1) % 10}" for b_no in numbers(CROWD)]
    assert not facts(tmp_path, [(b_no, OFFICE) for b_no in wrong])[CROWDED].any()


@pytest.mark.parametrize("address", ["서울 강남구 테헤란로 1**", "-", "없음"])
def test_addresses_that_say_nothing_are_no_crowd(tmp_path: Path, address: str) -> None:
    """What stands for a missing address, or hides it, is not an address that many businesses share."""
    assert not facts(tmp_path, [(b_no, address) for b_no in numbers(CROWD)])[CROWDED].any()


def test_a_number_with_two_buildings_has_several_addresses(tmp_path: Path) -> None:
    """Two building numbers are two addresses: every row of the number says so, no other row does."""
    one, two = numbers(2)
    rows = [
        (one, "서울특별시 강남구 테헤란로 152"),
        (two, "서울특별시 강남구 테헤란로 152"),
        (f"{one[:3]}-{one[3:5]}-{one[5:]}", "부산광역시 해운대구 센텀중앙로 97, 201호"),
    ]
    assert facts(tmp_path, rows)[SEVERAL].to_list() == [True, False, True]


@pytest.mark.parametrize(
    "other",
    [
        "서울 강남구 테헤란로 152",
        "강남구 테헤란로 152",
        "테헤란로152",
        "(06236) 서울특별시 강남구 테헤란로 152",
        "서울특별시 강남구 테헤란로 152, 3층 301호 (역삼동, 강남파이낸스센터)",
        "서울특별시 강남구 역삼동 737",
        "서울특별시 강남구 테헤란로 1**",
        "서울특별시 강남구",
        "없음",
        "",
    ],
)
def test_another_way_to_write_an_address_is_not_another_address(tmp_path: Path, other: str) -> None:
    """Province, district, postal code, unit, building, the lot beside the road, and blanks make no second address."""
    one = numbers(1)[0]
    found = facts(tmp_path, [(one, "서울특별시 강남구 테헤란로 152"), (one, other)])
    assert not found[SEVERAL].any()


def test_a_number_with_two_lots_has_several_addresses(tmp_path: Path) -> None:
    """Two lot numbers are two addresses as two building numbers are."""
    one = numbers(1)[0]
    rows = [(one, "서울특별시 강남구 역삼동 737"), (one, "경기도 수원시 영통구 매탄동 416")]
    assert facts(tmp_path, rows)[SEVERAL].to_list() == [True, True]


def test_rows_without_a_number_or_an_address_say_nothing(tmp_path: Path) -> None:
    """Where number or address is missing, both facts are null: not known is not a no."""
    one = numbers(1)[0]
    path = write(tmp_path / "in.csv", f"사업자번호,주소\n,부산\n{one},\n{one},부산\n")
    with open_table(path) as table:
        chosen = choose_columns(table, RECORD_COLUMNS).columns
        found = with_cross_row_features(records(table, chosen))
        known = found.select(CROWDED, SEVERAL).collect()
    assert known[CROWDED].to_list() == [None, None, False]
    assert known[SEVERAL].to_list() == [None, None, False]


def test_without_an_address_column_nothing_is_read(tmp_path: Path) -> None:
    """A file with numbers alone is not gone through a further time."""
    with open_table(write(tmp_path / "in.csv", f"사업자번호\n{numbers(1)[0]}\n")) as table:
        rows = records(table, choose_columns(table, RECORD_COLUMNS).columns)
        assert with_cross_row_features(rows) is rows


def test_long_files_keep_facts_with_their_rows(tmp_path: Path) -> None:
    """Rows that are read in several parts get their own facts, not their neighbours'."""
    count = 60_000
    rows = [(b_no, f"서울특별시 강남구 테헤란로 {place + 1}") for place, b_no in enumerate(numbers(count))]
    crowd = set(range(7, count, 4_999))
    rows = [(b_no, OFFICE if place in crowd else address) for place, (b_no, address) in enumerate(rows)]
    found = facts(tmp_path, rows)
    assert len(crowd) >= CROWD
    assert set(found.with_row_index("row").filter(CROWDED)["row"]) == crowd


def crowd_file(path: Path) -> Path:
    """A list in the format of the path: a crowded address, a number with two addresses, an ordinary row."""
    one, two, *others = numbers(CROWD + 2)
    rows = [(b_no, OFFICE) for b_no in others]
    rows += [
        (one, "대전광역시 서구 둔산로 100"),
        (one, "대전광역시 유성구 대학로 99"),
        (two, "울산광역시 남구 중앙로 201"),
    ]
    frame = pl.DataFrame(rows, schema=["사업자번호", "주소"], orient="row")
    frame = frame.with_columns(상호=pl.lit("상사"), 주소확인일=pl.lit("2026-10-01")).select(
        "사업자번호", "상호", "주소", "주소확인일"
    )
    writers = {
        ".csv": frame.write_csv,
        ".xlsx": frame.write_excel,
        ".json": frame.write_json,
        ".parquet": frame.write_parquet,
    }
    writers[path.suffix](path)
    return path


def reasons(frame: pl.DataFrame) -> list[list[str]]:
    """What goes before the texts of each row's reasons, ``[place +9]``."""
    listed = frame["reasons"].str.split(" | ") if frame.schema["reasons"] == pl.String else frame["reasons"]
    return [[reason.partition("]")[0] + "]" for reason in row] for row in listed]


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".json", ".parquet"])
def test_a_run_tells_crowds_and_second_addresses_in_every_format(tmp_path: Path, suffix: str) -> None:
    """The facts reach the reasons of their own rows, and of no others, whatever the file's format."""
    report = bs.enrich(crowd_file(tmp_path / f"in{suffix}"), tmp_path / "out.parquet", today=date(2026, 11, 22))
    found = reasons(pl.read_parquet(tmp_path / "out.parquet"))
    assert report.counts["verified"] == len(found) == CROWD + 3
    assert [[reason for reason in row if reason.startswith("[place ")] for row in found] == [
        *[["[place +9]"]] * CROWD,
        ["[place +10]"],
        ["[place +10]"],
        [],
    ]


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


def test_one_business_alone_is_no_crowd() -> None:
    """The engine itself looks at one row at a time, and says nothing of crowds unless it is told."""
    found = bs.verify(numbers(1)[0], address=OFFICE)
    assert not any("[place" in reason for reason in found.reasons)


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


def confirmed_in(folder: Path, header: str, **options: Any) -> str | None:
    """The header that a run takes for the day on which the address was made sure of."""
    text = f"사업자번호,상호,주소,{header}\n{numbers(1)[0]},상사,서울특별시 강남구 테헤란로 152,2020-01-05\n"
    report = bs.enrich(write(folder / "in.csv", text), today=date(2026, 11, 22), **options)
    choice = report.columns.get("confirmed")
    told = reasons(pl.read_csv(folder / "in.enriched.csv", infer_schema=False))[0]
    assert any(reason.startswith("[freshness ") for reason in told) == (choice is not None)
    return choice.header if choice else None


@pytest.mark.parametrize(
    "header",
    [
        "주소확인일",
        "주소 갱신일",
        "주소변경일자",
        "최종주소확인일",
        "고객주소수정일",
        "address_verified_at",
        "Address updated at",
    ],
)
def test_the_day_on_which_an_address_was_made_sure_of_is_found(tmp_path: Path, header: str) -> None:
    """Such a column is found by its header, told with the others, and its age is a reason."""
    assert confirmed_in(tmp_path, header) == header


@pytest.mark.parametrize("header", ["최근거래일", "등록일", "가입일", "메일주소변경일", "주소변경여부", "updated_at"])
def test_other_days_do_not_confirm_an_address(tmp_path: Path, header: str) -> None:
    """A sale, a registration, a mail address that changed: none of them says that the address was right."""
    assert confirmed_in(tmp_path, header) is None
    assert confirmed_in(tmp_path, header, columns={"confirmed": header}) == header


def test_a_day_is_never_taken_for_the_address(tmp_path: Path) -> None:
    """주소확인일 holds the word for address and no address: where there is no other column, there is none."""
    source = write(tmp_path / "in.csv", f"사업자번호,주소확인일\n{numbers(1)[0]},2026-01-05\n")
    assert set(bs.enrich(source).columns) == {"b_no", "confirmed"}


@pytest.mark.parametrize("engine", ["batch", "verify"])
def test_the_service_is_not_told_what_stands_beside_a_record(tmp_path: Path, engine: str) -> None:
    """Neither the day of confirmation nor what the whole file tells leaves the machine, or makes another lookup."""
    service, bodies = FakeService("bv_live_0123456789abcdef", quota=100), []
    once = Fault("verify", Status(503), when=lambda asked: bodies.append(asked.query()) or False)
    service.faults.add(once)
    source = crowd_file(tmp_path / "in.csv")
    with serve(service) as url:
        how: dict[str, Any] = {
            "base_url": url,
            "api_key": bs.ApiKey("bv_live_0123456789abcdef"),
            "rate": 1e5,
            "poll": 0.01,
        }
        report = bs.enrich(source, engine=engine, **how)
        assert report.counts["verified"] == CROWD + 3
        plain = pl.read_csv(source, infer_schema=False).drop("주소확인일")
        plain.write_csv(tmp_path / "plain.csv")
        again = bs.enrich(tmp_path / "plain.csv", engine=engine, **how)
    assert again.counts["cached"] == CROWD + 3
    if engine == "batch":
        assert {upload.header for upload in service.uploads} == {b"b_no,name,address"}
    else:
        assert {name for body in bodies for name in body} <= {"b_no", "name", "address"}
        assert len(bodies) >= CROWD + 3
