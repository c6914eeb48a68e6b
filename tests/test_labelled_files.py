"""What came back is joined to the enriched file: three columns more, and nothing else of the file changes."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.base.schema import LABEL_COLUMNS
from bansong.errors import AccountingError, LabelError, UsageError
from bansong.run import columns as output_columns
from bansong.tables.detect import open_table
from bansong.tables.earlier_columns import find_earlier_columns
from conftest import NINE, json_of, write
from labelling import write_labelled

HEADER = "사업자번호,상호,주소"
ROWS = ["124-81-00998,삼성전자,경기 수원시 영통구 삼성로 129", "220-81-62517,네이버,", "214-88-12345,=상사,서울"]
RETURNED = date(2026, 11, 20)


def labels(*rows: tuple[int, bool | None, str | None, date | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=output_columns.LABEL_DTYPES, orient="row")


SOME = labels((2, True, "=이사불명", RETURNED), (0, False, None, None))


@pytest.fixture(scope="module")
def enriched_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("enriched")
    source = write(folder / "in.csv", "\r\n".join([HEADER, *ROWS, ""]), "cp949")

    @cache
    def make(extension: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
            bs.enrich(source, folder / f"mailed{extension}")
        return folder / f"mailed{extension}"

    return make


@pytest.fixture
def enriched(enriched_once: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of the three customers, enriched in a format."""
    return lambda extension: Path(shutil.copy2(enriched_once(extension), tmp_path))


def test_a_csv_gets_three_columns_behind_the_nine_and_keeps_every_byte_before_them(
    enriched: Callable[[str], Path], tmp_path: Path
) -> None:
    """Encoding, line ends and cells stay; values are words and ISO dates; our texts never begin a formula."""
    mailed = enriched(".csv")
    before = mailed.read_bytes().decode("cp949").split("\r\n")
    more = [",bounced,bounce_reason,bounced_at", ",false,,", ",,,", ",true,'=이사불명,2026-11-20", ""]
    for encoding, read in ((None, "cp949"), ("utf-8", "utf-8-sig")):
        write_labelled(mailed, tmp_path / "out.csv", SOME, output_encoding=encoding)
        after = (tmp_path / "out.csv").read_bytes().decode(read).split("\r\n")
        assert after == [line + end for line, end in zip(before, more, strict=True)]
    with pytest.raises(UsageError, match="`output_encoding=` is for CSV files"):
        write_labelled(mailed, tmp_path / "out.json", SOME, output_encoding="utf-8")


def test_labelling_again_replaces_the_three_where_they_stand(enriched: Callable[[str], Path], tmp_path: Path) -> None:
    """In place, too: the file is replaced in one step; enriching it replaces the nine and leaves the three."""
    mailed = enriched(".csv")
    before = mailed.read_bytes()
    mailed.chmod(0o640)
    write_labelled(mailed, mailed, SOME)
    write_labelled(mailed, mailed, labels((1, True, "폐문부재", None)))
    table = pl.read_csv(mailed, encoding="cp949", infer_schema=False)
    assert table.select(table.columns[-3:]).rows() == [(None,) * 3, ("true", "폐문부재", None), (None,) * 3]
    assert stat.S_IMODE(mailed.stat().st_mode) == 0o640
    kept = [line.rsplit(",", 3)[0] for line in mailed.read_bytes().decode("cp949").split("\r\n")]
    assert kept == before.decode("cp949").split("\r\n")
    assert [path.name for path in mailed.parent.iterdir() if path.name.startswith(".")] == []
    bs.enrich(mailed, tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == mailed.read_bytes()


def test_parquet_and_json_have_the_types(enriched: Callable[[str], Path], tmp_path: Path) -> None:
    """Boolean, text, date; in JSON a date is ISO text and the objects stay as they stood."""
    types = {"bounced": pl.Boolean, "bounce_reason": pl.String, "bounced_at": pl.Date}
    rows = [(False, None, None), (None,) * 3, (True, "=이사불명", RETURNED)]
    mailed, out = enriched(".parquet"), tmp_path / "out.parquet"
    write_labelled(mailed, out, SOME)
    assert pl.read_parquet(out).drop(LABEL_COLUMNS).equals(pl.read_parquet(mailed))
    assert pl.read_parquet(out).select(LABEL_COLUMNS).equals(pl.DataFrame(rows, schema=types, orient="row"))
    mailed, out = enriched(".json"), tmp_path / "out.json"
    write_labelled(mailed, out, SOME)
    items = json_of(out)
    found = [tuple(item.pop(name) for name in LABEL_COLUMNS) for item in items]
    assert found == [*rows[:2], (True, "=이사불명", "2026-11-20")]
    assert items == json_of(mailed)


def workbook(path: Path) -> Path:
    """A workbook of a user's: a formula beside the table, a second sheet."""
    book = openpyxl.Workbook()
    for row in [HEADER.split(","), *(row.split(",") for row in ROWS)]:
        book.active.append([cell if not cell.startswith("=") else "상사" for cell in row])
    book.create_sheet("메모")["A1"] = "손대지 마시오"
    book.save(path)
    return path


def test_a_workbook_of_the_users_gets_cells_spliced_in_and_again(tmp_path: Path) -> None:
    """Booleans and text, never a formula; labelled again the columns are replaced, all else is as it was."""
    bs.enrich(workbook(tmp_path / "in.xlsx"), tmp_path / "mailed.xlsx")
    write_labelled(tmp_path / "mailed.xlsx", tmp_path / "out.xlsx", labels((0, True, "이사", None)))
    write_labelled(tmp_path / "out.xlsx", tmp_path / "out.xlsx", SOME)
    book = openpyxl.load_workbook(tmp_path / "out.xlsx")
    before = openpyxl.load_workbook(tmp_path / "mailed.xlsx").worksheets[0]
    rows = list(book.worksheets[0].iter_rows(values_only=True))
    assert [row[:12] for row in rows] == list(before.iter_rows(values_only=True))
    told = [(False, None, None), (None,) * 3, (True, "=이사불명", "2026-11-20")]
    assert [row[12:] for row in rows] == [LABEL_COLUMNS, *told]
    assert book.worksheets[0]["N4"].data_type == "s"
    assert book["메모"]["A1"].value == "손대지 마시오"


def test_columns_that_stand_apart_are_spliced_around_what_stands_between(tmp_path: Path) -> None:
    """Nine and three with a column of the user's between them: both are replaced, and that column is not touched."""
    bs.enrich(workbook(tmp_path / "in.xlsx"), tmp_path / "mailed.xlsx")
    book = openpyxl.load_workbook(tmp_path / "mailed.xlsx")
    for row, cell in enumerate(["담당", "김", "이", "박"], 1):
        book.worksheets[0].cell(row, 13, cell)
        book.worksheets[0].cell(row, 4, "biz_status" if row == 1 else "closed")
    book.save(tmp_path / "mailed.xlsx")
    write_labelled(tmp_path / "mailed.xlsx", tmp_path / "labelled.xlsx", labels((0, True, "이사", None)))
    bs.enrich(tmp_path / "labelled.xlsx", tmp_path / "both.xlsx", with_outcomes=True)
    cells = list(openpyxl.load_workbook(tmp_path / "both.xlsx").worksheets[0].iter_rows(values_only=True))
    assert [row[12] for row in cells] == ["담당", "김", "이", "박"]
    assert [row[13] for row in cells] == ["bounced", None, None, None]
    assert [row[3] for row in cells] == ["biz_status", *["unknown"] * 3]


def test_a_column_of_the_users_with_such_a_name_is_kept_and_told(tmp_path: Path) -> None:
    """Ours gets `_bv`, as the nine do, and labelling again finds it."""
    bs.enrich(write(tmp_path / "in.csv", "사업자번호,bounced\n124-81-00998,작년\n"), tmp_path / "0.csv")
    told: list[str] = []
    for source, output in (("0.csv", "1.csv"), ("1.csv", "2.csv")):
        given = labels((0, True, None, RETURNED))
        write_labelled(tmp_path / source, tmp_path / output, given, warned=told.append)
        header, row = (tmp_path / output).read_text(encoding="utf-8").splitlines()
        assert header == ",".join(["사업자번호", "bounced", *NINE, "bounced_bv", "bounce_reason", "bounced_at"])
        assert (row[:16], row[-17:]) == ("124-81-00998,작년,", ",true,,2026-11-20")
    assert told == ["the file has a column 'bounced' of its own; it is kept, ours is 'bounced_bv'"]


def test_three_columns_of_the_users_own_are_never_taken_for_ours(tmp_path: Path) -> None:
    text = f"{HEADER},{','.join(LABEL_COLUMNS)}\n{ROWS[0]},작년,이사,봄\n"
    bs.enrich(write(tmp_path / "in.csv", text), tmp_path / "mailed.csv")
    given = labels((0, True, "폐업", None))
    write_labelled(tmp_path / "mailed.csv", tmp_path / "out.csv", given, warned=lambda _: None)
    after = pl.read_csv(tmp_path / "out.csv", infer_schema=False)
    assert after.select(LABEL_COLUMNS).row(0) == ("작년", "이사", "봄")
    assert after.select(f"{name}_bv" for name in LABEL_COLUMNS).row(0) == ("true", "폐업", None)


def test_a_file_that_was_never_enriched_gets_the_three_at_its_end(tmp_path: Path) -> None:
    """Only beside the nine are they ours; without these the next run leaves them as the user's."""
    source = write(tmp_path / "in.csv", f"{HEADER}\n{ROWS[0]}\n")
    write_labelled(source, tmp_path / "out.csv", labels((0, True, "폐업", RETURNED)))
    with open_table(tmp_path / "out.csv") as table:
        assert table.headers == (*HEADER.split(","), *LABEL_COLUMNS)
        assert not find_earlier_columns(table, "").labels


def test_labels_that_fit_no_row_and_rows_that_do_not_balance_are_refused_and_the_file_stays(
    enriched: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    mailed = enriched(".csv")
    before = mailed.read_bytes()
    for given, message in (
        (labels((3, True, None, None)), "a label is about row 3, the file has 3 rows"),
        (labels((1, True, None, None), (1, False, None, None)), "row 1 has several labels"),
        (SOME.drop("bounced_at"), "no column 'bounced_at'"),
    ):
        with pytest.raises(LabelError, match=message):
            write_labelled(mailed, mailed, given)
    monkeypatch.setattr("bansong.tables.csv.format.CsvVerbs.count", lambda *_: 2)
    with pytest.raises(AccountingError, match="3 rows in, 2 in the output file"):
        write_labelled(mailed, mailed, SOME)
    assert mailed.read_bytes() == before
