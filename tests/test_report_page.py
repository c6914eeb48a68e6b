"""The page of a run: what it says are the figures of the file, what it shows of people is masked, it loads nothing."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import fields
from datetime import date, datetime
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import lxml.html
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import bansong as bs
from bansong.base.messages import use_language
from bansong.base.schema import SEOUL
from bansong.errors import BansongError
from bansong.run import page_figures
from bansong.run.manifest import open_mailing
from bansong.run.page import report_page
from bansong.run.page_figures import PageFigures, collect_figures, mask_address, mask_name, mask_number
from conftest import SAMPLE, write
from customers import numbers
from korean import english_sentences

REFERENCE = {"registry": SAMPLE / "registry.parquet", "gazetteer": SAMPLE / "gazetteer.parquet"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
Made = tuple[Path, "Page", pl.DataFrame]


class Page:
    """The elements of a page with their attributes, and its texts."""

    def __init__(self, path: Path) -> None:
        self.source = path.read_text("utf-8")
        tree = lxml.html.document_fromstring(self.source)
        self.elements = [(one.tag, dict(one.attrib)) for one in tree.iter("*")]
        texts = tree.xpath("//text()[not(ancestor::style or ancestor::svg)]")
        self.texts = [text.strip() for text in texts if text.strip()]
        self.text = "\n".join(self.texts)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The sample, enriched with its page in Korean; the page, and the output."""
    folder = tmp_path_factory.mktemp("page")
    options: dict[str, Any] = {"letter_cost": 500, "report": folder / "p.html", "manifest": folder / "run.json"}
    with use_language("ko"), pytest.MonkeyPatch.context() as patched:
        patched.setenv("BANSONG_STATE_DIR", str(folder / "state"))  # no earlier run of this machine
        bs.enrich(SAMPLE / "customers.csv", folder / "out.csv", **REFERENCE, **options)
    rows = pl.read_csv(folder / "out.csv", infer_schema=False).with_columns(pl.col("bounce_prob").cast(pl.Float64))
    return folder, Page(folder / "p.html"), rows


def test_the_page_says_the_figures_of_the_file(made: Made) -> None:
    _, page, rows = made
    actions = dict(rows["action"].value_counts().iter_rows())
    back = rows["bounce_prob"].sum()
    for value, what in (
        ("300", "행 수"),
        (f"{actions['send']:,}", "발송"),
        (f"{back:,.1f}", "모두 발송할 때 예상 반송(통)"),
        (f"{500 * back:,.0f}원", "모두 발송할 때 예상 손실"),
        (f"{176 * 500:,}원", "우편물 176통 우편요금"),
    ):
        assert page.texts[page.texts.index(value) + 1] == what
    assert "판정함 (verified) 280 + 번호 오류 (invalid) 20 = 300" in page.texts


def test_every_table_of_counts_adds_up_to_the_rows(made: Made) -> None:
    """Rows without an answer, a grade or a province have a line that says so; risks are those of the frame."""
    _, page, rows = made
    texts = page.texts
    for title in ("처리 상태", "휴·폐업 상태", "반송 등급", "조치", "시·도"):
        begin = texts.index(title, texts.index("집계")) + 3
        counts = []
        while begin + 1 < len(texts) and re.fullmatch(r"[0-9.]+%", texts[begin + 2]):
            counts.append(int(texts[begin + 1].replace(",", "")))
            begin += 3
        assert sum(counts) == 300, title
    assert rows["grade"].null_count() > rows["action"].null_count()
    assert texts[texts.index("반송 등급 없음") + 1] == f"{rows['grade'].null_count()}"
    named = rows.filter(pl.col("주소").str.contains("^제주"))
    place = texts.index("제주")
    risk = named["bounce_prob"].sum() / named.height
    assert texts[place : place + 3] == ["제주", f"{named.height}", f"{risk:.1%}"]


def test_the_page_says_how_old_the_statuses_are(made: Made) -> None:
    """In days before the run, whose day and time are those of Korea."""
    folder, page, _ = made
    began = datetime.fromisoformat(json.loads((folder / "run.json").read_text("utf-8"))["started"]).astimezone(SEOUL)
    day = began.date()
    age = (day - date(2026, 11, 1)).days
    assert f"기준일은 2026-11-01입니다({day} 기준 {age}일 전)." in page.text
    assert f"{began:%Y-%m-%d %H:%M} KST" in page.text


def test_a_page_names_what_its_reader_can_give(tmp_path: Path, run: Callable[..., CompletedProcess[str]]) -> None:
    """What mends a run is an option on the page of a run by a command, a parameter on that of a run in Python."""
    source, page = write(tmp_path / "in.csv", "사업자번호\n124-81-00998\n"), tmp_path / "page.html"
    given = ("in.csv", "-o", "out.csv", "--status", "none", "--manifest", "run.json")
    for command in (("enrich", *given, "--report", "page.html"), ("report", "run.json", "-o", "page.html")):
        assert run(*command).returncode == 0
        assert "ask the tax authority with --status nts" in Page(page).text
    bs.enrich(source, tmp_path / "out.csv", status="none", report=page)
    assert "ask the tax authority with `status='nts'`" in Page(page).text


def test_figures_are_those_of_the_frame_in_batches_of_any_size(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = made[2]
    renamed = rows.rename({"사업자등록번호": "b_no", "상호": "name", "주소": "address"})
    letters = renamed.with_row_index("row_id").lazy()
    whole = collect_figures(letters)
    assert sum(whole.counts["row_status"].values()) == whole.rows == whole.regions["rows"].sum() == 300
    assert whole.regions["expected"].sum() == pytest.approx(whole.expected) == pytest.approx(rows["bounce_prob"].sum())
    worst = rows["bounce_prob"].drop_nulls().top_k(20).sort(descending=True)
    assert whole.worst["bounce_prob"].to_list() == worst.to_list()
    assert (whole.oldest, whole.newest) == ("2026-11-01", "2026-11-01")
    monkeypatch.setattr(page_figures, "_BATCH", 40)
    parts = collect_figures(letters)
    for field in fields(PageFigures):
        one, other = getattr(whole, field.name), getattr(parts, field.name)
        if isinstance(one, pl.DataFrame):
            key = next(name for name in ("row", "reason", "region", "file") if name in one.columns)
            assert_frame_equal(one.sort(key), other.sort(key))
        else:
            assert other == (pytest.approx(one) if isinstance(one, float) else one)
    assert collect_figures(letters.clear()).rows == 0


def test_the_page_is_private_small_korean_and_loads_nothing(made: Made) -> None:
    """Mode 0600; no script, no address outside of it, and a policy that would forbid them; no English sentence."""
    folder, page, _ = made
    assert stat.S_IMODE((folder / "p.html").stat().st_mode) == 0o600
    assert len(page.source) < 2_000_000
    assert not {"script", "link", "iframe", "img", "object", "form"} & {name for name, _ in page.elements}
    loading = ("src", "href", "xlink:href", "srcset", "action")
    assert [value for _, given in page.elements for key, value in given.items() if key in loading] == []
    assert not re.search(r"url\((?!#)|@import", page.source)
    policy = [given["content"] for name, given in page.elements if given.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy[0]).startswith("default-src 'none'")
    assert ("html", {"lang": "ko"}) in page.elements
    assert english_sentences(page.text) == []
    assert {given.get("aria-hidden") for name, given in page.elements if name == "svg"} == {"true"}


def test_bars_are_as_long_as_the_figures_beside_them(made: Made) -> None:
    """Without any extra: of grades and actions in their colours, of reasons, and of provinces against the highest."""
    tree = lxml.html.document_fromstring(made[1].source)
    bars = tree.xpath("//td[svg]")
    assert {one.xpath("ancestor::table//th")[0].text_content() for one in bars} >= {"반송 등급", "조치", "시·도"}
    shares = [(one.text, float(one.xpath("svg/rect/@width")[0])) for one in bars]
    regions = [bar.xpath("ancestor::table//th")[0].text_content() == "시·도" for bar in bars]
    apart = [abs(float(text[:-1]) - width) for (text, width), region in zip(shares, regions, strict=True) if not region]
    assert max(apart) < 0.06
    assert max(width for (_, width), region in zip(shares, regions, strict=True) if region) == 100
    colours = {one.xpath("ancestor::tr/th")[0].text: one.xpath("svg/rect/@fill")[0] for one in bars}
    assert colours["A"] == colours["발송 (send)"] != colours["E"] == colours["발송 금지 (do_not_send)"]


def test_a_page_says_what_changed_since_the_run_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closure, a row that went and one that came; by itself, since the output of before is there, or by a file."""
    ids = iter(("20261120T010000-b", "20261120T010000-a"))  # of one second
    monkeypatch.setattr("bansong.run.table.new_run_id", lambda _: next(ids))
    lines = [f"{b_no},상사 {place},서울 중구 세종대로 {place}\n" for place, b_no in enumerate(numbers(6))]
    source, out, registry = tmp_path / "list.csv", tmp_path / "out.csv", tmp_path / "registry.parquet"

    def night(closed: str, rows: list[str], page: str) -> bs.Report:
        words = {b_no: "폐업자" if b_no == closed else "계속사업자" for b_no in numbers(6)}
        statuses = "".join(f"{b_no},{word}\n" for b_no, word in words.items())
        bs.build_registry([write(tmp_path / "statuses.csv", f"b_no,상태\n{statuses}")], registry, as_of="2026-11-20")
        return bs.enrich(
            write(source, "".join(["사업자번호,상호,주소\n", *rows])), out, registry=registry, report=tmp_path / page
        )

    night("", lines[:5], "first.html")
    assert "Changes since" not in Page(tmp_path / "first.html").text
    shutil.copy(out, tmp_path / "kept.csv")
    report = night(closing := numbers(6)[2], lines[1:], "second.html")
    told = Page(tmp_path / "second.html").text
    assert all(f"1\n{kind}\n" in told for kind in ("closed", "gone", "new"))
    assert closing not in told
    for given, same in (({"before": tmp_path / "kept.csv"}, True), ({}, False)):
        report_page(report.run_id, tmp_path / "page.html", **given)
        assert ("Changes since the run before" in Page(tmp_path / "page.html").text) is same
    with pytest.raises(BansongError, match="cannot be compared"):
        report_page(report.run_id, tmp_path / "page.html", before=source)


def test_people_are_masked_unless_asked(made: Made, tmp_path: Path) -> None:
    """No number, name, or address of the list stands in the page, and of a correction no digits; unmasked, they do."""
    folder, page, rows = made
    whole = {
        text
        for name in ("사업자등록번호", "주소", "fixed_address")
        for text in rows[name].drop_nulls()
        if len(text) > 9 and re.search("[0-9]", text)  # a province and a district alone are nobody's address
    }
    names = {text for text in rows["상호"].drop_nulls() if len(text) > 4}
    assert [text for text in whole | names if text in page.source] == []
    change = rows["reasons"].str.extract(r"변경: (지번 [^|]*) \(juso\)").drop_nulls()[0]
    assert (re.sub("[0-9]", "*", change) in page.texts, change in page.text) == (True, False)
    with use_language("ko"):
        report_page(folder / "out.csv", tmp_path / "open.html", unmask=True)
    worst = rows.sort("bounce_prob", descending=True, nulls_last=True).row(0, named=True)
    shown = Page(tmp_path / "open.html")
    assert all(text in shown.text for text in (worst["상호"], worst["주소"], change))


def test_masks_show_too_little_to_write_to_anybody() -> None:
    """Three digits of a number, one letter behind the kind of company, no number, nothing before a region."""
    addresses = ["서울종로구종로5길동빌딩301호", "홍길동 댁  서울 종로구 종로5길 7, 3층", "비밀빌라 301호", None]
    names = ["(주)해오름식품", "주식회사 한결", None, None]
    frame = pl.DataFrame({"x": ["1248100998", None, None, None], "n": names, "a": addresses})
    shown = frame.select(mask_number(pl.col("x")), mask_name(pl.col("n")), mask_address(pl.col("a")))
    assert shown["x"].to_list() == ["124-**-*****", None, None, None]
    assert shown["n"].to_list() == ["해○○", "한○○", None, None]
    assert shown["a"].to_list() == ["서울종로구종로 …", "서울 종로구 종로*길 …", "…", None]


def test_a_correction_marks_what_differs_and_shows_nothing_hidden(tmp_path: Path) -> None:
    """Masked and in the clear the same words are marked; a hidden word that changed is marked as such."""
    file = write(tmp_path / "in.csv", "사업자번호,상호,주소\n124-81-00998,가,경기 수원시 영통구 삼성로129 비밀빌딩\n")
    options = {"gazetteer": SAMPLE / "gazetteer.parquet", "status": "none", "report": tmp_path / "p.html"}
    marks = []
    for unmask in (False, True):
        bs.enrich(file, tmp_path / "out.csv", unmask=unmask, **options)
        tree = lxml.html.parse(tmp_path / "p.html")
        marks.append([[one.text for one in tree.xpath(f"//{name}")] for name in ("del", "ins")])
    assert marks[0] == [["경기", "○○"], ["경기도", "○○ ○○", "○○"]]
    assert marks[1] == [["경기", "삼성로129"], ["경기도", "삼성로 129,", "(매탄동)"]]


def test_hostile_cells_are_texts(tmp_path: Path) -> None:
    """What looks like HTML in a name, an address or a file's name is shown, and makes no element."""
    cell = HOSTILE.replace('"', '""')
    listed = f'사업자번호,상호,주소\n{numbers(1)[0]},"{cell}","{cell} 서울특별시 종로구 종로 436"\n'
    source = write(tmp_path / "a<b>&'.csv", listed)
    bs.enrich(source, tmp_path / "o.csv", report=tmp_path / "p.html", unmask=True, letter_cost=1)
    page = Page(tmp_path / "p.html")
    assert not {"script", "img", "b"} & {name for name, _ in page.elements}
    assert not any(key.startswith("on") for _, given in page.elements for key in given)
    assert any(HOSTILE in text for text in page.texts)
    assert "Verification of a<b>&'.csv" in page.texts


def test_a_run_its_manifest_and_its_file_have_one_page(made: Made, tmp_path: Path) -> None:
    """What was written with the run, and what is written of it later, says the same."""
    folder, page, _ = made
    with use_language("ko"):
        report_page(folder / "run.json", tmp_path / "later.html", letter_cost=500)
        report_page(folder / "out.csv", tmp_path / "file.html", letter_cost=500)
    later, of_file = Page(tmp_path / "later.html"), Page(tmp_path / "file.html")
    assert later.texts == page.texts
    assert later.elements == page.elements
    assert ("p", {"class": "soft"}) in page.elements  # a note, which no page shows in red as an alert
    lists, rest = (one.texts[one.texts.index("집계") : one.texts.index("작성 근거")] for one in (page, of_file))
    assert rest == lists


@pytest.mark.parametrize(
    ("run", "output", "said"),
    [
        ("20200101T000000-abcdef", "p.html", "there is no manifest"),
        ("lost.csv", "p.html", "there is no such file"),
        ("out.csv", "p.txt", "call it .html"),
        ("list.csv", "p.html", "has not the nine columns"),
    ],
)
def test_what_has_no_page_is_refused(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, output: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(made[0] / "out.csv", tmp_path / "out.csv")
    write(tmp_path / "list.csv", f"사업자번호,주소\n{numbers(1)[0]},서울\n")
    with pytest.raises(BansongError, match=re.escape(said)):
        report_page(run, output)
    assert not (tmp_path / output).exists()


def test_a_comparison_in_parts_is_that_of_the_whole(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, number = made[2].slice(20), pl.int_range(pl.len())
    edited = rows.with_columns(
        pl.when(number % 3 == 0).then(pl.col("상호") + " 본점").otherwise("상호").alias("상호"),
        pl.when(number % 2 == 0).then(pl.lit("unknown")).otherwise("biz_status").alias("biz_status"),
    )
    edited.write_csv(tmp_path / "before.csv")
    found = []
    for together in (1_000_000, 60):
        monkeypatch.setattr(page_figures, "_MAX_ROWS_COMPARED", together)
        with open_mailing(None, made[0] / "out.csv", besides=page_figures.BESIDES) as mailing:
            changes = page_figures.find_changes(mailing.letters, "", None, earlier=tmp_path / "before.csv")
        assert changes is not None
        found.append(changes)
    whole, parts = found
    assert whole.counts == parts.counts
    assert whole.counts["closed"] > 10 < whole.counts["new"] < 30
    assert_frame_equal(whole.rows, parts.rows)
