"""What people decide in an output: it outlives the next runs, and is mailed by `letters`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.base.errors import Notice
from bansong.base.files import state_directory
from bansong.base.schema import HEADERS
from bansong.errors import InputError, UsageError
from books import cells, written
from conftest import SAMPLE, write

Run = Callable[..., CompletedProcess[str]]
KNOWN: dict[str, Any] = {"registry": SAMPLE / "registry.parquet"}
FLAGS = [word for name, path in KNOWN.items() for word in (f"--{name}", path)]
CITY_HALL = "서울특별시 중구 세종대로 110"


def read(path: Path) -> pl.DataFrame:
    if path.suffix == ".xlsx":
        header, *rows = cells(path)
        return pl.DataFrame(rows, schema=[*map(str, header)], orient="row", infer_schema_length=None)
    return pl.read_csv(path, infer_schema=False)


def save(frame: pl.DataFrame, path: Path) -> Path:
    if path.suffix == ".csv":
        frame.write_csv(path)
        return path
    return written(path, [frame.columns, *frame.rows()])


def edit(path: Path, row: str, **values: str | None) -> None:
    """Type into the cells of a customer's row, as in a spreadsheet."""
    frame = read(path)
    is_row = pl.col("고객코드").cast(pl.String) == row
    for name, value in values.items():
        before = pl.col(name) if name in frame.columns else pl.lit(None)
        frame = frame.with_columns(pl.when(is_row).then(pl.lit(value)).otherwise(before.cast(pl.String)).alias(name))
    save(frame, path)


def cell(path: Path, row: str, name: str) -> str | None:
    return read(path).filter(pl.col("고객코드").cast(pl.String) == row)[name].item()


def of_action(frame: pl.DataFrame, action: str, header: str = "action") -> list[str]:
    """The codes of customers that are in the list once."""
    once = frame.filter(pl.col("사업자등록번호").is_unique(), pl.col("상호").is_not_null())
    return once.filter(pl.col(header) == action)["고객코드"].cast(pl.String).to_list()


@pytest.fixture
def customers(tmp_path: Path) -> Path:
    return save(pl.read_csv(SAMPLE / "customers.csv", infer_schema=False).head(60), tmp_path / "customers.csv")


@pytest.mark.parametrize(("suffix", "lang"), [(".csv", "en"), (".xlsx", "ko")])
def test_a_decision_outlives_three_runs_with_edits_sorts_and_inserted_columns(
    tmp_path: Path, customers: Path, run: Run, suffix: str, lang: str
) -> None:
    words = HEADERS[lang]
    action, address, note = words["action"], words["fixed_address"], words["row_note"]
    send, hold = ("send", "hold") if lang == "en" else ("발송", "보류")
    out = tmp_path / f"out{suffix}"
    command = ("enrich", customers.name, "-o", out.name, *FLAGS, "--headers", lang, "--json")
    assert "decisions" not in json.loads(run(*command).stdout)
    whole = read(out)
    phoned, moved = of_action(whole, "confirm" if lang == "en" else "확인 후 발송", action)[:2]
    sent = of_action(whole, send, action)[0]

    # the first of them is telephoned; a column is inserted in front, the rows are sorted, one is deleted
    edit(out, phoned, **{action: send, "메모": "통화함"})
    edited = read(out).filter(pl.col("고객코드").cast(pl.String) != sent).sort("상호", descending=True)
    save(edited.select("메모", pl.exclude("메모")), out)
    told = json.loads(run(*command).stdout)["decisions"]
    assert (told["action"], told["fixed_address"], told["columns"], told["lost"]) == (1, 0, ["메모"], [])
    assert (cell(out, phoned, action), cell(out, phoned, "메모")) == (send, "통화함")
    mark = "decided by hand: action" if lang == "en" else "직접 결정: 조치"
    assert cell(out, phoned, note) == mark
    assert read(out)["고객코드"].to_list() == whole["고객코드"].to_list()

    # nobody touches it; the list is sorted, and has a new column
    newer = read(customers).sort("대표자").with_columns(매출=pl.lit("1"))
    save(newer, customers)
    told = json.loads(run(*command).stdout)["decisions"]
    assert (told["action"], told["columns"]) == (1, ["메모"])
    assert (cell(out, phoned, action), cell(out, phoned, note)) == (send, mark)

    # another address is typed in, an action that was sent is held; the phoned row's own name changes in the list
    edit(out, moved, **{address: CITY_HALL, words["fixed_zipcode"]: "04524"})
    edit(out, sent, **{action: hold})
    save(
        newer.with_columns(상호=pl.when(pl.col("고객코드") == phoned).then(pl.lit("다른 상호")).otherwise("상호")),
        customers,
    )
    place = read(out)["고객코드"].cast(pl.String).to_list().index(phoned)
    told = json.loads(run(*command).stdout)["decisions"]
    assert (told["action"], told["fixed_address"]) == (1, 1)
    assert told["lost"] == [place + (2 if suffix == ".xlsx" else 1)]
    assert (cell(out, moved, address), cell(out, sent, action)) == (CITY_HALL, hold)
    assert cell(out, phoned, action) != send
    assert cell(out, phoned, "메모") is None
    assert len([*tmp_path.glob("out*.bak*")]) == 2  # of the two runs that replaced edited files


def test_decisions_count_for_letters_and_split_files(tmp_path: Path, customers: Path) -> None:
    report = bs.enrich(customers, tmp_path / "out.csv", **KNOWN, split="action", letters=tmp_path / "l.csv")
    held = of_action(read(tmp_path / "out.csv"), "send")[0]
    edit(tmp_path / "out.csv", held, action="hold")
    again = bs.enrich(customers, tmp_path / "out.csv", **KNOWN, split="action", letters=tmp_path / "l.csv")
    assert report.beside is not None
    assert again.beside is not None
    assert report.beside.letters is not None
    assert again.beside.letters is not None
    assert again.beside.letters.letters == report.beside.letters.letters - 1
    assert held in read(tmp_path / "out.hold.csv")["고객코드"].to_list()


def test_an_emptied_action_and_no_decisions_ask_for_our_answer_again(tmp_path: Path, customers: Path) -> None:
    out = tmp_path / "out.csv"
    bs.enrich(customers, out, **KNOWN)
    whole = out.read_bytes()
    held, other = of_action(read(out), "send")[:2]
    for row in (held, other):
        edit(out, row, action="hold")
    bs.enrich(customers, out, **KNOWN)
    edit(out, held, action=None)
    report = bs.enrich(customers, out, **KNOWN)
    assert (cell(out, held, "action"), cell(out, other, "action")) == ("send", "hold")
    assert report.decisions is not None
    assert report.decisions.counts == {"action": 1, "fixed_address": 0}
    assert bs.enrich(customers, out, **KNOWN, decisions=False).decisions is None
    assert out.read_bytes() == whole
    assert bs.enrich(customers, out, **KNOWN).decisions is None


def test_a_named_file_is_known_again_under_another_name_and_without_a_record_by_its_marks(
    tmp_path: Path, customers: Path, state_directory: Path
) -> None:
    out, copy = tmp_path / "out.csv", tmp_path / "김대리.bak"
    bs.enrich(customers, out, **KNOWN)
    first, second = of_action(read(out), "send")[:2]
    edit(out, first, action="hold")
    save(read(out), tmp_path / "out.xlsx").rename(copy)
    bs.enrich(customers, out, **KNOWN, decisions=False)
    report = bs.enrich(customers, out, **KNOWN, decisions=copy)
    assert (cell(out, first, "action"), report.decisions and report.decisions.known) == ("hold", True)

    edit(out, second, action="hold", 메모="통화함")
    shutil.rmtree(state_directory / "written")
    codes = {}
    for decisions in (None, out):
        shutil.copy(out, tmp_path / "again.csv")
        report = bs.enrich(customers, tmp_path / "again.csv", **KNOWN, decisions=decisions)
        assert report.decisions is not None
        assert not report.decisions.known
        codes[decisions] = [one.code for one in report.warnings if hasattr(one, "code")]
        assert cell(tmp_path / "again.csv", first, "action") == "hold"
        assert cell(tmp_path / "again.csv", second, "action") == "send"
        assert ("메모" in read(tmp_path / "again.csv").columns) is (decisions is not None)
        shutil.rmtree(state_directory / "written")
    assert all("alert.decisions_unknown" in found for found in codes.values())


def test_rows_that_are_twice_are_told_apart_by_their_other_cells_or_lose_what_differs(
    tmp_path: Path, customers: Path
) -> None:
    whole, out = read(customers), tmp_path / "out.csv"
    bs.enrich(customers, out, **KNOWN)
    row = of_action(read(out), "send")[0]
    twin = whole.filter(pl.col("고객코드") == row).with_columns(고객코드=pl.lit("twin"))
    save(pl.concat([whole, twin]), customers)
    bs.enrich(customers, out, **KNOWN)
    edit(out, "twin", action="hold")
    for _ in range(2):
        save(read(customers).reverse(), customers)
        report = bs.enrich(customers, out, **KNOWN)
        assert report.decisions is not None
        assert (report.decisions.counts["action"], report.decisions.lost) == (1, ())
        assert (cell(out, row, "action"), cell(out, "twin", "action")) == ("send", "hold")
    save(read(customers).drop("고객코드"), customers)
    lost = bs.enrich(customers, out, **KNOWN).decisions
    assert lost is not None
    assert (lost.counts["action"], len(lost.lost)) == (0, 1)


def test_a_marked_output_that_is_enriched_itself_keeps_its_note_column(tmp_path: Path, customers: Path) -> None:
    out = tmp_path / "out.csv"
    bs.enrich(customers, out, **KNOWN)
    frame = read(out)
    save(frame.with_columns(action=pl.col("action").str.replace("^send$", "hold")), out)
    bs.enrich(customers, out, **KNOWN)
    bs.enrich(out, tmp_path / "again.csv", **KNOWN, decisions=out)
    assert read(tmp_path / "again.csv").equals(read(out))


@pytest.mark.parametrize(("suffix", "lang"), [(".csv", "en"), (".xlsx", "ko")])
def test_letters_are_made_of_a_file_as_people_left_it(
    tmp_path: Path, customers: Path, run: Run, suffix: str, lang: str
) -> None:
    words = HEADERS[lang]
    action, out = words["action"], tmp_path / f"out{suffix}"
    send, stop = ("send", "hold") if lang == "en" else ("발송", "발송금지")  # a space is left out
    run("enrich", customers.name, "-o", out.name, *FLAGS, "--headers", lang, "--letters", "before.csv")
    whole = json.loads(run("letters", out.name, "-o", "same.csv", "--json").stdout)
    assert (tmp_path / "same.csv").read_bytes() == (tmp_path / "before.csv").read_bytes()
    assert whole["sent_by_hand"] == []
    frame = read(out)
    risky = of_action(frame, "do_not_send" if lang == "en" else "발송 금지", action)[0]
    sent, moved, gone = of_action(frame, send, action)[:3]
    edit(out, risky, **{action: send})
    edit(out, sent, **{action: stop, "담당": "김"})
    edit(out, moved, **{words["fixed_address"]: CITY_HALL, words["fixed_zipcode"]: "04524", "상호": "새 이름"})
    edited = (
        read(out).filter(pl.col("고객코드").cast(pl.String) != gone).sort("주소").select("담당", pl.exclude("담당"))
    )
    save(edited, out)
    done = run("letters", out.name, "-o", "letters.csv", "--letter-cost", "500", "--json")
    told, letters = json.loads(done.stdout), read(tmp_path / "letters.csv")
    place = read(out)["고객코드"].cast(pl.String).to_list().index(risky)
    assert told["sent_by_hand"] == [place + (2 if suffix == ".xlsx" else 1)]
    assert told["letters"]["letters"] == letters.height == whole["letters"]["letters"] - 1
    assert ("새 이름", CITY_HALL, "04524") in letters.select("recipient", "address 1", "postal code").rows()
    assert done.returncode == 0


def test_a_typed_address_never_gets_the_postal_code_of_another(tmp_path: Path, customers: Path) -> None:
    """Not that of the address before, nor the list's; only one that was typed, too, or that is certain."""
    out, gazetteer = tmp_path / "out.csv", {"gazetteer": SAMPLE / "gazetteer.parquet"}
    bs.enrich(customers, out, **KNOWN, **gazetteer)
    sent = read(out).filter(
        pl.col("fixed_address").is_not_null(), pl.col("고객코드").is_in(of_action(read(out), "send"))
    )
    known = sent.unique("fixed_zipcode", keep="first", maintain_order=True).sort("고객코드")
    one, two, three, four = known["고객코드"][:4]
    other, code = known["fixed_address"][5], known["fixed_zipcode"][5]
    edit(out, one, fixed_address=f"{other}, 3층")
    edit(out, two, fixed_address=CITY_HALL, fixed_zipcode="04524")
    edit(out, three, fixed_address="서울특별시 중구 없는길 1")
    edit(out, four, fixed_address=None)  # as it was given

    def letters_of(options: dict[str, Any]) -> tuple[dict[str, str | None], list[int]]:
        if options:
            told = bs.enrich(
                customers, out, letters=tmp_path / "l.csv", letter_columns=["고객코드"], **options
            ).warnings
        else:
            told = bs.letters(out, tmp_path / "l.csv", letter_columns=["고객코드"]).warnings
        rows = [one.fields["count"] for one in told if isinstance(one, Notice) and one.code == "alert.zipcode_left_out"]
        letters = pl.read_csv(tmp_path / "l.csv", infer_schema=False)
        return dict(letters.select("고객코드", "postal code").rows()), rows

    given = read(customers).filter(pl.col("고객코드") == four)["우편번호"].item()
    for options, first, left in (({}, None, [2]), ({**KNOWN}, None, [2]), ({**KNOWN, **gazetteer}, code, [1])):
        for _ in range(2):  # later runs find what the first has written
            codes, told = letters_of(options)
            assert [codes[key] for key in (one, two, three, four)] == [first, "04524", None, given], options
            assert told == left
    assert letters_of({}) == (codes, [1])
    edit(out, two, fixed_address="서울특별시 중구 없는길 2")
    codes, told = letters_of({})
    assert (codes[two], told) == (None, [2])


def test_the_only_address_of_a_file_is_one_that_was_typed(tmp_path: Path, customers: Path) -> None:
    """Without a gazetteer both columns are blank, and stay ours if one of them is filled."""
    out = tmp_path / "out.csv"
    bs.enrich(customers, out, **KNOWN)
    row = of_action(read(out), "send")[0]
    edit(out, row, fixed_address=CITY_HALL)
    told = bs.letters(out, tmp_path / "l.csv").warnings
    assert [one.code for one in told if isinstance(one, Notice)] == ["alert.zipcode_left_out"]
    letters = pl.read_csv(tmp_path / "l.csv", infer_schema=False)
    assert letters.filter(pl.col("address 1") == CITY_HALL)["postal code"].to_list() == [None]
    decisions = bs.enrich(customers, out, **KNOWN).decisions
    assert decisions is not None
    assert decisions.counts["fixed_address"] == 1
    assert cell(out, row, "fixed_address") == CITY_HALL


@pytest.mark.parametrize("left", [["고객코드"], ["고객코드", "상호", "주소"], ["고객코드", "사업자등록번호"]])
def test_decisions_that_cannot_be_known_again_are_told(tmp_path: Path, customers: Path, left: list[str]) -> None:
    out = tmp_path / "out.csv"
    bs.enrich(customers, out, **KNOWN, select=left)
    sent = read(out).filter(pl.col("action") == "send")["고객코드"][0]
    edit(out, sent, action="hold")
    told = bs.enrich(customers, out, **KNOWN, select=left).warnings
    assert "alert.decisions_unknown" in [one.code for one in told if isinstance(one, Notice)]
    other = write(tmp_path / "own.csv", "a\n1\n")  # replaced, too, and never an output
    told = bs.enrich(customers, other, **KNOWN, select=left).warnings
    assert "alert.decisions_unknown" not in [one.code for one in told if isinstance(one, Notice)]


def test_letters_name_rows_whose_action_was_merged_away(tmp_path: Path, customers: Path) -> None:
    bs.enrich(customers, out := tmp_path / "out.xlsx", **KNOWN)
    book = openpyxl.load_workbook(out)
    sheet = book.worksheets[0]
    letter = next(one.column_letter for one in sheet[1] if one.value == "action")
    rows = [one.row for one in sheet[letter] if one.value == "send"]
    first = next(row for row in rows if row + 1 in rows)
    sheet.merge_cells(f"{letter}{first}:{letter}{first + 1}")
    book.save(out)
    (told,) = bs.letters(out, tmp_path / "l.csv").warnings
    assert isinstance(told, Notice)
    assert (told.code, told.fields["rows"]) == ("alert.actions_blank", str(first + 1))


def test_unknown_actions_are_refused_row_by_row(tmp_path: Path, customers: Path) -> None:
    out = tmp_path / "out.csv"
    bs.enrich(customers, out, **KNOWN)
    rows = read(out)["고객코드"].to_list()
    edit(out, rows[4], action="전화함")
    edit(out, rows[9], action="Send")
    with pytest.raises(InputError) as caught:
        bs.letters(out, tmp_path / "letters.xlsx")
    assert (caught.value.code, caught.value.fields["rows"]) == ("decisions.actions_unknown", [5, 10])
    assert "전화함" in str(caught.value)
    assert not (tmp_path / "letters.xlsx").exists()
    with pytest.raises(InputError) as caught:
        bs.letters(customers, tmp_path / "letters.xlsx")
    assert caught.value.code == "decisions.not_an_output"
    for options in ({"output": out}, {"output": tmp_path / "l.csv", "sheet": "*"}):
        with pytest.raises(UsageError):
            bs.letters(out, **options)
    with pytest.raises(InputError):
        bs.enrich(customers, tmp_path / "new.csv", decisions=customers, **KNOWN)
    assert not (tmp_path / "new.csv").exists()


def test_a_list_of_letters_that_would_be_empty_is_kept(tmp_path: Path, customers: Path) -> None:
    out, letters = tmp_path / "out.csv", tmp_path / "letters.xlsx"
    bs.enrich(customers, out, **KNOWN)
    bs.letters(out, letters)
    before = openpyxl.load_workbook(letters).active.max_row
    save(read(out).with_columns(action=pl.lit("hold")), out)
    assert bs.letters(out, letters).exit_code == 3
    assert openpyxl.load_workbook(letters).active.max_row == before
    assert bs.letters(out, letters, allow_empty=True).exit_code == 0


def test_outputs_of_one_name_in_several_folders_keep_their_own_decisions(tmp_path: Path, customers: Path) -> None:
    whole = read(customers)
    for place, folder in enumerate(["october", "november"]):
        (tmp_path / folder).mkdir()
        part = save(whole[place * 30 : place * 30 + 30], tmp_path / folder / "list.csv")
        bs.enrich(part, tmp_path / folder / "out.csv", **KNOWN)
    out = tmp_path / "october" / "out.csv"
    held = of_action(read(out), "send")[0]
    edit(out, held, action="hold", memo="phoned")
    save(read(out).with_columns(pl.col("상호", "주소").str.replace(" ", "  ")), out)  # other spacing is no edit
    for folder in ["october", *["november"] * 10, "october"]:
        report = bs.enrich(tmp_path / folder / "list.csv", tmp_path / folder / "out.csv", **KNOWN)
    assert report.decisions is not None
    assert (cell(out, held, "action"), cell(out, held, "memo")) == ("hold", "phoned")
    records = [*(state_directory() / "written").glob("*.parquet")]
    assert len(records) == 8 + 3  # no more of an output, so that runs of one do not push out those of others
    first = pl.read_parquet(records[0])  # no address by itself: all there are could be tried
    assert first["action"].n_unique() == first["row"].n_unique() > 20


def test_added_columns_may_hold_lists_and_objects(tmp_path: Path, customers: Path) -> None:
    out = tmp_path / "out.parquet"
    bs.enrich(customers, out, **KNOWN)
    frame = pl.read_parquet(out)
    values = [[1, 2], *[None] * (frame.height - 1)]
    frame.with_columns(
        calls=pl.Series(values), visits=pl.Series([{"n": one} if one else None for one in values])
    ).write_parquet(out)
    bs.enrich(customers, out, **KNOWN)
    assert pl.read_parquet(out).row(0, named=True).items() >= {"calls": [1, 2], "visits": {"n": [1, 2]}}.items()


def test_an_unknown_action_is_kept_and_told(tmp_path: Path, customers: Path) -> None:
    out = tmp_path / "out.csv"
    bs.enrich(customers, out, **KNOWN)
    phoned = of_action(read(out), "send")[0]
    edit(out, phoned, action="phoned")
    (told,) = [one for one in bs.enrich(customers, out, **KNOWN).as_dict()["warnings"] if "phoned" in one]
    assert "row " in told
    assert cell(out, phoned, "action") == "phoned"


def test_letters_tell_of_cells_that_could_not_be_read(tmp_path: Path, customers: Path) -> None:
    out = tmp_path / "out.xlsx"
    bs.enrich(customers, out, **KNOWN)
    book = openpyxl.load_workbook(out)
    sheet = book.worksheets[0]
    place = [one.value for one in sheet[1]].index("action") + 1
    sheet.cell(2, place).value = "#N/A"
    sheet.cell(3, place).value = "=VLOOKUP(1,A1:B2,2)"
    book.save(out)
    assert len(bs.letters(out, tmp_path / "letters.xlsx").warnings) == 3  # of two kinds of cells, and of their rows


def test_one_customer_in_two_merged_files_has_two_decisions(tmp_path: Path, customers: Path) -> None:
    second = tmp_path / "second.csv"
    shutil.copy(customers, second)
    out = tmp_path / "all.csv"
    bs.enrich([customers, second], out, merge=True, **KNOWN)
    frame = read(out)
    held = (pl.col("file") == second.name) & (pl.col("고객코드") == of_action(frame.head(60), "send")[0])
    edited = save(frame.with_columns(action=pl.when(held).then(pl.lit("hold")).otherwise("action")), out)
    wanted = read(edited)["action"].to_list()
    (part,) = bs.enrich([customers, second], out, merge=True, **KNOWN).parts
    assert part.decisions is not None
    assert (part.decisions.counts["action"], part.decisions.lost) == (1, ())
    assert read(out)["action"].to_list() == wanted


def test_a_record_that_cannot_be_written_does_not_stop_the_run(
    tmp_path: Path, customers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise pl.exceptions.ComputeError("No space left on device (os error 28)")

    out = tmp_path / "out.csv"
    bs.enrich(customers, out, **KNOWN)
    held = of_action(read(out), "send")[0]
    edit(out, held, action="hold")
    with monkeypatch.context() as patch:
        patch.setattr(pl.DataFrame, "write_parquet", full)
        bs.enrich(customers, out, **KNOWN)
    bs.enrich(customers, out, **KNOWN)
    assert cell(out, held, "action") == "hold"


def test_letters_name_rows_that_were_changed_since_they_were_checked(tmp_path: Path, customers: Path) -> None:
    out = tmp_path / "out.csv"
    bs.enrich(customers, out, **KNOWN, gazetteer=SAMPLE / "gazetteer.parquet")
    save(read(out).sort("상호").with_columns(memo=pl.lit("x")), out)
    assert bs.letters(out, tmp_path / "letters.csv").warnings == ()
    moved = of_action(read(out).filter(pl.col("fixed_address").is_not_null()), "send")[0]
    edit(out, moved, 주소=CITY_HALL)
    place = read(out)["고객코드"].to_list().index(moved)
    (told,) = bs.letters(out, tmp_path / "letters.csv").warnings
    assert isinstance(told, Notice)
    assert (told.code, f": {place + 1} (" in told) == ("alert.changed_since", True)
