"""Outputs that people worked in: enriched again, or replaced by the next run."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import HEADERS, Alert
from conftest import NINE, SAMPLE, write

KOREAN = [HEADERS["ko"][name] for name in NINE]
KNOWN: dict[str, Any] = {"registry": SAMPLE / "registry.parquet"}
CORRECTING = KNOWN | {"gazetteer": SAMPLE / "gazetteer.parquet"}  # most of a small run's cost, so only where needed
STALE = "hold"


def read(path: Path) -> pl.DataFrame:
    if path.suffix == ".csv":
        return pl.read_csv(path, infer_schema=False)
    if path.suffix == ".parquet":
        return pl.read_parquet(path)
    if path.suffix == ".json":
        return pl.read_json(path)
    header, *rows = openpyxl.load_workbook(path).worksheets[0].iter_rows(values_only=True)
    cells = [[None if cell is None else str(cell) for cell in row] for row in rows]
    return pl.DataFrame(cells, schema=[*map(str, header)], orient="row")


def save(frame: pl.DataFrame, path: Path) -> Path:
    if path.suffix == ".csv":
        frame.write_csv(path)
    elif path.suffix == ".parquet":
        frame.write_parquet(path)
    elif path.suffix == ".json":
        frame.write_json(path)
    else:
        book = openpyxl.Workbook()
        for row in (frame.columns, *frame.rows()):
            book.active.append(row)
        book.save(path)
    return path


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """The sample enriched, with corrected addresses."""
    out = tmp_path_factory.mktemp("corrected") / "out.csv"
    bs.enrich(SAMPLE / "customers.csv", out, **CORRECTING)
    return read(out)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pl.DataFrame]:
    """The sample enriched, with Korean headers where asked for."""
    made: dict[str, pl.DataFrame] = {}

    def of(headers: str) -> pl.DataFrame:
        if headers not in made:
            out = tmp_path_factory.mktemp("first") / "out.csv"
            bs.enrich(SAMPLE / "customers.csv", out, headers=headers, **KNOWN)
            made[headers] = read(out)
        return made[headers]

    return of


def moved(frame: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    return frame.select(names[3], names[2], *(name for name in frame.columns if name not in names[2:4]))


def deleted(frame: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    return frame.drop(names[1], names[6], names[8])


def inserted(frame: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    place = frame.columns.index(names[4])
    memo = pl.Series("내 메모", [f"통화 {row}" for row in range(frame.height)])
    return frame.insert_column(place, memo)


@pytest.mark.parametrize("edit", [moved, deleted, inserted])
@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".json", ".parquet"])
@pytest.mark.parametrize("headers", ["en", "ko"])
def test_our_columns_are_replaced_wherever_they_stand(
    tmp_path: Path,
    first: Callable[[str], pl.DataFrame],
    edit: Callable[[pl.DataFrame, list[str]], pl.DataFrame],
    suffix: str,
    headers: str,
) -> None:
    """No stale verdict stays, nothing gets a suffix, and the user's cells are those that they were."""
    if headers == "ko" and suffix in (".json", ".parquet"):
        pytest.skip("Korean headers are for CSV files and workbooks")
    names = KOREAN if headers == "ko" else NINE
    whole = first(headers)
    edited = edit(whole.clone(), names)
    action = names[3]
    stale = edited.with_columns(pl.lit(STALE if headers == "en" else "보류").alias(action))
    source = save(stale, tmp_path / f"edited{suffix}")
    report = bs.enrich(source, tmp_path / f"again{suffix}", **KNOWN)
    again = read(tmp_path / f"again{suffix}")
    assert not [name for name in again.columns if "_bv" in name]
    assert again.columns[: len(edited.columns)] == edited.columns or suffix == ".json"
    assert sorted(again.columns) == sorted({*edited.columns, *names})
    assert again[action].cast(pl.String).to_list() == whole[action].to_list()
    own = [name for name in edited.columns if name not in names]
    before = read(source)
    assert again.select(own).equals(before.select(own))
    assert report.replaced["action"] == whole[action].ne_missing(stale[action]).sum()
    assert report.as_dict()["replaced"] == dict(report.replaced)


def test_a_changed_verdict_and_address_are_counted_and_told(tmp_path: Path, corrected: pl.DataFrame) -> None:
    """Somebody made calls and typed what they learned into our columns, the status too: the report says so."""
    row = pl.int_range(pl.len())
    edited = corrected.with_columns(
        pl.when(row < 3).then(pl.lit("전화함")).otherwise("action").alias("action"),
        pl.when(row < 2).then(pl.lit("서울특별시 중구 세종대로 110")).otherwise("fixed_address").alias("fixed_address"),
        pl.when(row < 4).then(pl.lit("suspended")).otherwise("biz_status").alias("biz_status"),
    )
    assert corrected["biz_status"].head(4).is_in(["suspended"]).sum() == 0
    report = bs.enrich(save(edited, tmp_path / "edited.csv"), tmp_path / "again.csv", **CORRECTING)
    assert report.replaced == {"biz_status": 4, "action": 3, "fixed_address": 2}
    assert isinstance(report.warnings[0], Alert)
    same = bs.enrich(tmp_path / "again.csv", tmp_path / "third.csv", **CORRECTING)
    assert not same.replaced
    assert read(tmp_path / "third.csv").equals(corrected)


def test_a_grade_of_the_users_own_outlives_the_loss_of_ours(
    tmp_path: Path, first: Callable[[str], pl.DataFrame]
) -> None:
    """A company grades its customers A to E; `grade_bv` was deleted from the output, and theirs is no verdict."""
    frame = first("en").drop("grade")
    theirs = pl.Series("grade", ["ABCDE"[row * 7 % 5] for row in range(frame.height)])
    edited = frame.insert_column(1, theirs)
    bs.enrich(save(edited, tmp_path / "edited.csv"), tmp_path / "again.csv", **KNOWN)
    again = read(tmp_path / "again.csv")
    assert again["grade"].to_list() == theirs.to_list()
    assert again["grade_bv"].to_list() == first("en")["grade"].to_list()


def write_columns(path: Path, columns: list[pl.Series]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([column.name for column in columns])
        writer.writerows(zip(*(column.to_list() for column in columns), strict=True))
    return path


def read_columns(path: Path) -> list[tuple[str, list[str]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        header, *rows = csv.reader(file)
    return [(name, [row[place] for row in rows]) for place, name in enumerate(header)]


OWN_WORDS = {
    "biz_status": ["open", "정상"],
    "bounce_prob": ["높음", "낮음"],
    "grade": ["VIP", "일반"],
    "action": ["전화", "방문"],
    "fixed_zipcode": ["3층", "후문"],
    "fixed_address": ["주소 다시 물어보기", "이사했다고 함"],
    "reasons": ["고객 요청", "담당자 변경"],
    "row_status": ["완료", "진행"],
    "row_note": ["통화 1", "통화 2"],
}


@pytest.mark.parametrize(("lang", "prefix"), [("en", ""), ("ko", "bv ")])
@pytest.mark.parametrize("name", NINE)
def test_a_users_own_column_outlives_the_loss_of_ours(tmp_path: Path, lang: str, name: str, prefix: str) -> None:
    """The input has a column of that name; ours was written beside it, and somebody deleted ours."""
    title = f"{prefix}{HEADERS[lang][name]}"
    own = read(SAMPLE / "customers.csv")
    cells = (OWN_WORDS[name] * own.height)[: own.height]
    own.insert_column(own.width, pl.Series(title, cells)).write_csv(tmp_path / "in.csv")
    options: dict[str, Any] = KNOWN | {"prefix": prefix}
    bs.enrich(tmp_path / "in.csv", tmp_path / "first.csv", headers=lang, **options)
    first = read(tmp_path / "first.csv")
    save(first.drop(f"{title}_bv"), tmp_path / "edited.csv")
    report = bs.enrich(tmp_path / "edited.csv", tmp_path / "again.csv", **options)
    again = read(tmp_path / "again.csv")
    assert again[title].to_list() == cells
    assert again[f"{title}_bv"].equals(first[f"{title}_bv"])
    assert sorted(again.columns) == sorted(first.columns)
    assert any(isinstance(one, Alert) and f"{title}_bv" in one for one in report.warnings)
    bs.enrich(tmp_path / "again.csv", tmp_path / "third.csv", **options)
    assert read(tmp_path / "third.csv").equals(again)


MEMOS = {
    "fixed_address": lambda row: "서울특별시 중구 세종대로 110" if row % 9 == 0 else "",
    "fixed_zipcode": lambda row: "04524" if row % 9 == 0 else "",
    "grade": lambda row: "ABCDE"[row * 7 % 5],
    "row_note": lambda row: f"통화 {row}" if row % 9 == 0 else "",
}


@pytest.mark.parametrize("place", [0, 8, -1])
@pytest.mark.parametrize("ours_too", [True, False])
@pytest.mark.parametrize("name", MEMOS)
def test_a_memo_that_looks_like_ours_stays(
    tmp_path: Path, first: Callable[[str], pl.DataFrame], name: str, ours_too: bool, place: int
) -> None:
    """Addresses, postal codes, grades and notes of a person's own, in a Korean output under our header."""
    title, whole = HEADERS["ko"][name], first("ko")
    cells = [MEMOS[name](row) for row in range(whole.height)]
    at = place % whole.width
    columns = [column for column in whole.get_columns() if ours_too or column.name != title]
    columns.insert(at, pl.Series(title, cells))
    bs.enrich(write_columns(tmp_path / "edited.csv", columns), tmp_path / "again.csv", **KNOWN)
    again = read_columns(tmp_path / "again.csv")
    assert again[at] == (title, cells)
    ours = [found for where, (header, found) in enumerate(again) if header.startswith(title) and where != at]
    assert ours == [whole[title].fill_null("").to_list()]
    assert len([header for header, _ in again if header.endswith("_bv")]) == (not ours_too)


def test_grades_that_differ_where_the_probability_is_one_are_the_users(tmp_path: Path) -> None:
    rows = "\n".join(f"124-81-00998,가나{row},서울 중구 세종대로 {row}" for row in range(1, 31))
    bs.enrich(write(tmp_path / "in.csv", f"사업자번호,상호,주소\n{rows}\n"), tmp_path / "first.csv")
    whole = read(tmp_path / "first.csv").with_columns(bounce_prob=pl.lit("0.02"))
    grades = [letter for letter in "ABCDE" for _ in range(6)]
    save(whole.with_columns(grade=pl.Series(grades)), tmp_path / "edited.csv")
    bs.enrich(tmp_path / "edited.csv", tmp_path / "again.csv")
    assert read(tmp_path / "again.csv")["grade"].to_list() == grades


def test_a_few_typed_cells_make_no_column_of_ours_a_users(tmp_path: Path, corrected: pl.DataFrame) -> None:
    """Somebody filtered the output, corrected one grade in ten, typed addresses and verdicts, and sorted it."""
    row = pl.int_range(pl.len())
    typed = {"grade": "E", "action": "전화함", "fixed_address": "종로구 어딘가", "biz_status": "폐업했다고 함"}
    edited = corrected.with_columns(
        pl.when(row % 10 == place).then(pl.lit(cell)).otherwise(name).alias(name)
        for place, (name, cell) in enumerate(typed.items())
    )
    edited = edited.filter(row % 3 != 0).sort("action", "grade")
    bs.enrich(save(edited, tmp_path / "edited.csv"), tmp_path / "again.csv", **CORRECTING)
    assert read(tmp_path / "again.csv").columns == edited.columns


def test_probabilities_in_percent_are_ours(tmp_path: Path, first: Callable[[str], pl.DataFrame]) -> None:
    """A spreadsheet saves them as it shows them."""
    percent = (pl.col("bounce_prob").cast(pl.Float64) * 100).round(1).cast(pl.String) + "%"
    save(first("en").with_columns(percent.alias("bounce_prob")), tmp_path / "edited.csv")
    bs.enrich(tmp_path / "edited.csv", tmp_path / "again.csv", **KNOWN)
    assert read(tmp_path / "again.csv").equals(first("en"))


@pytest.mark.parametrize("lang", ["en", "ko"])
@pytest.mark.parametrize("name", ["bounce_prob", "reasons"])
@pytest.mark.parametrize("is_ours_there", [True, False])
def test_notes_under_a_header_of_ours_outlive_the_next_run(
    tmp_path: Path, first: Callable[[str], pl.DataFrame], lang: str, name: str, is_ours_there: bool
) -> None:
    """Probabilities and reasons have one form; notes have another, beside our column and without it."""
    title = HEADERS[lang][name]
    frame = first(lang)
    notes = [f"메모 {row}" for row in range(frame.height)]
    columns = [column for column in frame.get_columns() if is_ours_there or column.name != title]
    path = tmp_path / "edited.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([title, *(column.name for column in columns)])
        writer.writerows(zip(notes, *(column.to_list() for column in columns), strict=True))
    bs.enrich(path, tmp_path / "again.csv", **KNOWN)
    with (tmp_path / "again.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert [row[0] for row in rows] == notes
    assert header[0] == title


@pytest.mark.parametrize(
    "columns",
    [
        {"grade": "A", "action": "send", "status": "open"},
        {"grade": "B", "action": "hold", "reasons": "고객 요청", "row_note": "VIP"},
        {"조치": "발송", "처리 상태": "완료", "처리 메모": "메모"},
        {"bounced": "true", "bounce_reason": "이사", "bounced_at": "2026-01-01", "grade": "A"},
    ],
)
@pytest.mark.parametrize("headers", ["en", "ko"])
def test_a_list_that_never_was_an_output_keeps_its_columns(
    tmp_path: Path, columns: dict[str, str], headers: str
) -> None:
    """Columns that happen to be called like ours stay as they are, in every run."""
    names, cells = ",".join(columns), ",".join(columns.values())
    source = write(tmp_path / "in.csv", f"사업자번호,{names}\n124-81-00998,{cells}\n220-81-62517,{cells}\n")
    for run in range(3):
        bs.enrich(source, tmp_path / f"{run}.csv", headers=headers)
        source = tmp_path / f"{run}.csv"
        found = read(source)
        assert found.columns[: len(columns) + 1] == ["사업자번호", *columns]
        assert found.select([*columns]).rows() == [tuple(columns.values())] * 2
        assert len(found.columns) == len(columns) + 10


def test_a_verdict_that_an_older_version_left_behind_is_replaced_too(
    tmp_path: Path, first: Callable[[str], pl.DataFrame]
) -> None:
    """It wrote `action_bv` beside a stale `action` where one of our columns was missing."""
    whole = first("en")
    stale = whole.drop("reasons").with_columns(pl.lit(STALE).alias("action"))
    both = pl.concat([stale, whole.select(pl.col(name).alias(f"{name}_bv") for name in NINE)], how="horizontal")
    for suffix in (".csv", ".xlsx", ".json", ".parquet"):
        bs.enrich(save(both, tmp_path / f"both{suffix}"), tmp_path / f"again{suffix}", **KNOWN)
        again = read(tmp_path / f"again{suffix}")
        assert sorted(again.columns) == sorted(both.columns)
        assert again["action"].to_list() == again["action_bv"].to_list() == whole["action"].to_list()


def test_extra_columns_and_outcomes_are_replaced_where_they_stand(tmp_path: Path) -> None:
    """A memo between them, and one of them deleted."""
    options: dict[str, Any] = KNOWN | {"extra_columns": ["duplicate_of", "match_level"]}
    bs.enrich(SAMPLE / "customers.csv", tmp_path / "first.csv", with_outcomes=True, **options)
    whole = read(tmp_path / "first.csv")
    edited = whole.with_columns(pl.lit("none").alias("match_level"), pl.lit("2020-01-01").alias("bounced_at"))
    edited = edited.insert_column(whole.columns.index("match_level"), pl.lit("메모").alias("메모")).drop("bounced")
    bs.enrich(save(edited, tmp_path / "edited.csv"), tmp_path / "again.csv", with_outcomes=True, **KNOWN)
    again = read(tmp_path / "again.csv")
    assert sorted(again.columns) == sorted([*edited.columns, "bounced"])
    assert again["match_level"].equals(whole["match_level"])
    assert again["bounced_at"].null_count() == again.height


# ── the output of the run before ─────────────────────────────────────────────────────────────────────────────────


def test_notes_in_an_output_outlive_the_next_run(tmp_path: Path, run: Callable[..., CompletedProcess[str]]) -> None:
    """What staff wrote into ``NAME.enriched.xlsx`` is kept beside it, once for each time, and told."""
    out, rows = tmp_path / "customers.enriched.xlsx", []
    (tmp_path / "customers.xlsx").write_bytes((SAMPLE / "customers.xlsx").read_bytes())
    assert run("enrich", "customers.xlsx").returncode == 0
    assert json_of_run(run("enrich", "customers.xlsx", "--json"))["kept"] == {}
    for times in (1, 2):
        book = openpyxl.load_workbook(out)
        book.active.cell(2, 30, f"전화함 {times}")
        book.save(out)
        rows.append(out.read_bytes())
        found = run("enrich", "customers.xlsx", "--json")
        copy = tmp_path / f"customers.enriched.xlsx.bak{'' if times == 1 else times}"
        told = json_of_run(found)
        assert told["kept"] == {str(out.name): str(copy.name)} or told["kept"] == {str(out): str(copy)}
        assert [copy.name in warning for warning in told["warnings"]].count(True) == 1
        assert copy.read_bytes() == rows[-1]
    assert [one.read_bytes() for one in sorted(tmp_path.glob("*.bak*"))] == rows
    assert openpyxl.load_workbook(out).active.cell(2, 30).value is None


def json_of_run(done: CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_file_of_somebody_elses_and_a_decided_review_are_kept(tmp_path: Path) -> None:
    """The output replaces a file that no run wrote; the review list was filled in and not applied yet."""
    out, review = write(tmp_path / "out.csv", "내 파일\n"), tmp_path / "review.xlsx"
    options: dict[str, Any] = CORRECTING | {"review": review}
    assert bs.enrich(SAMPLE / "customers.csv", out, **options).backup == str(tmp_path / "out.csv.bak")
    book = openpyxl.load_workbook(review)
    book.active.cell(2, 1, "1")
    book.save(review)
    decided = review.read_bytes()
    report = bs.enrich(SAMPLE / "customers.csv", out, **options)
    assert dict(report.kept) == {str(review): str(tmp_path / "review.xlsx.bak")}
    assert (tmp_path / "review.xlsx.bak").read_bytes() == decided
    assert (tmp_path / "out.csv.bak").read_text(encoding="utf-8") == "내 파일\n"
    assert not bs.enrich(SAMPLE / "customers.csv", out, **options).kept


def test_a_list_of_letters_over_several_inputs_is_kept_too(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes((SAMPLE / "customers.csv").read_bytes())
    letters = write(tmp_path / "letters.csv", "우리 주소록\n")
    report = bs.enrich([tmp_path / "a.csv", tmp_path / "b.csv"], letters=letters, **KNOWN)
    assert (tmp_path / "letters.csv.bak").read_text(encoding="utf-8") == "우리 주소록\n"
    assert any(isinstance(one, Alert) and "letters.csv.bak" in one for one in report.warnings)


def test_without_a_record_one_copy_too_many_is_kept(tmp_path: Path, state_directory: Path) -> None:
    """A state folder that was lost says nothing of what we wrote."""
    out = tmp_path / "out.csv"
    bs.enrich(SAMPLE / "customers.csv", out)
    bs.enrich(SAMPLE / "customers.csv", out)
    assert not list(tmp_path.glob("*.bak"))
    for record in (state_directory / "written").iterdir():
        record.unlink()
    write(tmp_path / "in.csv", "사업자번호\n124-81-00998\n")
    assert bs.enrich(tmp_path / "in.csv", out).kept


def test_outcomes_written_into_an_output_are_not_taken_for_notes_and_hide_none(tmp_path: Path) -> None:
    """`label` extends the very file: what it wrote is known, what somebody wrote into it before is not."""
    source, out = SAMPLE / "customers.csv", tmp_path / "out.csv"
    outcomes = write(tmp_path / "back.csv", "사업자번호,반송여부,반송사유\n124-81-00998,Y,이사\n")
    options: dict[str, Any] = {"mailed": "2026-11-01", "returns_requested": True}
    for notes in ("", "메모\n"):
        bs.enrich(source, out)
        if notes:
            header, *lines = out.read_text(encoding="utf-8-sig").splitlines()
            write(out, "\n".join([f"{header},메모", *(f"{line},전화" for line in lines), ""]))
        bs.label(outcomes, file=out, output=out, **options)
        assert bool(bs.enrich(source, out).kept) == bool(notes)
