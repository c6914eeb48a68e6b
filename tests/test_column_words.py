"""Korean headers and words for the added columns: written on request, and read back like the English ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.base.messages import gettext, use_language
from bansong.base.schema import (
    ACTIONS,
    ADDED_COLUMNS,
    BIZ_STATUSES,
    EXTRA_COLUMNS,
    HEADERS,
    KOREAN_WORDS,
    LABEL_COLUMNS,
    OUR_COLUMNS,
    ROW_STATUSES,
    code_expr,
    with_words,
)
from bansong.engine.registry import meaning_expr
from bansong.errors import UsageError
from conftest import SAMPLE, write

REFERENCE: dict[str, Any] = {"registry": SAMPLE / "registry.parquet", "gazetteer": SAMPLE / "gazetteer.parquet"}
NINE = [HEADERS["ko"][name] for name in ADDED_COLUMNS]


def read(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False)


def enrich(source: Path, output: Path, **options: Any) -> bs.Report:
    return bs.enrich(source, output, lang="ko", today="2026-11-01", **REFERENCE, **options)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[pl.DataFrame, Path]:
    """The sample enriched with English columns, and a file with Korean ones."""
    folder = tmp_path_factory.mktemp("words")
    keep = {"extra_columns": EXTRA_COLUMNS, "split": "action", "letter_cost": 500}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        lines = (SAMPLE / "customers.csv").read_text(encoding="utf-8-sig").splitlines()[:81]
        source = write(folder / "customers.csv", "\n".join([*lines, ""]))
        enrich(source, folder / "en.csv", **keep)
        enrich(source, folder / "ko.csv", headers="ko", letters=folder / "letters.csv", **keep)
    return read(folder / "en.csv"), folder / "ko.csv"


def test_every_code_has_a_word_and_every_column_a_header() -> None:
    """No word stands for two codes; the catalogue calls a code the same."""
    assert set(HEADERS["ko"]) == set(HEADERS["en"]) == set(OUR_COLUMNS)
    assert len({*HEADERS["ko"].values()}) == len(OUR_COLUMNS)
    for column, codes in {"biz_status": BIZ_STATUSES, "action": ACTIONS, "row_status": ROW_STATUSES}.items():
        words = KOREAN_WORDS[column]
        assert set(words) == set(codes)
        assert len({*words.values()}) == len(codes)
        with use_language("ko"):
            assert [code for code in codes if gettext(code) not in (code, words[code])] == []


def test_the_file_is_the_english_one_in_korean_words(both: tuple[pl.DataFrame, Path]) -> None:
    """Nothing but headers and words differs; the files beside it have Korean names and words, too."""
    english, korean = both[0], read(both[1])
    assert korean.columns == [HEADERS["ko"].get(name, name) for name in english.columns]
    said = english.with_columns(pl.col(name).replace(words) for name, words in KOREAN_WORDS.items())
    assert korean.rows() == said.rows()
    sends = read(both[1].with_name("ko.발송.csv"))
    assert sends.height == english.filter(pl.col("action") == "send").height > 0
    assert set(sends["조치"]) == {"발송"}
    assert read(both[1].with_name("letters.csv")).height > 0


def test_enriched_again_the_columns_are_replaced_in_their_language(
    both: tuple[pl.DataFrame, Path], tmp_path: Path
) -> None:
    again = enrich(both[1], tmp_path / "again.csv", letter_cost=500)
    assert (tmp_path / "again.csv").read_bytes() == both[1].read_bytes()
    assert not [text for text in again.warnings if "headers=" in text]
    told = bs.plan(both[1], headers="en")
    assert [text for text in told.warnings if "headers=" in text]


def test_a_workbook_has_them_and_is_read_back(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    for row in (["사업자번호", "메모"], ["124-81-00998", "가"], ["없음", "나"]):
        book.active.append(row)
    book.save(tmp_path / "in.xlsx")
    for source, output in (("in.xlsx", "out.xlsx"), ("out.xlsx", "again.xlsx")):
        bs.enrich(tmp_path / source, tmp_path / output, headers="ko", lang="ko")
    first, second = (openpyxl.load_workbook(tmp_path / name).worksheets[0] for name in ("out.xlsx", "again.xlsx"))
    cells = [list(sheet.iter_rows(values_only=True)) for sheet in (first, second)]
    assert list(cells[0][0][-9:]) == NINE
    assert cells[0] == cells[1]


def test_a_header_of_the_users_is_left_alone(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", "사업자번호,조치\n124-81-00998,전화\n")
    bs.enrich(source, tmp_path / "out.csv", headers="ko")
    found = read(tmp_path / "out.csv")
    assert (found["조치"].to_list(), "조치_bv" in found.columns) == (["전화"], True)
    bs.enrich(tmp_path / "out.csv", tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()


def test_outcomes_are_recorded_of_such_a_file_and_written_into_it(
    tmp_path: Path, both: tuple[pl.DataFrame, Path]
) -> None:
    mailed = write(tmp_path / "mailed.csv", both[1].read_text(encoding="utf-8"))
    returned = write(tmp_path / "returned.csv", "row_id,반송여부,반송사유\n0,Y,이사\n1,N,\n")
    book = tmp_path / "labels.db"
    options: dict[str, Any] = {"mailed": "2026-10-05", "returns_requested": True, "sent": "send", "complete": True}
    found = bs.label(returned, file=mailed, output=tmp_path / "labelled.csv", book=book, **options)
    english = bs.label(
        returned, file=write(tmp_path / "en.csv", both[0].write_csv()), book=tmp_path / "en.db", **options
    )
    assert (found.bounced, found.not_bounced, found.silent) == (english.bounced, english.not_bounced, english.silent)
    assert found.silent > 0
    assert found.unread == english.unread
    labelled = read(tmp_path / "labelled.csv")
    assert [HEADERS["ko"][name] for name in LABEL_COLUMNS] == labelled.columns[-3:]


def test_formats_that_programs_read_keep_codes(tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", "사업자번호\n124-81-00998\n")
    for name in ("out.json", "out.parquet", "out.ndjson"):
        with pytest.raises(UsageError, match="CSV files and workbooks"):
            bs.enrich(source, tmp_path / name, headers="ko")
        assert not (tmp_path / name).exists()


def test_a_frame_with_korean_columns_keeps_them(both: tuple[pl.DataFrame, Path]) -> None:
    korean = read(both[1]).select(pl.exclude([HEADERS["ko"][name] for name in EXTRA_COLUMNS]))
    found = bs.verify_frame(korean, lang="ko", today="2026-11-01", **REFERENCE)
    assert found.columns == korean.columns
    assert found["조치"].to_list() == korean["조치"].to_list()


def test_words_and_codes_stream() -> None:
    """The plan has no step that keeps a column while the others wait for it, as `Expr.replace` has in polars."""
    frame = pl.LazyFrame(dict.fromkeys((*KOREAN_WORDS, "reasons"), "other"))
    codes = [code_expr(pl.col(name), name).alias(name) for name in KOREAN_WORDS]
    meaning = meaning_expr(pl.col("biz_status")).alias("meaning")
    for query in (with_words(frame, "ko"), frame.select("reasons", *codes), frame.select("reasons", meaning)):
        assert set(steps(query)) <= {"select", "with-columns", "in-memory-source"}
    assert "zip-broadcast" in steps(frame.select("reasons", pl.col("action").replace(KOREAN_WORDS["action"])))


def steps(query: pl.LazyFrame) -> list[str]:
    """The kinds of steps in the plan of the streaming engine."""
    plan = query.show_graph(raw_output=True, engine="streaming", plan_stage="physical")
    return re.findall(r'label="([a-z-]+)', str(plan))
