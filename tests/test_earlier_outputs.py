"""Outputs that people worked in: enriched again, or replaced by the next run."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import HEADERS, Alert
from bansong.tables.detect import open_table
from bansong.tables.earlier_columns import EarlierColumns, find_earlier_columns
from books import cells, written
from conftest import NINE, SAMPLE, write

KNOWN: dict[str, Any] = {"registry": SAMPLE / "registry.parquet"}
CORRECTING = KNOWN | {"gazetteer": SAMPLE / "gazetteer.parquet"}
SHORT = "사업자번호,상호,주소\n124-81-00998,가,서울 중구 세종대로 1\n220-81-62517,나,서울 중구 세종대로 2\n"


def read(path: Path) -> pl.DataFrame:
    if path.suffix == ".xlsx":
        header, *rows = cells(path)
        return pl.DataFrame(rows, schema=[*map(str, header)], orient="row")
    return pl.read_csv(path, infer_schema=False) if path.suffix == ".csv" else pl.read_parquet(path)


def save(frame: pl.DataFrame, path: Path) -> Path:
    if path.suffix == ".xlsx":
        return written(path, [frame.columns, *frame.rows()])
    getattr(frame, f"write_{path.suffix[1:]}")(path)
    return path


def found_in(folder: Path, columns: Sequence[pl.Series], prefix: str = "") -> EarlierColumns:
    with (folder / "edited.csv").open("w", encoding="utf-8", newline="") as file:
        lines = zip(*([column.name, *column] for column in columns), strict=True)  # polars refuses names that repeat
        csv.writer(file).writerows(lines)
    with open_table(folder / "edited.csv") as table:
        return find_earlier_columns(table, prefix)


def enriched(folder: Path, **options: Any) -> pl.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        bs.enrich(folder / "in.csv", folder / "out.csv", **options)
    return read(folder / "out.csv")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pl.DataFrame]:
    folder = tmp_path_factory.mktemp("outputs")
    pl.read_csv(SAMPLE / "customers.csv", infer_schema=False).head(60).write_csv(folder / "in.csv")
    made = {lang: enriched(folder, headers=lang, **KNOWN) for lang in ("en", "ko")}
    return made | {"corrected": enriched(folder, **CORRECTING)}


@pytest.mark.parametrize(("suffix", "lang"), [(".csv", "en"), (".xlsx", "ko"), (".parquet", "en")])
def test_our_columns_are_replaced_wherever_they_stand(
    tmp_path: Path, outputs: dict[str, pl.DataFrame], suffix: str, lang: str
) -> None:
    """Moved, deleted, and a memo among them: no stale verdict stays, and the user's cells are what they were."""
    names, whole = [HEADERS[lang][name] for name in NINE], outputs[lang]
    stale = whole.drop(names[1], names[6]).with_columns(pl.lit("hold" if lang == "en" else "보류").alias(names[3]))
    stale = stale.select(names[3], names[2], pl.exclude(names[2:4]))
    stale.insert_column(stale.columns.index(names[4]), pl.Series("내 메모", [f"통화 {row}" for row in range(60)]))
    source = save(stale, tmp_path / f"edited{suffix}")
    report = bs.enrich(source, tmp_path / f"again{suffix}", **KNOWN)
    again = read(tmp_path / f"again{suffix}")
    assert again.columns[: stale.width] == stale.columns
    assert sorted(again.columns) == sorted({*stale.columns, *names})
    assert again[names[3]].cast(pl.String).to_list() == whole[names[3]].to_list()
    own = [name for name in stale.columns if name not in names]
    assert again.select(own).equals(read(source).select(own))
    assert report.replaced["action"] == whole[names[3]].ne_missing(stale[names[3]]).sum()
    assert report.as_dict()["replaced"] == dict(report.replaced)


def test_a_changed_verdict_and_address_are_counted_and_told(tmp_path: Path, outputs: dict[str, pl.DataFrame]) -> None:
    row, corrected = pl.int_range(pl.len()), outputs["corrected"]
    edited = corrected.with_columns(
        pl.when(row < 3).then(pl.lit("전화함")).otherwise("action").alias("action"),
        pl.when(row < 2).then(pl.lit("서울특별시 중구 세종대로 110")).otherwise("fixed_address").alias("fixed_address"),
        pl.when(row < 4).then(pl.lit("suspended")).otherwise("biz_status").alias("biz_status"),
    )
    report = bs.enrich(save(edited, tmp_path / "edited.csv"), tmp_path / "again.csv", **CORRECTING)
    assert report.replaced == {"biz_status": 4, "action": 3, "fixed_address": 2}
    assert isinstance(report.warnings[0], Alert)
    assert read(tmp_path / "again.csv").equals(corrected)


def test_a_grade_of_the_users_own_outlives_the_loss_of_ours(tmp_path: Path, outputs: dict[str, pl.DataFrame]) -> None:
    theirs = pl.Series("grade", ["ABCDE"[row * 7 % 5] for row in range(60)])
    edited = outputs["en"].drop("grade").insert_column(1, theirs)
    report = bs.enrich(save(edited, tmp_path / "edited.csv"), tmp_path / "again.csv", **KNOWN)
    again = read(tmp_path / "again.csv")
    assert again["grade"].equals(theirs)
    assert again["grade_bv"].to_list() == outputs["en"]["grade"].to_list()
    assert any(isinstance(one, Alert) and "grade_bv" in one for one in report.warnings)
    bs.enrich(tmp_path / "again.csv", tmp_path / "third.csv", **KNOWN)
    assert read(tmp_path / "third.csv").equals(again)


MEMOS: list[tuple[str, list[str]]] = [
    *(("biz_status", ["open", "정상"] * 30), ("action", ["전화", "방문"] * 30), ("row_status", ["완료", "진행"] * 30)),
    *(("bounce_prob", ["높음", "낮음"] * 30), ("bounce_prob", [f"메모 {row}" for row in range(60)])),
    *(("grade", ["VIP", "일반"] * 30), ("grade", ["ABCDE"[row * 7 % 5] for row in range(60)])),
    *(("fixed_zipcode", ["3층", "후문"] * 30), ("fixed_zipcode", [*["04524", *[""] * 8] * 6, *[""] * 6])),
    ("fixed_address", ["주소 다시 물어보기", "이사했다고 함"] * 30),
    ("fixed_address", [*["서울특별시 중구 세종대로 110", *[""] * 8] * 6, *[""] * 6]),
    *(("reasons", ["고객 요청", "담당자 변경"] * 30), ("reasons", [f"메모 {row}" for row in range(60)])),
    *(("row_note", [f"통화 {row}" for row in range(60)]), ("row_note", [*["통화", *[""] * 8] * 6, *[""] * 6])),
]


@pytest.mark.parametrize(
    ("lang", "prefix", "ours_too", "place"),
    [("en", "", True, 0), ("en", "", False, 8), ("ko", "bv ", True, 8), ("ko", "bv ", False, -1)],
)
def test_a_memo_under_a_header_of_ours_is_the_users(
    tmp_path: Path, outputs: dict[str, pl.DataFrame], lang: str, prefix: str, ours_too: bool, place: int
) -> None:
    """Also where the input had a column of that name, so that ours was called ``…_bv``, and was deleted."""
    titles = {name: f"{prefix}{title}" for name, title in HEADERS[lang].items()}
    whole = outputs[lang].rename({HEADERS[lang][name]: titles[name] for name in NINE})
    for name, memo in MEMOS:
        at, columns = place % whole.width, whole.get_columns()
        columns = [column for column in columns if ours_too or column.name != titles[name]]
        columns.insert(at, pl.Series(titles[name], memo))
        found = found_in(tmp_path, columns, prefix)
        assert (at in found.places, name in found.nine, len(found.nine)) == (False, ours_too, 8 + ours_too), name


def test_grades_that_differ_where_the_probability_is_one_are_the_users(
    tmp_path: Path, outputs: dict[str, pl.DataFrame]
) -> None:
    grades = [letter for letter in "ABCDE" for _ in range(12)]
    edited = outputs["en"].with_columns(bounce_prob=pl.lit("0.02"), grade=pl.Series(grades))
    assert set(found_in(tmp_path, edited.get_columns()).nine) == {*NINE} - {"grade"}


def test_a_few_typed_cells_and_percents_make_no_column_of_ours_a_users(
    tmp_path: Path, outputs: dict[str, pl.DataFrame]
) -> None:
    row = pl.int_range(pl.len())
    edited = outputs["corrected"].with_columns(
        bounce_prob=(pl.col("bounce_prob").cast(pl.Float64) * 100).round(1).cast(pl.String) + "%"
    )
    typed = {"grade": "E", "action": "전화함", "fixed_address": "종로구 어딘가", "biz_status": "폐업했다고 함"}
    for place, (name, cell) in enumerate(typed.items()):
        edited = edited.with_columns(pl.when(row % 10 == place).then(pl.lit(cell)).otherwise(name).alias(name))
    edited = edited.filter(row % 3 != 0).sort("action", "grade")
    assert found_in(tmp_path, edited.get_columns()).is_whole


NEVER_OUTPUTS = [
    ({"grade": "B", "action": "hold", "reasons": "고객 요청", "row_note": "VIP", "status": "open"}, "en"),
    ({"조치": "발송", "처리 상태": "완료", "처리 메모": "메모"}, "ko"),
    ({"bounced": "true", "bounce_reason": "이사", "bounced_at": "2026-01-01", "grade": "A"}, "ko"),
]


def test_a_list_that_never_was_an_output_keeps_its_columns(tmp_path: Path) -> None:
    for own, lang in NEVER_OUTPUTS:
        source = write(tmp_path / "0.csv", f"사업자번호,{','.join(own)}\n124-81-00998,{','.join(own.values())}\n")
        bs.enrich(source, tmp_path / "1.csv", headers=lang)
        bs.enrich(tmp_path / "1.csv", tmp_path / "2.csv")
        found = read(tmp_path / "2.csv")
        assert (found.columns[1 : len(own) + 1], found.width) == ([*own], len(own) + 10)
        assert found.select([*own]).row(0) == tuple(own.values())


def test_a_verdict_that_an_older_version_left_behind_is_replaced_too(
    tmp_path: Path, outputs: dict[str, pl.DataFrame]
) -> None:
    whole = outputs["en"]
    stale = whole.drop("reasons").with_columns(pl.lit("hold").alias("action"))
    both = pl.concat([stale, whole.select(pl.col(name).alias(f"{name}_bv") for name in NINE)], how="horizontal")
    bs.enrich(save(both, tmp_path / "both.csv"), tmp_path / "again.csv", **KNOWN)
    again = read(tmp_path / "again.csv")
    assert again.columns == both.columns
    assert again["action"].to_list() == again["action_bv"].to_list() == whole["action"].to_list()


def test_extra_columns_and_outcomes_are_replaced_where_they_stand(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", SHORT)
    bs.enrich(source, tmp_path / "first.csv", with_outcomes=True, extra_columns=["duplicate_of", "match_level"])
    whole = read(tmp_path / "first.csv")
    edited = whole.with_columns(pl.lit("none").alias("match_level"), pl.lit("2020-01-01").alias("bounced_at"))
    edited = edited.insert_column(whole.columns.index("match_level"), pl.lit("메모").alias("메모")).drop("bounced")
    bs.enrich(save(edited, tmp_path / "edited.csv"), tmp_path / "again.csv", with_outcomes=True)
    again = read(tmp_path / "again.csv")
    assert sorted(again.columns) == sorted([*edited.columns, "bounced"])
    assert again["match_level"].equals(whole["match_level"])
    assert again["bounced_at"].null_count() == again.height


def test_notes_in_an_output_outlive_the_next_run(tmp_path: Path, run: Callable[..., CompletedProcess[str]]) -> None:
    save(pl.read_csv(SHORT.encode(), infer_schema=False), tmp_path / "list.xlsx")
    out, rows = tmp_path / "list.enriched.xlsx", []
    for _ in range(2):
        done = run("enrich", "list.xlsx", "--json")
        assert (done.returncode, json.loads(done.stdout)["kept"]) == (0, {})
    for times in (1, 2):
        book = openpyxl.load_workbook(out)
        book.active.cell(2, 30, f"전화함 {times}")
        book.save(out)
        rows.append(out.read_bytes())
        told = json.loads(run("enrich", "list.xlsx", "--json").stdout)
        copy = f"{out.name}.bak{'' if times == 1 else times}"
        assert {Path(old).name: Path(new).name for old, new in told["kept"].items()} == {out.name: copy}
        assert [copy in warning for warning in told["warnings"]].count(True) == 1
    assert [one.read_bytes() for one in sorted(tmp_path.glob("*.bak*"))] == rows
    assert openpyxl.load_workbook(out).active.cell(2, 30).value is None


def test_a_file_of_somebody_elses_is_kept(tmp_path: Path) -> None:
    out = write(tmp_path / "out.csv", "내 파일\n")
    assert bs.enrich(write(tmp_path / "in.csv", SHORT), out).backup == str(tmp_path / "out.csv.bak")
    assert (tmp_path / "out.csv.bak").read_text(encoding="utf-8") == "내 파일\n"


def test_a_list_of_letters_over_several_inputs_is_kept_too(tmp_path: Path, outputs: dict[str, pl.DataFrame]) -> None:
    sent = outputs["en"].filter(pl.col("action") == "send").drop(NINE)
    letters = write(tmp_path / "letters.csv", "우리 주소록\n")
    report = bs.enrich([save(sent, tmp_path / name) for name in ("a.csv", "b.csv")], letters=letters, **KNOWN)
    assert (tmp_path / "letters.csv.bak").read_text(encoding="utf-8") == "우리 주소록\n"
    assert any(isinstance(one, Alert) and "letters.csv.bak" in one for one in report.warnings)


def test_without_a_record_one_copy_too_many_is_kept(tmp_path: Path, state_directory: Path) -> None:
    """A state folder that was lost says nothing of what we wrote."""
    source, out = write(tmp_path / "in.csv", SHORT), tmp_path / "out.csv"
    for _ in range(2):
        bs.enrich(source, out)
    assert not list(tmp_path.glob("*.bak"))
    for record in (state_directory / "written").iterdir():
        record.unlink()
    assert bs.enrich(write(source, "사업자번호\n124-81-00998\n"), out).kept


def test_outcomes_written_into_an_output_are_not_taken_for_notes_and_hide_none(tmp_path: Path) -> None:
    """`label` extends the very file: what it wrote is known, what somebody wrote into it before is not."""
    source, out = write(tmp_path / "in.csv", SHORT), tmp_path / "out.csv"
    outcomes = write(tmp_path / "back.csv", "사업자번호,반송여부,반송사유\n124-81-00998,Y,이사\n")
    options: dict[str, Any] = {"mailed": "2026-11-01", "returns_requested": True}
    for notes in (False, True):
        bs.enrich(source, out)
        if notes:
            header, *lines = out.read_text(encoding="utf-8-sig").splitlines()
            write(out, "\n".join([f"{header},메모", *(f"{line},전화" for line in lines), ""]))
        bs.label(outcomes, file=out, output=out, **options)
        assert bool(bs.enrich(source, out).kept) is notes
