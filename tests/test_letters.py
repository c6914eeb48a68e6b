"""What goes to the mail house: duplicates, columns on request, a file an action, and the list of letters."""

from __future__ import annotations

import shutil
import stat
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
from bansong.run.page import report_page
from conftest import NINE, SAMPLE, json_of, write
from customers import numbers
from test_gazetteer import as_earlier_format

REFERENCE = {"registry": SAMPLE / "registry.parquet", "gazetteer": SAMPLE / "gazetteer.parquet"}
EXTRA = ["duplicate_of", "match_level", "district_code", "building_code"]
PARTS = ("send", "fix_address", "confirm", "hold", "do_not_send", "other")


def read(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False)


def read_list(path: Path) -> pl.DataFrame:
    return pl.DataFrame(json_of(path)["data"], infer_schema_length=None)


@pytest.fixture(scope="module")
def enriched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bs.Report]:
    """The sample with all that can be asked for."""
    folder = tmp_path_factory.mktemp("letters")
    options: dict[str, Any] = {"extra_columns": EXTRA, "split": "action", "letter_cost": 500}
    options["manifest"] = folder / "manifest.json"  # the state directory of a test is not there yet
    with use_language("en"):
        report = bs.enrich(
            SAMPLE / "customers.csv", folder / "out.csv", letters=folder / "l.csv", **REFERENCE, **options
        )
    return folder, report


def test_without_options_the_output_is_byte_for_byte_the_same(enriched: tuple[Path, bs.Report], tmp_path: Path) -> None:
    """Extra columns stand behind the nine and change nothing else."""
    bs.enrich(SAMPLE / "customers.csv", tmp_path / "plain.csv", **REFERENCE)
    plain, wide = read(tmp_path / "plain.csv"), read(enriched[0] / "out.csv")
    assert wide.columns == [*plain.columns, *EXTRA]
    assert wide.drop(EXTRA).equals(plain)


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
    ]
    frame = pl.DataFrame(rows, schema=["사업자번호", "주소"], orient="row")
    with pytest.warns(UserWarning, match="0 of . statuses checked"):
        found = bs.verify_frame(frame, extra_columns=["duplicate_of,match_level"], **REFERENCE)
    assert found.columns == ["사업자번호", "주소", *NINE, "duplicate_of", "match_level"]
    assert found["duplicate_of"].to_list() == [None, 1, None, None, None, None, None, 1]
    assert found["match_level"].to_list()[:2] == ["exact", "exact"]


def test_the_district_code_is_that_of_the_official_file() -> None:
    """It is 법정동코드, ten digits, where a building was found; null elsewhere."""
    one = numbers(1)[0]
    frame = pl.DataFrame({"사업자번호": [one, one], "주소": ["대전광역시 유성구 대학로 313", "대전 어딘가"]})
    with pytest.warns(UserWarning, match="0 of . statuses checked"):
        found = bs.verify_frame(frame, extra_columns=["district_code"], **REFERENCE)
    assert found["district_code"].to_list() == ["3020012200", None]


def test_the_building_code_is_that_of_the_official_file(enriched: tuple[Path, bs.Report]) -> None:
    """It is 도로명주소관리번호: the number of the line that has the corrected road, number and postal code."""
    official = [line.split("|") for line in (SAMPLE / "rnaddrkor_sample.txt").read_text("cp949").splitlines()]
    lines = pl.DataFrame(
        {
            "building_code": [line[0] for line in official],
            "street": [f"{line[10]} {line[12]}" for line in official],
            "fixed_zipcode": [line[16] for line in official],
        }
    )
    rows = read(enriched[0] / "out.csv").filter(pl.col("fixed_address").is_not_null())
    street = pl.col("fixed_address").str.extract(r"(\S+ [0-9]+)(?:,| \(|$)").alias("street")
    found = rows.with_columns(street).join(lines, on=["street", "fixed_zipcode"], suffix="_official")
    assert found.height == rows.height > 200
    assert found.filter(pl.col("building_code").ne_missing(pl.col("building_code_official"))).is_empty()


def test_a_gazetteer_without_building_codes_is_said(tmp_path: Path) -> None:
    """The column is there and empty, and the warning names the file and what to build it from."""
    earlier = tmp_path / "earlier.parquet"
    shutil.copy(SAMPLE / "gazetteer.parquet", earlier)
    as_earlier_format(earlier, 2)
    number = read(SAMPLE / "registry_source.csv")[0, 0]
    frame = pl.DataFrame({"사업자번호": [number], "주소": ["대전광역시 유성구 대학로 313"]})
    known: dict[str, Any] = {"registry": REFERENCE["registry"], "gazetteer": earlier, "today": "2026-11-23"}
    with use_language("en"), pytest.warns(UserWarning, match=r"earlier.parquet holds no numbers .* rnaddrkor_\*\.txt"):
        found = bs.verify_frame(frame, extra_columns=EXTRA[2:], **known)
    assert found.select(EXTRA[2:]).rows() == [("3020012200", None)]


def test_enriching_again_replaces_the_extra_columns(enriched: tuple[Path, bs.Report], tmp_path: Path) -> None:
    """A file that has them gets them anew where they stand, asked for or not."""
    bs.enrich(enriched[0] / "out.csv", tmp_path / "again.csv", **REFERENCE)
    assert read(tmp_path / "again.csv").equals(read(enriched[0] / "out.csv"))


def test_a_column_of_the_users_own_is_kept(tmp_path: Path) -> None:
    """A user's ``match_level`` stays, and ours is called ``match_level_bv``."""
    source = write(
        tmp_path / "own.csv", f"사업자번호,주소,match_level\n{numbers(1)[0]},대전광역시 유성구 대학로 313,mine\n"
    )
    bs.enrich(source, tmp_path / "out.csv", extra_columns=["match_level"], **REFERENCE)
    found = read(tmp_path / "out.csv")
    assert (found["match_level"].item(), found["match_level_bv"].item()) == ("mine", "exact")


def test_without_a_gazetteer_what_stays_empty_is_said(tmp_path: Path) -> None:
    """The report names the columns that nothing fills."""
    with use_language("en"):
        report = bs.enrich(
            SAMPLE / "customers.csv", tmp_path / "out.csv", extra_columns=["match_level", "duplicate_of"]
        )
    assert "match_level: empty, since no address is looked up; give `gazetteer=`" in report.warnings


@pytest.mark.parametrize(
    ("name", "ends"),
    [("customers.csv", "csv"), ("customers.xlsx", "xlsx"), ("customers.json", "json"), ("customers.csv", "parquet")],
)
def test_the_files_of_the_actions_hold_every_row_once(tmp_path: Path, name: str, ends: str) -> None:
    """Together they are the output: each row in the file of its action, in the order of the list."""
    report = bs.enrich(SAMPLE / name, tmp_path / f"out.{ends}", split="action", **REFERENCE)
    reader: Any = {"csv": read, "xlsx": pl.read_excel, "json": read_list, "parquet": pl.read_parquet}[ends]
    options = {"infer_schema_length": 0} if ends == "xlsx" else {}
    parts = {part: reader(tmp_path / f"out.{part}.{ends}", **options) for part in PARTS}
    whole = reader(tmp_path / f"out.{ends}", **options)
    assert sum(part.height for part in parts.values()) == whole.height == 300
    for action, part in parts.items():
        kept = (
            whole.filter(pl.col("action") == action) if action != "other" else whole.filter(pl.col("action").is_null())
        )
        assert pl.concat([whole.clear(), part], how="diagonal_relaxed").rows() == kept.rows()
    assert report.as_dict()["split"]["send"]["rows"] == parts["send"].height  # type: ignore[index]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("ends", "split"),
    [
        ("csv", "action"),
        ("csv", "조치"),
        ("csv.gz", "action"),
        ("xlsx", "조치"),
        ("json", "action"),
        ("parquet", "action"),
    ],
)
def test_letters_to_be_sent_are_kept_where_none_are_left(tmp_path: Path, ends: str, split: str) -> None:
    """As a `--letters` list, a part that loses all its letters is an alert and exit 3, until that is allowed."""
    out, listed = tmp_path / f"out.{ends}", tmp_path / f"letters.{ends.removesuffix('.gz')}"
    sent = tmp_path / f"out.{'send' if split == 'action' else '발송'}.{ends}"
    options: dict[str, Any] = {"split": split, "letters": listed}
    assert bs.enrich(SAMPLE / "customers.csv", out, **options, registry=REFERENCE["registry"]).exit_code == 0
    before = sent.read_bytes()
    emptied = bs.enrich(SAMPLE / "customers.csv", out, **options)
    assert emptied.exit_code == 3
    backup = sent.with_name(f"{sent.name}.bak")
    assert dict(emptied.kept) == {str(sent): str(backup)}
    assert backup.read_bytes() == before
    assert emptied.as_dict()["split"]["send"]["rows"] == 0  # type: ignore[index]
    assert any(isinstance(one, Alert) and backup.name in one for one in emptied.warnings)
    again = bs.enrich(SAMPLE / "customers.csv", out, **options | {"allow_empty": True})
    third = bs.enrich(SAMPLE / "customers.csv", out, **options)
    assert (again.exit_code, third.exit_code, third.kept) == (0, 0, {})
    assert len([*tmp_path.glob("*.bak*")]) == 1


def test_an_emptied_part_is_replaced_where_that_is_allowed_or_it_had_no_letters(tmp_path: Path) -> None:
    bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", split="action", **REFERENCE)
    report = bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", split="action", allow_empty=True)
    assert (report.exit_code, report.kept, [*tmp_path.glob("*.bak*")]) == (0, {}, [])
    joint = bs.enrich([SAMPLE / "customers.csv", SAMPLE / "customers.xlsx"], tmp_path / "out", split="action")
    assert joint.exit_code == 0


def test_a_part_that_somebody_edited_and_that_is_emptied_is_kept_once(tmp_path: Path) -> None:
    bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", split="action", **REFERENCE)
    write(tmp_path / "out.send.csv", "메모\n")
    report = bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", split="action")
    assert (report.exit_code, [one.name for one in tmp_path.glob("*.bak*")]) == (3, ["out.send.csv.bak"])


def test_a_split_in_korean_has_korean_names(tmp_path: Path) -> None:
    """Who says 조치 gets files with names in Korean; as always one for each action."""
    report = bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", split="조치", **REFERENCE)
    names = {path.name for path in tmp_path.iterdir()}
    assert names > {"out.발송.csv", "out.발송_금지.csv", "out.주소_보완.csv", "out.확인_후_발송.csv", "out.기타.csv"}
    assert not any("send" in name for name in names)
    assert set(report.as_dict()["split"]) == set(PARTS)  # type: ignore[call-overload]


def test_nothing_is_published_where_the_parts_do_not_balance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that no file takes stops the run: neither the output nor a part appears."""
    monkeypatch.setattr(side_files, "OTHER", "nowhere")
    with pytest.raises(AccountingError, match="nothing was published"):
        bs.enrich(SAMPLE / "customers.csv", tmp_path / "out.csv", split="action", **REFERENCE)
    assert list(tmp_path.iterdir()) == []


def test_the_list_has_a_row_for_each_letter_sorted_by_postal_code(enriched: tuple[Path, bs.Report]) -> None:
    """Its rows are those that say send, without those that repeat another of them."""
    letters, whole = read(enriched[0] / "l.csv"), read(enriched[0] / "out.csv").with_row_index("row", 1)
    send = whole.filter(pl.col("action") == "send").with_columns(
        same=pl.coalesce(pl.col("duplicate_of").cast(pl.UInt32), "row")
    )
    assert letters.columns == ["recipient", "address 1", "address 2", "postal code"]
    assert letters.height == send["same"].n_unique()
    assert letters["postal code"].to_list() == sorted(letters["postal code"].to_list())
    assert letters["postal code"].str.len_chars().unique().to_list() == [5]
    sent = set(send["fixed_address"])
    apart = [
        f"{one}{', ' if two and not two.startswith('(') else ' '}{two or ''}".strip()
        for _, one, two, _ in letters.rows()
    ]
    assert set(apart) == sent


def test_the_report_says_how_many_letters_fewer_and_what_is_saved(enriched: tuple[Path, bs.Report]) -> None:
    """The parts of the count are the rows, and what is saved is the letters that are not sent."""
    found = enriched[1].as_dict()["letters"]
    assert isinstance(found, dict)
    parts = ("letters", "repeated", "stopped", "waiting", "unanswered")
    assert sum(found[part] for part in parts) == 300
    assert found["fewer"] == found["repeated"] + found["stopped"] > 0
    assert found["saved"] == 500 * found["fewer"]
    assert f"{found['fewer']} letters fewer, ₩{found['saved']:,.0f} saved" in str(enriched[1])


@pytest.mark.parametrize("joint", [False, True])
def test_letters_that_lack_a_name_or_a_postal_code_are_counted_and_told(tmp_path: Path, joint: bool) -> None:
    """Each empty cell of the list is counted under its kind; without a list nobody asks for them."""
    rows = read(SAMPLE / "customers.csv")
    name = rows.columns[1]
    blank = rows.with_columns(pl.when(pl.int_range(pl.len()) % 7 == 0).then(pl.lit(" ")).otherwise(name).alias(name))
    blank.write_csv(source := tmp_path / "a.csv")
    inputs, output = ([source, tmp_path / "none*.csv"], tmp_path / "out") if joint else (source, tmp_path / "out.csv")
    if joint:
        write(tmp_path / "none.csv", "사업자번호,상호,주소\n")
    with use_language("en"):
        report = bs.enrich(inputs, output, letters=tmp_path / "l.csv", registry=REFERENCE["registry"])
        plain = bs.enrich(source, tmp_path / "plain.csv", letter_cost=500, registry=REFERENCE["registry"])
    letters, told = read(tmp_path / "l.csv"), report.as_dict()["letters"]
    lacking = dict(letters.select("recipient", "address 1", "postal code").null_count().row(0, named=True))
    assert lacking["recipient"] > 0
    assert (told["without_name"], told["without_address"], told["without_postal_code"]) == tuple(lacking.values())
    assert f"letters without a name {lacking['recipient']:,} · without an address" in str(report)
    assert plain.as_dict()["letters"]["without_name"] == 0
    assert "incomplete" not in str(plain)


def test_a_row_that_waits_takes_no_letter_from_the_same_row_that_is_sent() -> None:
    """Of rows that are the same the first that says send gets the letter."""
    from bansong.run.columns import FIRST
    from bansong.run.side_files import LETTER, mark_letters

    rows = pl.LazyFrame(
        {"row_id": [0, 1, 2, 3], "action": ["hold", "send", "send", None], FIRST: [None, 0, 0, None]},
        schema={"row_id": pl.get_index_type(), "action": pl.String, FIRST: pl.UInt32},
    )
    assert mark_letters(rows).collect()[LETTER].to_list() == [False, True, False, False]


@pytest.mark.parametrize("joint", [False, True])
def test_of_two_rows_for_a_letter_the_one_with_a_name_wins(tmp_path: Path, joint: bool) -> None:
    """A masked or blank name is none: the list takes the name of the other row, and counts who has none at all."""
    registry = read(SAMPLE / "registry_source.csv")
    active = registry.filter(pl.col(registry.columns[1]).str.contains("계속"))[registry.columns[0]].head(4)
    address = "서울특별시 종로구 종로 436"
    names = [("아**", "아람상사"), ("", "나래물산"), ("-", "＊＊상회"), ("다온", "마루")]
    lines = [f"{b_no},{name},{address}" for b_no, pair in zip(active, names, strict=True) for name in pair]
    source = write(tmp_path / "a.csv", "\n".join(["사업자번호,상호,주소", *lines]) + "\n")
    write(tmp_path / "none.csv", "사업자번호,상호,주소\n")
    inputs, output = ([source, tmp_path / "none.csv"], tmp_path / "out") if joint else (source, tmp_path / "out.csv")
    report = bs.enrich(inputs, output, letters=tmp_path / "l.csv", **REFERENCE)
    assert read(tmp_path / "l.csv")["recipient"].to_list() == ["아람상사", "나래물산", None, "다온"]
    told = report.as_dict()["letters"]
    assert (told["letters"], told["repeated"], told["without_name"]) == (4, 4, 1)


def test_the_report_the_page_and_the_list_agree_on_the_letters(tmp_path: Path) -> None:
    """Rows that repeat a letter are on the page as rows to send, and the letters beside them; in later pages, too."""
    with use_language("en"):
        report = bs.enrich(
            SAMPLE / "customers.csv",
            tmp_path / "out.csv",
            letters=tmp_path / "l.csv",
            report=tmp_path / "p.html",
            manifest=tmp_path / "run.json",
            **REFERENCE,
        )
        report_page(tmp_path / "run.json", tmp_path / "later.html")
    letters = read(tmp_path / "l.csv").height
    told = report.as_dict()["letters"]
    assert isinstance(told, dict)
    assert told["letters"] == letters != (read(tmp_path / "out.csv")["action"] == "send").sum()
    for page in ("p.html", "later.html"):
        assert f"<li><strong>{letters:,}</strong>letters</li>" in (tmp_path / page).read_text("utf-8")


@pytest.mark.parametrize("filtered", [False, True])
def test_rows_that_a_filter_hides_are_counted_and_told_first(tmp_path: Path, filtered: bool) -> None:
    """Hidden rows are verified and get letters, so the reader must know of them; rows without a cell are none."""
    book = openpyxl.load_workbook(SAMPLE / "customers.xlsx")
    sheet = book.active
    hidden = range(5, 17) if filtered else ()
    for row in (*hidden, sheet.max_row + 3):
        sheet.row_dimensions[row].hidden = True
    book.save(tmp_path / "in.xlsx")
    report = bs.enrich(tmp_path / "in.xlsx", tmp_path / "out.xlsx", letters=tmp_path / "l.csv", **REFERENCE)
    told = [one for one in report.warnings if isinstance(one, Alert) and "hidden" in one]
    assert [one.split()[0] for one in told] == (["12"] if filtered else [])
    assert report.rows == 300


def test_the_list_is_safe_in_a_spreadsheet_and_korean_for_koreans(tmp_path: Path) -> None:
    """No name begins a formula, a postal code keeps its zero, headings are Korean; all columns print on one page."""
    registry = read(SAMPLE / "registry_source.csv")
    active = registry.filter(pl.col(registry.columns[1]).str.contains("계속"))[registry.columns[0]][0]
    source = write(
        tmp_path / "a.csv", f'사업자번호,상호,주소\n{active},"=HYPERLINK(""x"")",서울특별시 종로구 종로 436\n'
    )
    for ends in ("csv", "xlsx"):
        with use_language("ko"):
            bs.enrich(source, tmp_path / "out.csv", letters=tmp_path / f"l.{ends}", lang="en", **REFERENCE)
    assert (tmp_path / "l.csv").read_text("utf-8-sig").splitlines() == [
        "받는 분,주소1,주소2,우편번호",
        '"\'=HYPERLINK(""x"")",서울특별시 종로구 종로 436 (종로2가),,03104',
    ]
    sheet = openpyxl.load_workbook(tmp_path / "l.xlsx").active
    assert (sheet.page_setup.orientation, sheet.sheet_properties.pageSetUpPr.fitToPage) == ("landscape", True)
    cells = list(sheet.iter_rows(min_row=2, values_only=True))
    assert cells == [('=HYPERLINK("x")', "서울특별시 종로구 종로 436 (종로2가)", None, "03104")]


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
    """The message names the option, the value and what to do."""
    monkeypatch.chdir(tmp_path)
    with use_language("en"), pytest.raises(UsageError) as error:
        bs.enrich(SAMPLE / "customers.csv", "out.csv", **options)
    assert said in str(error.value)
    assert list(tmp_path.iterdir()) == []
