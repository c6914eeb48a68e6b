"""What goes to the mail house: duplicates, columns on request, a file an action, and the list of letters."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.base.messages import use_language
from bansong.base.schema import Alert
from bansong.errors import AccountingError, UsageError
from bansong.run import side_files
from bansong.run.columns import FIRST
from bansong.run.page import report_page
from bansong.run.side_files import LETTER, mark_letters
from conftest import NINE, SAMPLE, write
from customers import numbers
from test_gazetteer import as_earlier_format

KNOWN: dict[str, Any] = {"registry": SAMPLE / "registry.parquet"}
REFERENCE = KNOWN | {"gazetteer": SAMPLE / "gazetteer.parquet"}
EXTRA = ["duplicate_of", "match_level", "district_code", "building_code"]
PARTS = ("send", "fix_address", "confirm", "hold", "do_not_send", "other")


def read(path: Path) -> pl.DataFrame:
    if path.suffix == ".xlsx":
        return pl.read_excel(path, infer_schema_length=0)
    return pl.read_csv(path, infer_schema=False)


def few(folder: Path, rows: int = 40) -> Path:
    """The first customers of the sample."""
    read(SAMPLE / "customers.csv").head(rows).write_csv(folder / "in.csv")
    return folder / "in.csv"


def active(count: int) -> list[str]:
    registry = read(SAMPLE / "registry_source.csv")
    return registry.filter(pl.col(registry.columns[1]).str.contains("계속"))[registry.columns[0]].head(count).to_list()


def letters_of(report: bs.Report) -> dict[str, Any]:
    found = report.as_dict()["letters"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def enriched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bs.Report]:
    """The sample with all that can be asked for."""
    folder = tmp_path_factory.mktemp("letters")
    options: dict[str, Any] = {"extra_columns": EXTRA, "split": "action", "letter_cost": 500, **REFERENCE}
    options |= {"letters": folder / "l.csv", "report": folder / "p.html", "manifest": folder / "run.json"}
    with use_language("en"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        patch.setitem(sys.modules, "altair", None)  # charts take longest
        report = bs.enrich(few(folder, 120), folder / "out.csv", **options)
        report_page(folder / "run.json", folder / "later.html")
    return folder, report


def test_without_options_the_output_is_byte_for_byte_the_same(enriched: tuple[Path, bs.Report], tmp_path: Path) -> None:
    """Extra columns stand behind the nine and change nothing else; where they are, they are made anew."""
    whole = read(enriched[0] / "out.csv")
    assert whole.columns[-13:] == [*NINE, *EXTRA]
    whole.drop(NINE, EXTRA).write_csv(tmp_path / "in.csv")
    bs.enrich(tmp_path / "in.csv", tmp_path / "plain.csv", **REFERENCE)
    assert read(tmp_path / "plain.csv").equals(whole.drop(EXTRA))
    bs.enrich(enriched[0] / "out.csv", tmp_path / "again.csv", **REFERENCE)
    assert (tmp_path / "again.csv").read_bytes() == (enriched[0] / "out.csv").read_bytes()


@pytest.mark.filterwarnings("ignore:.*statuses checked")
def test_a_duplicate_names_the_first_row_with_its_number_and_corrected_address() -> None:
    """Spellings of one address are one; another number, another unit, and rows without an address are not."""
    one, two = numbers(2)
    rows = [
        (one, "서울특별시 종로구 종로 436, 3층"),
        (f"{one[:3]}-{one[3:5]}-{one[5:]}", "서울 종로구 종로 436 3층 (종로2가)"),
        (one, "서울특별시 종로구 종로 436, 4층"),
        (two, "서울특별시 종로구 종로 436, 3층"),
        (two, None),
        (two, None),
        ("합계", "서울특별시 종로구 종로 436, 3층"),
        (one, "종로구 종로 436, 3층"),
        (one, "대전광역시 유성구 대학로 313"),
        (one, "대전 어딘가"),
    ]
    frame = pl.DataFrame(rows, schema=["사업자번호", "주소"], orient="row")
    found = bs.verify_frame(frame, extra_columns=["duplicate_of,match_level", "district_code"], **REFERENCE)
    assert found.columns == ["사업자번호", "주소", *NINE, "duplicate_of", "match_level", "district_code"]
    assert found["duplicate_of"].to_list() == [None, 1, *[None] * 5, 1, None, None]
    assert found["match_level"].to_list()[:2] == ["exact", "exact"]
    assert found["district_code"].to_list()[-2:] == ["3020012200", None]


def test_the_building_code_is_that_of_the_official_file(enriched: tuple[Path, bs.Report]) -> None:
    """It is 도로명주소관리번호: the number of the line that has the corrected road, number and postal code."""
    official = [line.split("|") for line in (SAMPLE / "rnaddrkor_sample.txt").read_text("cp949").splitlines()]
    lines = pl.DataFrame(
        [(line[0], f"{line[10]} {line[12]}", line[16]) for line in official],
        schema=["building_code", "street", "fixed_zipcode"],
        orient="row",
    )
    rows = read(enriched[0] / "out.csv").filter(pl.col("fixed_address").is_not_null())
    street = pl.col("fixed_address").str.extract(r"(\S+ [0-9]+)(?:,| \(|$)").alias("street")
    found = rows.with_columns(street).join(lines, on=["street", "fixed_zipcode"], suffix="_official")
    assert found.height == rows.height > 80
    assert found["building_code"].equals(found["building_code_official"].alias("building_code"))


def test_what_stays_empty_for_want_of_a_gazetteer_is_said(tmp_path: Path) -> None:
    """Without one, and with one of an earlier format, which has no codes of buildings."""
    source = few(tmp_path, 5)
    report = bs.plan(source, extra_columns=["match_level", "duplicate_of"])
    assert "match_level: empty, since no address is looked up; give `gazetteer=`" in report.warnings
    earlier = tmp_path / "earlier.parquet"
    as_earlier_format(SAMPLE / "gazetteer.parquet", earlier, 2)
    report = bs.enrich(source, tmp_path / "out.csv", extra_columns=EXTRA[2:], gazetteer=earlier, today="2026-11-23")
    assert any("earlier.parquet holds no numbers" in one and "rnaddrkor_*.txt" in one for one in report.warnings)
    found = read(tmp_path / "out.csv")
    assert found["building_code"].null_count() == found.height > found["district_code"].null_count()


def refuse_other_parts(folder: Path, ends: str) -> None:
    """Together the parts are the output: each row in the file of its action, in the order of the list."""
    parts = {part: read(folder / f"out.{part}.{ends}") for part in PARTS}
    whole = read(folder / f"out.{ends}")
    assert sum(part.height for part in parts.values()) == whole.height
    for action, part in parts.items():
        kept = whole.filter(pl.col("action").is_null() if action == "other" else pl.col("action") == action)
        assert pl.concat([whole.clear(), part], how="diagonal_relaxed").rows() == kept.rows()
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob(f"out*.{ends}")} == {0o600}


def test_the_files_of_the_actions_hold_every_row_once(enriched: tuple[Path, bs.Report]) -> None:
    refuse_other_parts(enriched[0], "csv")
    split: Any = enriched[1].as_dict()["split"]
    assert {part: told["rows"] for part, told in split.items()} == {
        part: read(enriched[0] / f"out.{part}.csv").height for part in PARTS
    }


def test_so_they_do_in_workbooks(tmp_path: Path) -> None:
    bs.enrich(few(tmp_path), tmp_path / "out.xlsx", split="action", **KNOWN)
    refuse_other_parts(tmp_path, "xlsx")


def test_letters_to_be_sent_are_kept_where_none_are_left(tmp_path: Path) -> None:
    """As a `--letters` list, a part that loses all its letters is an alert and exit 3, until that is allowed."""
    source, out, letters, sent = (few(tmp_path), *(tmp_path / name for name in ("out.csv", "l.csv", "out.발송.csv")))
    options: dict[str, Any] = {"split": "조치", "letters": letters}
    assert bs.enrich(source, out, **options, **KNOWN).exit_code == 0
    before, listed = sent.read_bytes(), letters.read_bytes()
    emptied = bs.enrich(source, out, **options)
    assert letters.read_bytes() == listed
    backup = sent.with_name(f"{sent.name}.bak")
    assert (emptied.exit_code, dict(emptied.kept)) == (3, {str(sent): str(backup)})
    assert backup.read_bytes() == before
    assert emptied.as_dict()["split"]["send"]["rows"] == 0  # type: ignore[index]
    assert any(isinstance(one, Alert) and backup.name in one for one in emptied.warnings)
    again = bs.enrich(source, out, **options | {"allow_empty": True})
    third = bs.enrich(source, out, **options)
    assert (again.exit_code, third.exit_code, third.kept) == (0, 0, {})
    assert letters.read_bytes() != listed
    assert len([*tmp_path.glob("*.bak*")]) == 1
    names = {f"out.{name}.csv" for name in ("발송", "발송_금지", "주소_보완", "확인_후_발송", "보류", "기타")}
    assert {path.name for path in tmp_path.glob("out.*.csv")} == names


def test_nothing_is_published_where_the_parts_do_not_balance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_files, "OTHER", "nowhere")
    with pytest.raises(AccountingError):
        bs.enrich(few(tmp_path), tmp_path / "out.csv", split="action")
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_the_list_has_a_row_for_each_letter_sorted_by_postal_code(enriched: tuple[Path, bs.Report]) -> None:
    letters, whole = read(enriched[0] / "l.csv"), read(enriched[0] / "out.csv").with_row_index("row", 1)
    send = whole.filter(pl.col("action") == "send").with_columns(
        same=pl.coalesce(pl.col("duplicate_of").cast(pl.UInt32), "row")
    )
    assert letters.columns[:4] == ["recipient", "address 1", "address 2", "postal code"]
    assert letters.height == send["same"].n_unique()
    assert letters["postal code"].to_list() == sorted(letters["postal code"].to_list())
    assert letters["postal code"].str.len_chars().unique().to_list() == [5]
    glue = {True: " ", False: ", "}
    apart = [f"{one}{glue[two.startswith('(')]}{two}" if two else one for _, one, two, *_ in letters.rows()]
    assert set(apart) == set(send["fixed_address"])


def test_the_report_and_its_pages_say_how_many_letters_fewer_and_what_is_saved(
    enriched: tuple[Path, bs.Report],
) -> None:
    """The parts of the count are the rows, and what is saved is the letters that are not sent."""
    folder, report = enriched
    found = letters_of(report)
    assert sum(found[part] for part in ("letters", "repeated", "stopped", "waiting", "unanswered")) == 120
    assert found["fewer"] == found["repeated"] + found["stopped"] > 0
    assert found["saved"] == 500 * found["fewer"]
    assert f"{found['fewer']} letters fewer, ₩{found['saved']:,.0f} saved" in str(report)
    assert found["letters"] == read(folder / "l.csv").height
    for page in ("p.html", "later.html"):
        assert f"<li><strong>{found['letters']:,}</strong>letters</li>" in (folder / page).read_text("utf-8")


def test_of_two_rows_for_a_letter_the_one_with_a_name_wins_and_what_lacks_is_counted(tmp_path: Path) -> None:
    """A masked or blank name is none. Each empty cell of the list is told."""
    names = [("아**", "아람상사"), ("", "나래물산"), ("-", "＊＊상회"), ("다온", "마루")]
    lines = [
        f"{b_no},{name},서울특별시 종로구 종로 436"
        for b_no, pair in zip(active(4), names, strict=True)
        for name in pair
    ]
    source = write(tmp_path / "a.csv", "\n".join(["사업자번호,상호,주소", *lines]) + "\n")
    report = bs.enrich(source, tmp_path / "out.csv", letters=tmp_path / "l.csv", **REFERENCE)
    assert read(tmp_path / "l.csv")["recipient"].to_list() == ["아람상사", "나래물산", None, "다온"]
    told = letters_of(report)
    assert (told["letters"], told["repeated"], told["without_name"], told["without_postal_code"]) == (4, 4, 1, 0)


def test_a_row_that_waits_takes_no_letter_from_the_same_row_that_is_sent() -> None:
    rows = pl.LazyFrame(
        {"row_id": [0, 1, 2, 3], "action": ["hold", "send", "send", None], FIRST: [None, 0, 0, None]},
        schema={"row_id": pl.get_index_type(), "action": pl.String, FIRST: pl.UInt32},
    )
    assert mark_letters(rows).collect()[LETTER].to_list() == [False, True, False, False]


def test_rows_that_a_filter_hides_are_counted_and_told_first(tmp_path: Path) -> None:
    """Hidden rows are verified and get letters, so the reader must know of them; rows without a cell are none."""
    book = openpyxl.Workbook()
    for row in [("사업자번호", "상호"), *((number, "가") for number in numbers(20))]:
        book.active.append(row)
    for place in (*range(5, 17), 24):
        book.active.row_dimensions[place].hidden = True
    book.save(tmp_path / "in.xlsx")
    report = bs.plan(tmp_path / "in.xlsx")
    told = [one for one in report.warnings if isinstance(one, Alert) and "hidden" in one]
    assert ([one.split()[0] for one in told], report.rows) == (["12"], 20)


def test_the_list_is_safe_in_a_spreadsheet_and_korean_for_koreans(tmp_path: Path) -> None:
    """No name begins a formula, a postal code keeps its zero, headings are Korean; all columns print on one page."""
    line = f'{active(1)[0]},"=HYPERLINK(""x"")",서울특별시 종로구 종로 436\n'
    source = write(tmp_path / "a.csv", f"사업자번호,상호,주소\n{line}")
    with use_language("ko"):
        for ends in ("csv", "xlsx"):
            bs.enrich(source, tmp_path / "out.csv", letters=tmp_path / f"l.{ends}", lang="en", **REFERENCE)
    assert (tmp_path / "l.csv").read_text("utf-8-sig").splitlines() == [
        "받는 분,주소1,주소2,우편번호,봉투번호,호칭",
        '"\'=HYPERLINK(""x"")",서울특별시 종로구 종로 436 (종로2가),,03104,B73HYZXXMM,귀중',
    ]
    sheet = openpyxl.load_workbook(tmp_path / "l.xlsx").active
    assert (sheet.page_setup.orientation, sheet.sheet_properties.pageSetUpPr.fitToPage) == ("landscape", True)
    cells = list(sheet.iter_rows(min_row=2, values_only=True))
    assert [row[:4] for row in cells] == [('=HYPERLINK("x")', "서울특별시 종로구 종로 436 (종로2가)", None, "03104")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"extra_columns": ["building"]}, "`extra_columns=`: there is no column 'building'; there are "),
        ({"split": "grade"}, "`split=`: 'grade' is nothing to split by; use `split='action'`"),
        ({"letter_cost": -1}, "`letter_cost=`: -1 cannot be won a letter"),
        ({"letters": "out.csv"}, "is the output itself"),
        ({"letters": "out.send.csv", "split": "action"}, "is the output of send itself"),
        ({"letters": "l.xlsm"}, "the list of letters is a new workbook; call it .xlsx"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        bs.enrich(SAMPLE / "customers.csv", "out.csv", **options)
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []
