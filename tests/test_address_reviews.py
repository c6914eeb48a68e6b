"""Addresses that a person decides on: listed with what they may mean, chosen, remembered, used by the next runs."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.base.messages import use_language
from bansong.engine.address.attach import suggest
from bansong.engine.address.gazetteer import Gazetteer
from bansong.errors import InputError, OutputError, StoreError, UsageError
from bansong.reference.reviews import ChoiceStore
from books import written
from conftest import SAMPLE, write
from customers import numbers
from gazetteers import GANGNAM, JONGNO, gazetteer_of

TWICE: list[tuple[Any, ...]] = [
    (JONGNO, "관철동", "", "10", "중앙로", 0, "10", "03190", "종로1가동", 0, ""),
    (GANGNAM, "역삼동", "", "700", "중앙로", 0, "10", "06200", "역삼1동", 0, "중앙빌딩"),
    (GANGNAM, "역삼동", "", "701", "테헤란로", 0, "1", "06201", "역삼1동", 0, ""),
]
FIRST, SECOND, THIRD = numbers(3)
Enrich = Callable[..., tuple[pl.DataFrame, bs.Report]]
HEADER = "사업자번호,상호,주소,우편번호"


@pytest.fixture(scope="module")
def gazetteer(tmp_path_factory: pytest.TempPathFactory) -> Gazetteer:
    return gazetteer_of(TWICE, tmp_path_factory.mktemp("reviews"))


def list_of(folder: Path) -> Path:
    """Two businesses at an address of two roads, one of them twice, one at an address that is sure."""
    rows = [
        f'{FIRST},=가나,"서울 중앙로 10, 3층",',
        f"{SECOND},나다,서울 중앙로 10 3층,",
        f'{FIRST},가나,"서울  중앙로 10 , 3층",',
        f"{THIRD},다라,서울 강남구 테헤란로 1,06201",
    ]
    return write(folder / "customers.csv", "\n".join([HEADER, *rows]) + "\n")


@pytest.fixture
def customers(tmp_path: Path) -> Path:
    return list_of(tmp_path)


@pytest.fixture
def enrich(gazetteer: Gazetteer, tmp_path: Path, customers: Path) -> Enrich:
    def run(**options: Any) -> tuple[pl.DataFrame, bs.Report]:
        report = bs.enrich(customers, tmp_path / "out.csv", gazetteer=gazetteer, today="2026-11-23", **options)
        return pl.read_csv(tmp_path / "out.csv", infer_schema=False), report

    return run


@pytest.fixture(scope="module")
def made_review(gazetteer: Gazetteer, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("review")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        bs.enrich(list_of(folder), gazetteer=gazetteer, review=folder / "review.xlsx", today="2026-11-23")
    return (folder / "review.xlsx").read_bytes()


@pytest.fixture
def review(made_review: bytes, tmp_path: Path) -> None:
    (tmp_path / "review.xlsx").write_bytes(made_review)


def choose(path: Path, *choices: str | int | None) -> Path:
    """Fill in the cells of the choice, in the order of the lines: a number is that of a candidate."""
    book = openpyxl.load_workbook(path)
    sheet = book.worksheets[0]
    titles = [cell.value for cell in sheet[2]]
    place = titles.index("choice" if "choice" in titles else "선택") + 1
    for line, choice in enumerate(choices, 3):
        candidate = sheet.cell(line, place + choice).value if isinstance(choice, int) else choice
        sheet.cell(line, place, candidate)
    book.save(path)
    return path


def test_a_review_lists_each_address_once_with_its_candidates(enrich: Enrich, tmp_path: Path) -> None:
    """One line a business and address, all its candidates, a list to choose from, nothing that begins a formula."""
    _, report = enrich(review=tmp_path / "review.xlsx")
    assert "2 addresses to be decided on" in str(report)
    assert stat.S_IMODE((tmp_path / "review.xlsx").stat().st_mode) == 0o600
    sheet = openpyxl.load_workbook(tmp_path / "review.xlsx").worksheets[0]
    _, titles, *lines = ([cell.value for cell in row] for row in sheet.iter_rows())
    assert [line[:3] for line in lines] == [[1, FIRST, "=가나"], [2, SECOND, "나다"]]
    assert sheet["C3"].data_type == "s"
    for found in (dict(zip(titles, line, strict=True)) for line in lines):
        assert {found["candidate 1"], found["candidate 2"]} == {
            "서울특별시 강남구 중앙로 10, 3층 (역삼동) [06200]",
            "서울특별시 종로구 중앙로 10, 3층 (관철동) [03190]",
        }
        assert found["candidate 3"] is found["choice"] is None
        assert found["what is not sure"] == "fits several places"
    assert (sheet.page_setup.orientation, sheet.sheet_properties.pageSetUpPr.fitToPage) == ("landscape", True)
    offered = [(one.type, str(one.sqref), one.formula1) for one in sheet.data_validations.dataValidation]
    assert offered == [("list", "G3:G4", "$H3:$M3"), ("list", "G1", '"yes,no"')]
    assert (sheet["G3"].fill.fgColor.rgb, sheet["H3"].fill.fill_type, sheet.freeze_panes) == ("00FFF2CC", None, "C3")


@pytest.mark.usefixtures("review")
def test_a_choice_is_used_by_the_next_run_for_this_business_alone(enrich: Enrich, tmp_path: Path) -> None:
    """The chosen address and code, with who and when in the reasons; the same words of another business stay open."""
    before, _ = enrich(choices=False)
    found = bs.apply_review(choose(tmp_path / "review.xlsx", 1), by="김대리", today="2026-11-22")
    assert (found.new, found.changed, found.known, found.open) == (1, 0, 0, 1)
    chosen = openpyxl.load_workbook(tmp_path / "review.xlsx").worksheets[0]["G3"].value
    after, report = enrich(review=tmp_path / "again.xlsx", lang="ko")
    for row in (0, 2):
        assert f"{after['fixed_address'][row]} [{after['fixed_zipcode'][row]}]" == chosen
        assert "검토에서 선택한 주소 (review, 2026-11-22, 김대리)" in after["reasons"][row]
    assert after["fixed_address"][1] is None
    assert after.row(1)[:-3] == before.row(1)[:-3]
    assert "1 address to be decided on" in str(report)
    assert enrich(choices=False)[0].equals(before)


@pytest.mark.usefixtures("review")
def test_a_review_may_be_applied_again_and_changed(tmp_path: Path) -> None:
    """The same review changes nothing; a later choice replaces the earlier one; an empty cell takes nothing away."""
    bs.apply_review(choose(tmp_path / "review.xlsx", 1, 2), by="김")
    assert bs.apply_review(tmp_path / "review.xlsx", by="김").known == 2
    found = bs.apply_review(choose(tmp_path / "review.xlsx", 2, ""), by="이")
    assert (found.new, found.changed, found.open) == (0, 1, 1)
    assert sorted(ChoiceStore().read()["by"]) == ["김", "이"]
    assert stat.S_IMODE(ChoiceStore().path.stat().st_mode) == 0o600


def test_a_korean_review_is_read_in_any_language(enrich: Enrich, tmp_path: Path) -> None:
    """Headers follow the language that wrote them; a number stands for the candidate of that place."""
    with use_language("ko"):
        enrich(review=tmp_path / "검토.xlsx")
    sheet = openpyxl.load_workbook(tmp_path / "검토.xlsx").worksheets[0]
    assert (sheet["A2"].value, sheet["F2"].value, sheet["G2"].value) == ("행", "확인이 필요한 이유", "선택")
    assert bs.apply_review(choose(tmp_path / "검토.xlsx", "2"), by="김").new == 1


@pytest.mark.usefixtures("review")
def test_what_is_none_of_the_candidates_is_refused_whole(tmp_path: Path) -> None:
    """Row and value are named, and nothing is remembered of the other lines either."""
    with pytest.raises(InputError, match=r"1 choice is none of the candidates .*row 4: '서울 어딘가'"):
        bs.apply_review(choose(tmp_path / "review.xlsx", 1, "서울 어딘가"))
    assert not ChoiceStore().path.exists()
    with pytest.raises(InputError, match="is no review"):
        bs.apply_review(write(tmp_path / "x.csv", f"{HEADER}\n{FIRST},,,\n"))
    with pytest.raises(UsageError, match="cannot stand in a reason"):
        bs.apply_review(tmp_path / "review.xlsx", by="a|b")


@pytest.mark.usefixtures("review")
def test_a_building_that_is_gone_is_told_and_not_used(customers: Path, tmp_path: Path) -> None:
    """With a newer gazetteer the row is what it would be without the choice, and the report begins with it."""
    lines = openpyxl.load_workbook(tmp_path / "review.xlsx").worksheets[0]
    bs.apply_review(choose(tmp_path / "review.xlsx", 1 if "종로구" in str(lines.cell(3, 8).value) else 2), by="김")
    (tmp_path / "newer").mkdir()
    newer = gazetteer_of(TWICE[1:], tmp_path / "newer")
    report = bs.enrich(customers, tmp_path / "new.csv", gazetteer=newer)
    plain = bs.enrich(customers, tmp_path / "plain.csv", gazetteer=newer, choices=False)
    assert (tmp_path / "new.csv").read_bytes() == (tmp_path / "plain.csv").read_bytes()
    for one, said in ((report, ["2 rows"]), (plain, [])):
        assert [text[:6] for text in one.warnings if "chosen in a review" in text] == said


@pytest.mark.usefixtures("review")
@pytest.mark.filterwarnings("ignore:.*statuses checked")
def test_frames_and_single_lookups_use_choices_too(gazetteer: Gazetteer, tmp_path: Path) -> None:
    bs.apply_review(choose(tmp_path / "review.xlsx", 1), by="김")
    frame = pl.DataFrame({"사업자번호": [FIRST], "주소": ["서울 중앙로 10 3층"]})
    registry: dict[str, Any] = {"registry": SAMPLE / "registry.parquet", "gazetteer": gazetteer}
    found = bs.verify_frame(frame, **registry)["fixed_address"][0]
    assert found == bs.verify(FIRST, address="서울 중앙로 10 3층", **registry).fixed_address is not None
    assert bs.verify_frame(frame, choices=False, **registry)["fixed_address"][0] is None


@pytest.mark.usefixtures("review")
def test_forgetting_a_business_erases_its_choices(tmp_path: Path) -> None:
    bs.apply_review(choose(tmp_path / "review.xlsx", 1, 1), by="김")
    report = bs.forget(FIRST)
    assert [store.counts for store in report.stores if store.store == "chosen addresses"] == [{"choices": 1}]
    assert ChoiceStore().read()["b_no"].to_list() == [int(SECOND)]
    assert FIRST.encode() not in ChoiceStore().path.read_bytes()


def test_what_cannot_be_reviewed_is_said_before_anything_is_done(customers: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    for options, error, said in (
        ({"review": tmp_path / "review.xlsx"}, UsageError, "give `gazetteer=`"),
        ({"review": tmp_path / "review.csv"}, OutputError, r"call it \.xlsx"),
        ({"choices": tmp_path / "none.sqlite"}, StoreError, "there is no such file"),
    ):
        with pytest.raises(error, match=said):
            bs.enrich(customers, out, **options)
    assert not out.exists()


@pytest.mark.usefixtures("review")
def test_a_review_that_was_filled_in_and_not_applied_is_kept(enrich: Enrich, tmp_path: Path) -> None:
    decided = choose(tmp_path / "review.xlsx", 1).read_bytes()
    _, report = enrich(review=tmp_path / "review.xlsx")
    assert dict(report.kept) == {str(tmp_path / "review.xlsx"): str(tmp_path / "review.xlsx.bak")}
    assert (tmp_path / "review.xlsx.bak").read_bytes() == decided


def test_the_commands_do_it(gazetteer: Gazetteer, customers: Path, run: Any, tmp_path: Path) -> None:
    command = ("enrich", customers, "-o", "out.csv", "--gazetteer", gazetteer.path)
    assert run(*command, "--review", "review.xlsx").returncode == 0
    choose(tmp_path / "review.xlsx", 1, 2)
    done = run("data", "apply-review", "review.xlsx", "--by", "김", "--json")
    assert (done.returncode, '"new": 2' in done.stdout) == (0, True)
    assert run(*command).returncode == 0
    assert pl.read_csv(tmp_path / "out.csv", infer_schema=False)["fixed_address"].null_count() == 0


def test_more_places_than_are_shown_are_the_likeliest(gazetteer: Gazetteer) -> None:
    """A word that speaks for a place puts it first, whatever the others are; an address like none has no candidate."""
    asked = pl.DataFrame({"address": ["서울 중앙로 10 (관철동)", "없는길 1"], "zipcode": ["06200", None]})
    assert suggest(asked, gazetteer, "en", most=1)["row"].to_list() == [0]
    assert suggest(asked, gazetteer, "en")["row"].to_list() == [0, 0]


@pytest.mark.process
def test_places_may_be_suggested_before_any_row_is_matched(gazetteer: Gazetteer) -> None:
    """A suggestion leaves nothing behind that a match stumbles over, in a process of its own."""
    code = f"""
import polars as pl
from bansong.engine.address.attach import attach, suggest
from bansong.engine.address.gazetteer import Gazetteer
gazetteer = Gazetteer.open({str(gazetteer.path)!r})
asked = pl.DataFrame({{"address": ["서울 강남구 테헤란로 1", "서울 중앙로 10"], "zipcode": [None, None]}},
                     schema=dict.fromkeys(("address", "zipcode"), pl.String))
assert suggest(asked, gazetteer, "ko")["row"].to_list() == [0, 1, 1]
print(*attach(asked.lazy(), gazetteer, "ko").collect()["match_level"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["exact", "ambiguous"]


@pytest.mark.usefixtures("review")
def test_a_review_that_was_sorted_cut_and_saved_by_another_program_is_read(tmp_path: Path) -> None:
    """Lines in another order or gone, numbers in place of texts, a title above, a column of their own: all is found."""
    book = openpyxl.load_workbook(choose(tmp_path / "review.xlsx", 2, 1))
    sheet = book.worksheets[0]
    first, second = ([cell.value for cell in sheet[line]] for line in (3, 4))
    for line, values in ((3, second), (4, first)):
        for place, value in enumerate(values, 1):
            sheet.cell(line, place).value = int(value) if place == 2 else value
    sheet.insert_cols(1)
    sheet.cell(2, 1).value = "note"
    sheet.insert_rows(1)
    sheet.cell(1, 1).value = "November"
    book.save(tmp_path / "review.xlsx")
    found = bs.apply_review(tmp_path / "review.xlsx", by="김")
    assert (found.new, found.open) == (2, 0)
    stored = dict(ChoiceStore().read().select("b_no", "address").iter_rows())
    assert stored == {int(str(line[1])): str(line[6]).rsplit(" [", 1)[0] for line in (first, second)}
    sheet.delete_rows(5)
    book.save(tmp_path / "review.xlsx")
    again = bs.apply_review(tmp_path / "review.xlsx", by="김")
    assert (again.new, again.known) == (0, 1)


SINGLE: list[tuple[str, str]] = [
    ("가나", "서울 중앙로 10"),
    ("나다", "서울 강남구 중앙노 10"),
    ("다라", "서울 종로구 중앙노 10"),
]


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_single_candidates_are_accepted_in_one_cell_unless_somebody_chose_otherwise(
    gazetteer: Gazetteer, tmp_path: Path, lang: str
) -> None:
    """The rows are numbered as in the sheet; a form of an earlier release, without that cell, is read as before."""
    rows = [[number, *of] for number, of in zip(numbers(3), SINGLE, strict=True)]
    source = written(tmp_path / "list.xlsx", [["우리 고객"], [], ["사업자번호", "상호", "주소"], *rows])
    with use_language("ko" if lang == "ko" else "en"):
        bs.enrich(source, gazetteer=gazetteer, review=tmp_path / "review.xlsx", today="2026-11-23")
    book = openpyxl.load_workbook(tmp_path / "review.xlsx")
    sheet = book.worksheets[0]
    assert [line[0].value for line in sheet.iter_rows(min_row=3)] == [4, 5, 6]
    assert bs.apply_review(tmp_path / "review.xlsx", by="김").open == 3
    sheet["G1"] = "yes" if lang == "en" else "예"
    sheet["G4"] = sheet["M4"].value
    book.save(tmp_path / "review.xlsx")
    found = bs.apply_review(tmp_path / "review.xlsx", by="김")
    assert (found.new, found.open) == (1, 2)
    assert ChoiceStore().read()["b_no"].to_list() == [int(rows[2][0])]
    sheet["G4"] = None
    sheet.delete_cols(13)
    sheet.delete_rows(1)
    book.save(tmp_path / "old.xlsx")
    found = bs.apply_review(tmp_path / "old.xlsx", by="김")
    assert (found.new, found.known, found.open) == (0, 0, 3)
