"""The page of a run: what it says are the figures of the file, what it shows of people is masked, it loads nothing."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import fields
from datetime import date, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result
from polars.testing import assert_frame_equal

import bansong as bs
from bansong.base.messages import use_language
from bansong.base.schema import SEOUL
from bansong.cli.app import app
from bansong.errors import BansongError
from bansong.run import page_figures
from bansong.run import page_figures as earlier_run
from bansong.run.manifest import open_mailing
from bansong.run.page import report_page
from bansong.run.page_figures import PageFigures, collect_figures, join, mask_address, mask_name, mask_number, tag
from conftest import SAMPLE, write
from customers import numbers
from korean import english_sentences

REFERENCE = {"registry": SAMPLE / "registry.parquet", "gazetteer": SAMPLE / "gazetteer.parquet"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """The elements of a page with their attributes, and its texts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._silent = 0
        self.source = path.read_text("utf-8")
        self.feed(self.source)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))
        self._silent += name in ("style", "svg")

    def handle_endtag(self, name: str) -> None:
        self._silent -= name in ("style", "svg")

    def handle_data(self, data: str) -> None:
        if not self._silent and data.strip():
            self.texts.append(data.strip())

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sample, enriched with its page in Korean."""
    folder = tmp_path_factory.mktemp("page")
    options: dict[str, Any] = {"letter_cost": 500, "report": folder / "p.html", "manifest": folder / "run.json"}
    with use_language("ko"), pytest.MonkeyPatch.context() as patched:
        patched.setenv("BANSONG_STATE_DIR", str(folder / "state"))  # no earlier run of this machine
        bs.enrich(SAMPLE / "customers.csv", folder / "out.csv", **REFERENCE, **options)
    return folder, folder / "p.html"


def test_the_page_says_the_figures_of_the_file(made: tuple[Path, Path]) -> None:
    """Rows, actions, expected returns, and money are those that the enriched file adds up to."""
    rows = pl.read_csv(made[0] / "out.csv", infer_schema_length=None, schema_overrides={"우편번호": pl.String})
    page = Page(made[1])
    actions = dict(rows["action"].value_counts().iter_rows())
    back = rows["bounce_prob"].sum()
    for value, what in (
        ("300", "행 수"),
        (f"{actions['send']:,}", "발송"),
        (f"{back:,.1f}", "모두 발송할 때 예상 반송(통)"),
        (f"{500 * back:,.0f}원", "모두 발송할 때 예상 손실"),
    ):
        assert page.texts[page.texts.index(value) + 1] == what
    assert "판정함 (verified) 280 + 번호 오류 (invalid) 20 = 300" in page.texts


def test_every_table_of_counts_adds_up_to_the_rows(made: tuple[Path, Path]) -> None:
    """Rows without an answer, a grade or a province have a line that says so; risks are those of the frame."""
    texts = Page(made[1]).texts
    rows = pl.read_csv(made[0] / "out.csv", infer_schema_length=None, schema_overrides={"우편번호": pl.String})
    for title in ("처리 상태", "휴·폐업 상태", "반송 등급", "조치", "시·도"):
        begin = texts.index(title, texts.index("집계")) + 3
        counts = []
        while begin + 1 < len(texts) and re.fullmatch(r"[0-9.]+%", texts[begin + 2]):
            counts.append(int(texts[begin + 1].replace(",", "")))
            begin += 3
        assert sum(counts) == 300, title
    no_grade = rows["grade"].null_count()
    assert no_grade > rows["action"].null_count()
    assert texts[texts.index("반송 등급 없음") + 1] == f"{no_grade}"
    named = rows.filter(pl.col("주소").str.contains("^제주"))
    risk = named["bounce_prob"].sum() / named.height
    place = texts.index("제주")
    assert texts[place : place + 3] == ["제주", f"{named.height}", f"{risk:.1%}"]


def test_the_page_says_how_old_the_statuses_are(made: tuple[Path, Path]) -> None:
    """In days before the run, whose day and time are those of Korea."""
    began = datetime.fromisoformat(json.loads((made[0] / "run.json").read_text("utf-8"))["started"]).astimezone(SEOUL)
    text, day = Page(made[1]).text, began.date()
    age = (day - date(2026, 11, 1)).days
    assert f"기준일은 2026-11-01입니다({day} 기준 {age}일 전)." in text
    assert f"300행, {day} 확인" in text
    assert f"{began:%Y-%m-%d %H:%M} KST" in text


def test_a_page_names_what_its_reader_can_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What mends a run is an option on the page of a run by a command, a parameter on that of a run in Python."""
    monkeypatch.setenv("BANSONG_LANG", "en")
    source, out, page = tmp_path / "in.csv", tmp_path / "out.csv", tmp_path / "page.html"
    shutil.copyfile(SAMPLE / "customers.csv", source)
    given = [source, "-o", out, "--status", "none", "--manifest", tmp_path / "run.json"]
    assert invoke("enrich", *given, "--report", page).exit_code == 0
    assert "ask the tax authority with --status nts" in Page(page).text
    assert "`status=" not in Page(page).text
    assert invoke("report", tmp_path / "run.json", "-o", page).exit_code == 0
    assert "ask the tax authority with --status nts" in Page(page).text
    bs.enrich(source, out, status="none", report=page)
    assert "ask the tax authority with `status='nts'`" in Page(page).text


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_masked_correction_says_what_changed(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Without numbers: masked, both addresses may look the same. Unmasked, the numbers are there."""
    rows = pl.read_csv(made[0] / "out.csv", infer_schema=False)
    lots = rows.filter(pl.col("reasons").str.contains("변경: 지번 "))["reasons"]
    change = re.search(r"변경: (지번 [^|]*) \(juso\)", lots[0])
    assert change is not None
    assert re.sub("[0-9]", "*", change[1]) in Page(made[1]).texts
    assert change[1] not in Page(made[1]).text
    with use_language("ko"):
        report_page(made[0] / "out.csv", tmp_path / "open.html", unmask=True)
    assert change[1] in Page(tmp_path / "open.html").texts


def test_figures_are_the_same_in_batches_of_any_size(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts, groups and lists of many batches are those of one."""
    rows = pl.scan_csv(made[0] / "out.csv", infer_schema=False).with_row_index("row_id")
    letters = rows.rename({"사업자등록번호": "b_no", "상호": "name", "주소": "address"})
    whole = collect_figures(letters)
    monkeypatch.setattr(page_figures, "_BATCH", 7)
    parts = collect_figures(letters)
    for field in fields(PageFigures):
        one, other = getattr(whole, field.name), getattr(parts, field.name)
        if isinstance(one, pl.DataFrame):
            key = next(name for name in ("row", "reason", "region") if name in one.columns)
            assert_frame_equal(one.sort(key), other.sort(key))
        else:
            assert other == (pytest.approx(one) if isinstance(one, float) else one)
    empty = collect_figures(letters.clear())
    assert (empty.rows, empty.expected, empty.worst.height, empty.regions.height) == (0, 0.0, 0, 0)


def test_the_figures_are_those_of_the_frame(made: tuple[Path, Path]) -> None:
    """Groups add up to the rows, the list of the worst begins with the highest probability."""
    rows = pl.read_csv(made[0] / "out.csv", infer_schema_length=None).with_row_index("row_id")
    found = collect_figures(rows.rename({"사업자등록번호": "b_no", "상호": "name", "주소": "address"}).lazy())
    assert sum(found.counts["row_status"].values()) == found.rows == found.regions["rows"].sum() == 300
    assert found.expected == pytest.approx(rows["bounce_prob"].sum())
    assert found.regions["expected"].sum() == pytest.approx(found.expected)
    assert (
        found.worst["bounce_prob"].to_list()
        == rows["bounce_prob"].drop_nulls().top_k(20).sort(descending=True).to_list()
    )
    assert (found.oldest, found.newest) == ("2026-11-01", "2026-11-01")


def test_the_page_is_private_small_and_loads_nothing(made: tuple[Path, Path]) -> None:
    """Mode 0600; no script, no address outside of it, and a policy that would forbid them."""
    page = Page(made[1])
    assert stat.S_IMODE(made[1].stat().st_mode) == 0o600
    assert len(page.source) < 2_000_000
    assert not {"script", "link", "iframe", "img", "object", "form"} & {name for name, _ in page.elements}
    loading = ("src", "href", "xlink:href", "srcset", "action")
    assert [value for _, given in page.elements for key, value in given.items() if key in loading] == []
    assert not re.search(r"url\((?!#)|@import", page.source)
    policy = [given["content"] for name, given in page.elements if given.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0] is not None
    assert policy[0].startswith("default-src 'none'")


def test_the_page_of_a_korean_run_is_korean(made: tuple[Path, Path]) -> None:
    """No English sentence, and the language is declared."""
    page = Page(made[1])
    assert ("html", {"lang": "ko"}) in page.elements
    assert english_sentences(page.text) == []
    assert "반송 위험이 가장 높은 행" in page.texts


def test_a_page_says_what_changed_since_the_run_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closure, a row that went and one that came; by itself, since the output of before is there, or by a file."""
    monkeypatch.setenv("BANSONG_STATE_DIR", str(tmp_path / "state"))
    rows = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False)
    source, out = tmp_path / "list.csv", tmp_path / "out.csv"
    rows.head(280).write_csv(source)
    bs.enrich(source, out, report=tmp_path / "first.html", **REFERENCE)
    assert "Changes since" not in Page(tmp_path / "first.html").text
    shutil.copy(out, tmp_path / "kept.csv")
    closing = pl.read_csv(out, infer_schema=False).filter(pl.col("biz_status") == "active")["사업자등록번호"][0]
    registry = pl.read_parquet(REFERENCE["registry"])
    closed = pl.col("b_no") == int(bs.number.compact(closing))
    status = pl.when(closed).then(pl.lit("closed")).otherwise(pl.col("biz_status").cast(pl.String)).alias("biz_status")
    registry.with_columns(status).write_csv(tmp_path / "registry.csv")
    bs.build_registry([tmp_path / "registry.csv"], tmp_path / "registry.parquet")
    newer = REFERENCE | {"registry": tmp_path / "registry.parquet"}
    rows.slice(1, 289).write_csv(source)
    report = bs.enrich(source, out, report=tmp_path / "second.html", **newer)
    told = Page(tmp_path / "second.html").text
    was, now = (rows_of(path) for path in (tmp_path / "kept.csv", out))
    gone, new = was.join(now, on="key", how="anti"), now.join(was, on="key", how="anti")
    stopped = now.join(was, on="key").filter(biz_status="closed", biz_status_right="active")
    assert stopped.height
    assert f"{stopped.height}\nclosed\n" in told
    assert f"{gone.height}\ngone" in told
    assert f"{new.height}\nnew" in told
    assert closing not in told
    for given, same in (({"before": tmp_path / "kept.csv"}, True), ({}, False)):
        report_page(report.run_id, tmp_path / "page.html", **given)
        assert ("Changes since the run before" in Page(tmp_path / "page.html").text) is same
    with pytest.raises(BansongError, match="cannot be compared"):
        report_page(report.run_id, tmp_path / "page.html", before=SAMPLE / "customers.csv")


def rows_of(path: Path) -> pl.DataFrame:
    """Rows by number, name and address, each once."""
    rows = pl.read_csv(path, infer_schema=False)
    number = pl.coalesce(pl.col("사업자등록번호").brn.compact(), pl.lit(""))  # type: ignore[attr-defined]
    key = pl.concat_str(number, pl.col("상호").fill_null(""), pl.col("주소").fill_null(""), separator="|")
    return rows.select(key.str.strip_chars().alias("key"), "biz_status").unique(
        "key", keep="first", maintain_order=True
    )


def test_people_are_masked_unless_asked(made: tuple[Path, Path], tmp_path: Path) -> None:
    """No number, name, or address of the list stands in the page; with ``unmask`` those of its lists do."""
    rows = pl.read_csv(made[0] / "out.csv", infer_schema=False)
    whole = {
        text
        for name in ("사업자등록번호", "주소", "fixed_address")
        for text in rows[name].drop_nulls()
        if len(text) > 9 and re.search("[0-9]", text)  # a province and a district alone are nobody's address
    }
    names = {text for text in rows["상호"].drop_nulls() if len(text) > 4}
    source = Page(made[1]).source
    assert [text for text in whole | names if text in source] == []
    report_page(made[0] / "out.csv", tmp_path / "open.html", unmask=True)
    worst = rows.sort(pl.col("bounce_prob").cast(pl.Float64), descending=True, nulls_last=True).row(0, named=True)
    text = Page(tmp_path / "open.html").text
    assert worst["상호"] in text
    assert worst["주소"] in text


def test_masks_show_too_little_to_write_to_anybody() -> None:
    """Of a number three digits, of a name one character behind the kind of company, of an address no number.

    Nor what stands before its region: that may be a person.
    """
    frame = pl.DataFrame(
        {
            "x": ["1248100998", None, None, None, None],
            "n": ["(주)해오름식품", "주식회사 한결", None, None, None],
            "a": [
                "서울종로구종로5길동빌딩301호",
                "서울 종로구 종로5길 7, 3층",
                "홍길동 댁  서울 종로구 종로5길 7",
                "비밀빌라 301호",
                None,
            ],
        }
    )
    shown = frame.select(mask_number(pl.col("x")), mask_name(pl.col("n")), mask_address(pl.col("a")))
    assert shown.rows() == [
        ("124-**-*****", "해○○", "서울종로구종로 …"),
        (None, "한○○", "서울 종로구 종로*길 …"),
        (None, None, "서울 종로구 종로*길 …"),
        (None, None, "…"),
        (None, None, None),
    ]


def test_hostile_cells_are_texts(tmp_path: Path) -> None:
    """What looks like HTML in a name, an address or a file's name is shown, and makes no element."""
    cell = HOSTILE.replace('"', '""')
    listed = f'사업자번호,상호,주소\n{numbers(1)[0]},"{cell}","{cell} 서울특별시 종로구 종로 436"\n'
    source = write(tmp_path / "a<b>&'.csv", listed)
    bs.enrich(source, tmp_path / "o.csv", report=tmp_path / "p.html", unmask=True, letter_cost=1, **REFERENCE)
    page = Page(tmp_path / "p.html")
    assert not {"script", "img", "b"} & {name for name, _ in page.elements}
    assert not any(key.startswith("on") for _, given in page.elements for key in given)
    assert any(HOSTILE in text for text in page.texts)
    assert "Verification of a<b>&'.csv" in page.texts


def test_tags_escape_all_but_what_tags_have_made() -> None:
    """Texts and attributes are escaped, elements are not."""
    made = tag("p", "<i>", tag("b", "&"), title='"')
    assert made == '<p title="&quot;">&lt;i&gt;<b>&amp;</b></p>'
    assert join(made, "<") == f"{made}&lt;"


def test_a_run_its_manifest_and_its_file_have_one_page(made: tuple[Path, Path], tmp_path: Path) -> None:
    """What was written with the run, and what is written of it later, says the same."""
    with use_language("ko"):
        report_page(made[0] / "run.json", tmp_path / "later.html", letter_cost=500)
        report_page(made[0] / "out.csv", tmp_path / "file.html", letter_cost=500)
    at_once, later = Page(made[1]).texts, Page(tmp_path / "later.html").texts
    assert later == at_once
    lists = at_once[at_once.index("집계") : at_once.index("작성 근거")]
    of_file = Page(tmp_path / "file.html").texts
    assert of_file[of_file.index("집계") : of_file.index("작성 근거")] == lists


def test_without_altair_the_page_says_so_and_has_its_tables(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A light install has the page, too."""
    monkeypatch.setitem(sys.modules, "altair", None)
    with use_language("en"):
        report_page(made[0] / "out.csv", tmp_path / "p.html")
    page = Page(tmp_path / "p.html")
    assert "Charts are drawn where Altair is installed: pip install 'bansong[notebook]'" in page.texts
    assert not any(name == "svg" for name, _ in page.elements)
    assert "What weighs most in a row" in page.texts


def test_with_altair_three_charts_are_drawn(made: tuple[Path, Path]) -> None:
    """Grades, provinces and reasons, hidden from screen readers, which have the tables."""
    drawn = [given for name, given in Page(made[1]).elements if name == "svg"]
    assert [given.get("aria-hidden") for given in drawn] == ["true"] * 3


@pytest.mark.parametrize(
    ("run", "output", "said"),
    [
        ("20200101T000000-abcdef", "p.html", "there is no manifest"),
        ("lost.csv", "p.html", "there is no such file; check its name, or give the id of a run"),
        ("out.csv", "p.txt", "a report is a web page; call it .html"),
        ("list.csv", "p.html", "has not the nine columns"),
    ],
)
def test_what_has_no_page_is_refused(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, output: str, said: str
) -> None:
    """The message says what is wrong, and no page is written."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(made[0] / "out.csv", tmp_path / "out.csv")
    write(tmp_path / "list.csv", f"사업자번호,주소\n{numbers(1)[0]},서울\n")
    with use_language("en"), pytest.raises(BansongError) as error:
        report_page(run, output)
    assert said in str(error.value)
    assert not (tmp_path / output).exists()


def test_the_command_writes_the_page(run: Any, made: tuple[Path, Path], tmp_path: Path) -> None:
    """``bansong report FILE -o OUT.html`` says where the page is."""
    done: subprocess.CompletedProcess[str] = run("report", made[0] / "out.csv", "-o", tmp_path / "p.html")
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'p.html'} written" in done.stdout
    assert Page(tmp_path / "p.html").texts[0] == "Verification of out.csv"


def test_a_comparison_in_parts_is_that_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edited rows are known again, and counts and list are the same, however many parts the rows are compared in."""
    monkeypatch.setenv("BANSONG_STATE_DIR", str(tmp_path / "state"))
    bs.enrich(SAMPLE / "customers.csv", tmp_path / "now.csv", **REFERENCE)
    rows = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False).slice(20)
    number = pl.int_range(pl.len())
    edited = rows.with_columns(pl.when(number % 3 == 0).then(pl.col("상호") + " 본점").otherwise("상호").alias("상호"))
    edited.write_csv(tmp_path / "list.csv")
    bs.enrich(tmp_path / "list.csv", tmp_path / "before.csv", status="none", gazetteer=REFERENCE["gazetteer"])
    found = []
    for together in (1_000_000, 10):
        monkeypatch.setattr(earlier_run, "_TOGETHER", together)
        with open_mailing(None, tmp_path / "now.csv", besides=earlier_run.BESIDES) as mailing:
            made = earlier_run.find_changes(
                mailing.letters, "", None, earlier=tmp_path / "before.csv", besides=tmp_path / "now.csv"
            )
        assert made is not None
        found.append(made)
    whole, parts = found
    assert whole.counts == parts.counts
    assert whole.counts["closed"] > 10 < whole.counts["risk_down"]
    assert 0 < whole.counts["new"] < 30
    assert_frame_equal(whole.rows, parts.rows)
