"""One run over several inputs: files, globs, folders, datasets, sheets, standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from openpyxl import Workbook, load_workbook

import bansong as bs
from bansong.errors import BansongError, InputError, StoppedError, UsageError
from bansong.run.manifest import open_mailing
from bansong.run.report import Report
from bansong.run.runner import Run as OneRun
from bansong.testing import FakeNts, FakeService, serve
from conftest import NINE, SAMPLE, json_of, write
from customers import QUICK, answers, customers, is_right, numbers
from nightly_jobs import Nights, kinds

Run = Callable[..., subprocess.CompletedProcess[str]]

REGISTRY = SAMPLE / "registry.parquet"
HEADER, *ROWS = (SAMPLE / "customers.csv").read_text(encoding="utf-8-sig").splitlines(keepends=True)


def part(path: Path, rows: list[str] = ROWS[:3], encoding: str = "utf-8") -> Path:
    """A list with some of the sample's customers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, "".join((HEADER, *rows)), encoding)


def texts(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False)


def test_several_files_are_answered_as_one_file_with_all_their_rows(tmp_path: Path) -> None:
    crowd = [f"9{n},{b},상사 {n},대표,서울특별시 중구 세종대로 110,04524,,\n" for n, b in enumerate(numbers(20))]
    whole = part(tmp_path / "whole.csv", [*ROWS[:70], *crowd])
    bs.enrich(whole, tmp_path / "whole.out.csv", registry=REGISTRY)
    pieces = [part(tmp_path / "in" / f"{place}.csv", [*ROWS[:70], *crowd][place::2]) for place in range(2)]
    report = bs.enrich([*pieces], tmp_path / "out", registry=REGISTRY)
    wanted = texts(tmp_path / "whole.out.csv")
    assert wanted["reasons"].str.contains("many businesses of the file").sum() == 20
    assert (report.rows, sum(report.counts.values())) == (90, 90)
    for place in range(2):
        assert texts(tmp_path / "out" / f"{place}.csv").equals(wanted.gather_every(2, place))


def test_the_hybrid_engine_buys_and_answers_as_for_one_file(service: FakeService, url: str, tmp_path: Path) -> None:
    """What the local engine is not sure of is found over all files; the agreement of both engines is that of all."""
    options: dict[str, Any] = {"engine": "hybrid", "registry": REGISTRY, "base_url": url, "band": (0.08, 0.5), **QUICK}
    pieces = [part(tmp_path / f"{place}.csv", ROWS[place:45:2]) for place in range(2)]
    several = bs.enrich([*pieces], tmp_path / "out", **options).purchase
    one = bs.enrich(part(tmp_path / "whole.csv", ROWS[:45]), max_age=0, **options).purchase
    assert several is not None is not one
    assert several.agreement is not None is not one.agreement
    assert (several.paid, several.agreement.rows) == (one.paid, one.agreement.rows) > (0, 0)


def test_the_tax_authority_is_asked_once_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nts = FakeNts("free-key/0123456789==", {}, default="active")
    inputs = [part(tmp_path / name, rows) for name, rows in (("a.csv", ROWS[:20]), ("b.csv", ROWS[10:30]))]
    with serve(nts) as url:
        monkeypatch.setenv("BANSONG_NTS_URL", url)
        monkeypatch.setenv("BANSONG_NTS_KEY", "free-key/0123456789==")
        report = bs.enrich([*inputs], tmp_path / "out")
    assert (nts.calls, nts.asked_again) == (1, 0)
    assert report.statuses is not None
    of_parts = sum(one.statuses.rows for one in report.parts if one.statuses)
    assert report.statuses.checked == report.statuses.rows == of_parts


def test_what_several_files_have_is_bought_once_and_within_one_budget(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    """A business in two files is one lookup; what the budget does not last for is pending; the same call goes on."""
    inputs = [customers(tmp_path / "a.csv", 20, repeats=5), customers(tmp_path / "b.csv", 40)]
    planned = bs.plan([*inputs], engine="verify", budget=30, **QUICK)
    assert planned.purchase is not None
    assert (planned.purchase.wanted, planned.purchase.chosen, service.paid_total) == (40, 30, 0)
    report = bs.enrich([*inputs], tmp_path / "out", engine="verify", budget=30, **QUICK)
    assert (service.paid_total, report.exit_code, report.counts["pending"]) == (30, 5, 10)
    report = bs.enrich([*inputs], tmp_path / "out", engine="batch", **QUICK)
    assert (service.paid_total, report.exit_code, max(service.paid.values())) == (40, 0, 1)
    assert (report.plan.lookups, report.plan.duplicates) == (40, 25)
    for name in ("a.csv", "b.csv"):
        assert all(is_right(row, service) for row in answers(tmp_path / "out" / name).iter_rows(named=True))


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="no SIGKILL")
def test_a_killed_run_leaves_whole_outputs_and_pays_nothing_twice(
    service: FakeService, url: str, tmp_path: Path
) -> None:
    """Killed between two outputs: the first is finished, the second not there; the same call again pays nothing."""
    inputs = [customers(tmp_path / "a.csv", 12), customers(tmp_path / "b.csv", 30)]
    call = ["enrich", *map(str, inputs), "-o", str(tmp_path / "out"), "--engine", "verify", "--rate", "9999"]
    died = subprocess.run([sys.executable, "-c", KILLED_AT, "1", "after", *call], capture_output=True, timeout=120)
    assert died.returncode == -9, died.stderr
    assert answers(tmp_path / "out" / "a.csv")["row_status"].to_list() == ["verified"] * 12
    assert [path.name for path in (tmp_path / "out").glob("*.csv")] == ["a.csv"]
    assert service.paid_total == 30
    report = bs.enrich([*inputs], tmp_path / "out", engine="verify", **QUICK)
    assert (report.exit_code, service.paid_total, max(service.paid.values())) == (0, 30, 1)
    assert all(is_right(row, service) for row in answers(tmp_path / "out" / "b.csv").iter_rows(named=True))


KILLED_AT = """
import os, signal, sys
from pathlib import Path
replace, count, (nth, before) = Path.replace, [0], sys.argv[1:3]
def dying(self, target):
    if not self.name.startswith(".bansong-"):
        return replace(self, target)
    count[0] += 1
    if count[0] == int(nth) and before == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(self, target)
    if count[0] == int(nth):
        os.kill(os.getpid(), signal.SIGKILL)
Path.replace = dying
sys.argv[:3] = ["bansong"]
from bansong.cli.app import main
main()
"""
PUBLISHED = ("out/a.csv", "out/b.csv", "out/c.csv", "letters.csv", "manifest.json")  # in this order


@pytest.mark.crash
@pytest.mark.parametrize(("nth", "moment"), [(1, "before"), (3, "after"), (4, "after")])
def test_killed_at_any_rename_each_file_is_the_old_one_or_the_new_one_in_their_order(
    tmp_path: Path, nth: int, moment: str
) -> None:
    """Outputs first, in the order of the inputs, then the list of letters, then the manifest; the same call again."""
    inputs = [part(tmp_path / "in" / f"{name}.csv", ROWS[15 * at : 15 * at + 20]) for at, name in enumerate("abc")]
    call = ["enrich", *map(str, inputs), "-o", "out", "--registry", str(REGISTRY)]
    call += ["--letters", "letters.csv", "--manifest", "manifest.json"]
    for place in ("wanted", "killed"):
        (tmp_path / place / "out").mkdir(parents=True)
        for name in PUBLISHED:
            (tmp_path / place / name).write_text("old")
    command = [sys.executable, "-m", "bansong", *call]
    subprocess.run(command, cwd=tmp_path / "wanted", check=True, capture_output=True)
    wanted = [(tmp_path / "wanted" / name).read_bytes() for name in PUBLISHED[:-1]]
    killing = [sys.executable, "-c", KILLED_AT, str(nth), moment, *call]
    died = subprocess.run(killing, cwd=tmp_path / "killed", capture_output=True)
    assert died.returncode == -9, died.stderr
    done = nth - (moment == "before")
    left = [(tmp_path / "killed" / name).read_bytes() for name in PUBLISHED]
    assert left[: min(done, 4)] == wanted[:done]
    assert left[done:] == [b"old"] * (5 - done)
    subprocess.run(command, cwd=tmp_path / "killed", check=True, capture_output=True)
    assert [(tmp_path / "killed" / name).read_bytes() for name in PUBLISHED[:-1]] == wanted
    assert json_of(tmp_path / "killed" / "manifest.json")["rows"] == 60


def publishing(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> None:
    """Do something before the output of an input is published."""
    publish = OneRun._publish_input

    def published(run: OneRun, one: Any, *rest: Any) -> list[Report]:
        if one.file.path.name == name:
            act()
        return publish(run, one, *rest)

    monkeypatch.setattr(OneRun, "_publish_input", published)


def fail(error: BaseException) -> None:
    raise error


def test_an_interruption_says_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [part(tmp_path / name) for name in ("a.csv", "b.csv")]
    publishing(monkeypatch, "b.csv", lambda: fail(KeyboardInterrupt()))
    with pytest.raises(StoppedError, match="1 of 2 outputs is published"):
        bs.enrich([*inputs], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.csv"]


def test_one_report_over_all_with_the_accounts_of_each(tmp_path: Path, run: Run) -> None:
    part(tmp_path / "거래처" / "서울.csv", ROWS[:4])
    part(tmp_path / "거래처" / "부산.csv", ROWS[3:7], "cp949")
    done = run("enrich", "거래처", "-o", "out", "--json", "--manifest", "manifest.json")
    assert done.returncode == 0, done.stderr
    report, manifest = json.loads(done.stdout), json_of(tmp_path / "manifest.json")
    assert (report["rows"], len(report["parts"])) == (8, 2)
    assert sum(one["rows"] for one in report["parts"]) == sum(report["row_status"].values()) == 8
    assert {Path(one["path"]).name for one in manifest["inputs"]} == {"서울.csv", "부산.csv"}
    assert all(len(one["sha256"]) == 64 for one in manifest["inputs"])
    assert (tmp_path / "out" / "부산.csv").read_bytes().decode("cp949").startswith(HEADER.strip().split(",")[0])


def test_the_same_file_given_twice_is_enriched_once(tmp_path: Path) -> None:
    """Through another spelling, a glob and a link too; the report says so."""
    one = part(tmp_path / "in" / "a.csv")
    (tmp_path / "in" / "link.csv").symlink_to(one)
    report = bs.plan([one, tmp_path / "in" / ".." / "in" / "a.csv", tmp_path / "in"])
    assert len(report.parts) == 1
    assert any("link.csv: is the same file as" in told for told in report.passed_over)


def test_a_folder_is_its_tables_and_a_pattern_goes_below(tmp_path: Path) -> None:
    for name in ("a.csv", "b c [1].csv", ".hidden.csv", "~$a.xlsx", "notes.docx", "sub/a.csv", "sub/deep/c.csv"):
        part(tmp_path / "in" / name)
    assert inputs_of(bs.plan([tmp_path / "in"])) == ["a.csv", "b c [1].csv"]
    assert inputs_of(bs.plan([tmp_path / "in" / "b c [1].csv"])) == ["b c [1].csv"]
    bs.enrich([tmp_path / "in" / "**" / "*.csv"], tmp_path / "deep")
    found = sorted(str(path.relative_to(tmp_path / "deep")) for path in (tmp_path / "deep").rglob("*.csv"))
    assert found == ["a.csv", "b c [1].csv", "sub/a.csv", "sub/deep/c.csv"]


def inputs_of(report: bs.FilesReport) -> list[str]:
    return [Path(one.input).name for one in report.parts]


def test_what_earlier_runs_wrote_is_no_input(tmp_path: Path) -> None:
    """Nor backups, nor a registry; forty such files do not bury the report, and the manifest names each."""
    part(tmp_path / "in" / "a.csv")
    registry = tmp_path / "in" / "registry.parquet"
    registry.write_bytes(REGISTRY.read_bytes())
    for output in (None, tmp_path / "in" / "out"):
        assert inputs_of(bs.enrich([tmp_path / "in"], output, registry=registry)) == ["a.csv"]
    again = bs.plan([tmp_path / "in" / "**" / "*"], tmp_path / "in" / "out", registry=registry)
    assert (inputs_of(again), len(again.passed_over)) == (["a.csv"], 3)
    bs.enrich([tmp_path / "in" / "a.csv"], in_place=True)
    assert inputs_of(bs.plan([tmp_path / "in" / "a.csv*"])) == ["a.csv"]
    for number in range(40):
        part(tmp_path / "in" / f"{number}.enriched.csv")
    report = bs.enrich([tmp_path / "in"], tmp_path / "out", registry=registry)
    told = [one for one in report.warnings if "passed over" in one]
    assert (len(told), told[-1].split()[:2]) == (6, [f"{len(report.passed_over) - 5}", "more"])
    assert len(json_of(Path(str(report.manifest)))["passed_over"]) == len(report.passed_over) > 40


def test_tables_without_rows_addresses_or_columns_are_tables(tmp_path: Path) -> None:
    write(tmp_path / "in.json", "[]")
    write(tmp_path / "head.csv", "사업자번호,주소\n")
    write(tmp_path / "numbers.csv", "사업자번호\n1248100998\n")
    names = ["head.csv", "in.json", "numbers.csv", part(tmp_path / "all.csv", ROWS[:5]).name]
    report = bs.enrich([tmp_path / name for name in names], tmp_path / "out", registry=REGISTRY)
    assert (report.exit_code, [one.rows for one in report.parts]) == (0, [0, 0, 1, 5])
    assert (tmp_path / "out" / "head.csv").read_text() == f"사업자번호,주소,{','.join(NINE)}\n"
    assert json_of(tmp_path / "out" / "in.json") == []


def test_what_is_no_run_over_several_is_refused(tmp_path: Path) -> None:
    """A list in, a report over all out; no output is an input or that of two; a folder called `out.csv` ends with /."""
    here = [part(tmp_path / name) for name in ("a.csv", "b.csv")]
    x, y, z = (part(tmp_path / name) for name in ("x/a.csv", "y/A.csv", "z/b.csv"))
    (tmp_path / "empty").mkdir()
    cases: list[tuple[Any, Any, dict[str, Any], str]] = [
        *((given, None, {}, "given in a list") for given in (tmp_path / "x", tmp_path / "x" / "*.csv")),
        (here[0], None, {"sheet": "*"}, "give the input in a list"),
        *(([tmp_path / name], None, {}, "no file with a table is there") for name in ("empty", "*.zip", "none/*.csv")),
        ([x, y], tmp_path / "out", {}, r"would be the output of .*y.A\.csv and of .*x.a\.csv"),
        ([x, here[1]], tmp_path / "x", {}, "is the input itself"),
        ([z, here[1]], tmp_path, {}, "is an input, and would be replaced"),
        (here, tmp_path / "out.csv", {}, "is the name of a file"),
        (here, "-", {}, "standard output takes one table"),
        (["-", x], tmp_path, {}, "by itself"),
        (here, None, {"report": "page.txt"}, "call it .html"),
        (here, None, {"review": "review.xlsx"}, "review"),
        (here, None, {"input_format": "csv"}, "input_format"),
        (here, "out", {"in_place": True}, "in_place"),
    ]
    for given, output, options, told in cases:
        with pytest.raises(BansongError, match=told):
            bs.plan(given, output, **options)
    assert isinstance(bs.plan(here[0]), bs.Report)
    assert isinstance(bs.plan([here[0]]), bs.FilesReport)
    bs.enrich([*here], f"{tmp_path}/out.csv/")
    assert sorted(path.name for path in (tmp_path / "out.csv").iterdir()) == ["a.csv", "b.csv"]


def test_where_tables_have_other_columns_the_report_says_which(tmp_path: Path) -> None:
    """Parts of one dataset may have their columns in another order, or under another name: each is told once."""
    for year, header in (("2024", HEADER), ("2025", HEADER), ("2026", HEADER.replace("사업자등록번호", "사업자번호"))):
        write(tmp_path / f"{year}.csv", "".join((header, *ROWS[:3])))
    report = bs.plan([tmp_path / "*.csv"], tmp_path / "out")
    told = [value for what, value in report.lines() if what == "columns"]
    assert [line.partition(", name")[0] for line in told] == [
        f"{tmp_path}/2024.csv and 1 more: b_no '사업자등록번호'",
        f"{tmp_path}/2026.csv: b_no '사업자번호'",
    ]


def test_a_broken_input_stops_the_run_before_anything_is_bought(service: FakeService, url: str, tmp_path: Path) -> None:
    """All that are broken are named, with what to do; nothing is bought or written. `keep_going` leaves them out."""
    (tmp_path / "in").mkdir()
    good = customers(tmp_path / "in" / "good.csv", 20)
    write(tmp_path / "in" / "bad.csv", "이름,주소\n가,나\n")
    (tmp_path / "in" / "torn.xlsx").write_bytes(b"PK\x03\x04 torn")
    (tmp_path / "in" / "gone.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError) as raised:
        bs.enrich([tmp_path / "in"], tmp_path / "out", engine="verify", base_url=url, **QUICK)
    told = str(raised.value)
    assert told.startswith("3 of 4 inputs cannot be enriched; nothing was bought or written")
    assert all(name in told for name in ("bad.csv", "torn.xlsx", "gone.csv"))
    assert (service.paid_total, (tmp_path / "out").exists()) == (0, False)
    report = bs.enrich([tmp_path / "in"], tmp_path / "out", engine="verify", base_url=url, keep_going=True, **QUICK)
    assert sorted(Path(one).name for one in report.failed) == ["bad.csv", "gone.csv", "torn.xlsx"]
    assert (report.exit_code, [Path(one.input) for one in report.parts], service.paid_total) == (3, [good], 20)


def test_an_input_that_changes_under_way_keeps_its_old_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """The others are published, exit code 3, and the report names it."""
    for name in ("a.csv", "b.csv", "c.csv"):
        part(tmp_path / name)
    publishing(monkeypatch, "b.csv", lambda: part(tmp_path / "b.csv", ROWS[:9]) and None)
    done = run("enrich", "a.csv", "b.csv", "c.csv", "-o", "out")
    assert done.returncode == 3
    assert "ATTENTION: b.csv: was changed while it was being verified; run again" in done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.csv", "c.csv"]


def test_one_list_of_letters_over_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """The list of one file with all rows: who stands in two files gets one letter. None where an input has failed."""
    whole = part(tmp_path / "whole.csv", [*ROWS[:30], *ROWS[15:45]])
    one = bs.enrich(whole, letters=tmp_path / "one.csv", letter_cost=500, registry=REGISTRY)
    inputs = [part(tmp_path / "in" / name, rows) for name, rows in (("a.csv", ROWS[:30]), ("b.csv", ROWS[15:45]))]
    call = ("enrich", "in", "-o", "out", "--letters", "all.csv", "--letter-cost", "500", "--registry", REGISTRY)
    done = run(*call, "--json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "all.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert (tmp_path / "all.csv").stat().st_mode & 0o777 == 0o600
    told: Any = one.as_dict()["letters"]
    assert json.loads(done.stdout)["letters"] == told | {"path": "all.csv"}
    assert told["repeated"] > 5
    with pytest.raises(InputError, match=r"b\.csv: is the output itself"):
        bs.plan([*inputs], tmp_path / "out", letters=tmp_path / "out" / "b.csv")
    publishing(monkeypatch, "b.csv", lambda: fail(InputError("b.csv: is gone")))
    (tmp_path / "all.csv").unlink()
    failed = run(*call)
    assert (failed.returncode, (tmp_path / "all.csv").exists()) == (3, False)
    assert "all.csv: was not written, since an input failed" in failed.stderr


def test_files_beside_each_output(tmp_path: Path) -> None:
    inputs = [part(tmp_path / name, ROWS[:9]) for name in ("a.csv", "b.csv")]
    bs.enrich([*inputs], tmp_path / "out", split="action")
    assert {path.name.split(".")[0] for path in (tmp_path / "out").glob("*.send.csv")} == {"a", "b"}
    before = inputs[0].read_bytes()
    report = bs.enrich([*inputs], in_place=True)
    assert [part.backup for part in report.parts] == [f"{path}.bak" for path in inputs]
    assert (tmp_path / "a.csv.bak").read_bytes() == before
    assert set(NINE) < set(texts(inputs[0]).columns)


def test_a_partitioned_dataset_comes_back_as_one(tmp_path: Path) -> None:
    """Its folders and columns stay, a partition column that the files have too stays both; read as one it is whole."""
    data = texts(SAMPLE / "customers.csv").head(30).with_columns(pl.Series("지역", ["서울", "부산"] * 15))
    dataset = tmp_path / "고객"
    for region, rows in data.partition_by("지역", as_dict=True).items():
        folder = dataset / f"지역={region[0]}" / "월=2026-10"
        folder.mkdir(parents=True)
        rows.write_parquet(folder / "part-0.parquet")
    (dataset / "_SUCCESS").touch()
    report = bs.enrich([dataset], tmp_path / "out", registry=REGISTRY)
    assert len(report.parts) == 2
    back = pl.scan_parquet(tmp_path / "out" / "**" / "*.parquet", hive_partitioning=True).collect()
    assert back.columns == [*data.columns, *NINE, "월"]
    assert back.select(data.columns).sort("고객코드").equals(data.sort("고객코드"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["지역=부산", "지역=서울"]
    beside = bs.enrich([dataset], select=["고객코드"])
    assert {Path(str(one.output)).parents[2].name for one in beside.parts} == {"고객.enriched"}
    assert len([*dataset.rglob("*.parquet")]) == 2, "no file is added to the dataset itself"


def workbook(path: Path) -> Path:
    """A cover without a table, two lists, a sheet that is empty, a hidden list."""
    book = Workbook()
    cover = book.active
    assert cover is not None
    cover.title = "표지"
    cover["B2"] = "2026년 고객 명단"
    for title, rows in (("서울", ROWS[:5]), ("부산", ROWS[3:9])):
        sheet = book.create_sheet(title)
        for line in (HEADER, *rows):
            sheet.append(line.strip().split(",")[:6])
    book.create_sheet("빈 시트")
    book.save(path)
    return path


def test_every_sheet_with_customers_is_enriched_and_the_others_stay(tmp_path: Path) -> None:
    source = workbook(tmp_path / "in.xlsx")
    report = bs.enrich([source], tmp_path / "out.xlsx", sheet="*")
    assert [one.table for one in report.parts] == ["in.xlsx [서울]", "in.xlsx [부산]"]
    book = load_workbook(tmp_path / "out.xlsx")
    assert book.sheetnames == ["표지", "서울", "부산", "빈 시트"]
    assert (book["표지"]["B2"].value, book["표지"].max_column) == ("2026년 고객 명단", 2)
    for title, count in (("서울", 5), ("부산", 6)):
        header, *rows = book[title].iter_rows(values_only=True)
        assert (header[-9:], len(rows)) == (NINE, count)
        assert all(row[-2] in ("verified", "invalid") for row in rows)
    mixed = bs.plan([part(tmp_path / "a.csv"), source], sheet="*")
    assert [one.sheet for one in mixed.parts] == [None, "서울", "부산"]
    assert [one.sheet for one in bs.plan([source], sheet=["부산", "서울"]).parts] == ["부산", "서울"]
    with pytest.raises(UsageError, match="several sheets go back into"):
        bs.plan([source], tmp_path / "whole.csv", sheet="*")
    with pytest.raises(UsageError, match="대전"):
        bs.plan([source], sheet=["부산", "대전"])


@pytest.mark.parametrize("kind", ["csv", "xlsx"])
def test_what_is_piped_in_comes_out_as_it_would_from_a_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte by byte; the format is found by the content."""
    source, out = tmp_path / f"in.{kind}", tmp_path / f"out.{kind}"
    sheet = "서울" if kind == "xlsx" else None
    source = workbook(source) if sheet else part(source, encoding="cp949")
    bs.enrich(source, out, sheet=sheet)
    stdout = TextIOWrapper(BytesIO())
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(source.read_bytes())))
    monkeypatch.setattr(sys, "stdout", stdout)
    report = bs.enrich("-", sheet=sheet)
    assert stdout.buffer.getvalue() == out.read_bytes()
    assert (report.input, report.output) == ("-", "-")


def test_nothing_but_the_file_goes_to_stdout(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report goes to stderr, --json is refused; --input-format says what the content leaves open."""
    part(tmp_path / "a.csv")
    done = run("enrich", "a.csv", "-o", "-")
    assert (done.returncode, len(done.stdout.splitlines()), "row status" in done.stderr) == (0, 4, True)
    refused = run("enrich", "a.csv", "-o", "-", "--json")
    assert (refused.returncode, refused.stdout) == (2, "")
    for told, code in (([], 2), (["--input-format", "csv"], 0)):
        monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO("사업자번호\n1248100998\n".encode())))
        done = run("enrich", "-", *told)
        assert done.returncode == code, done.stderr
    assert done.stdout.startswith("사업자번호,biz_status")


@pytest.mark.process
def test_a_pipe_that_closes_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    """Whoever reads only the head has not got all rows: exit code 2."""
    part(tmp_path / "a.csv", ROWS * 30)
    command = [sys.executable, "-m", "bansong", "enrich", str(tmp_path / "a.csv"), "-o", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None is not process.stderr
        process.stdout.close()
        told = process.stderr.read().decode()
    assert process.returncode == 2
    assert "stdout: was closed before all rows had been written" in told
    assert "Traceback" not in told


def test_outcomes_and_pages_are_of_one_table_of_a_run(tmp_path: Path, run: Run) -> None:
    """Each table has an id of its own, so that rows of two files are never taken for the same; a file leads to its."""
    part(tmp_path / "a.csv", ROWS[:9])
    report = bs.enrich([tmp_path / "a.csv", workbook(tmp_path / "in.xlsx")], tmp_path / "out", sheet="*")
    file, book = tmp_path / "out" / "a.csv", tmp_path / "out" / "in.xlsx"
    for given, path, sheet, wanted in (
        (None, file, None, ("-1", 9)),
        (None, book, "서울", ("-2", 5)),
        (f"{report.run_id}-3", None, None, ("-3", 6)),
        (report.run_id, file, None, ("-1", 9)),
    ):
        with open_mailing(given, path, bs.ReadOptions(sheet=sheet)) as mailing:
            assert (mailing.id, mailing.rows) == (f"{report.run_id}{wanted[0]}", wanted[1])
    unsure = run("report", report.run_id, "-o", "page.html")
    assert (unsure.returncode, f"{report.run_id}-3 (" in unsure.stderr) == (2, True)


def test_a_job_takes_all_sheets_of_a_workbook(nights: Nights) -> None:
    """Both lists are in one output, and a closure in either is found the next night."""
    sheets = {"표지": [], "서울": [*nights.statuses][:7], "부산": [*nights.statuses][7:]}
    book = Workbook()
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for line in [("사업자번호", "상호", "주소"), *((b, f"상사 {b}", "서울시 중구 세종대로 110") for b in rows)]:
            if rows:
                sheet.append(line)
    book.save(nights.folder / "list.xlsx")
    nights.write_job(inputs='path = "list.xlsx"\nsheet = "*"')
    assert [(one.what, one.rows) for one in nights.run().inputs] == [("verified", 12)]
    closed = [sheets["서울"][2], sheets["부산"][4]]
    nights.statuses |= dict.fromkeys(closed, "closed")
    nights.write_inputs()
    told = nights.run()
    assert kinds(told)["closed"] == 2
    assert sorted(told.changes["b_no"]) == sorted(closed)
    out = load_workbook(nights.folder / "list.enriched.xlsx")
    assert [out[title].max_column for title in ("서울", "부산")] == [12, 12]


def test_a_job_keeps_the_folders_of_its_inputs(nights: Nights) -> None:
    """`{folder}` is where an input lies below its pattern: two of one name have two outputs."""
    for place in ("a", "b/c"):
        (nights.folder / "in" / place).mkdir(parents=True)
        (nights.folder / "in" / place / "list.csv").write_bytes((nights.folder / "in.csv").read_bytes())
    nights.write_job(inputs='path = "in/**/*.csv"', end='[output]\npath = "out/{name}.{ext}"\n')
    with pytest.raises(UsageError, match=r"\{folder\} where files of several folders have one name"):
        nights.run()
    nights.write_job(inputs='path = "in/**/*.csv"', end='[output]\npath = "out/{folder}/{name}.{ext}"\n')
    outputs = [Path(str(one.output)).relative_to(nights.folder) for one in nights.run().inputs]
    assert outputs == [Path("out/a/list.csv"), Path("out/b/c/list.csv")]


def test_a_workbook_with_other_sheets_says_how_all_are_taken(tmp_path: Path, run: Run) -> None:
    """The note that other sheets hold numbers, too, is followed by the option that takes every sheet; alone by none."""
    workbook(tmp_path / "in.xlsx")
    told = run("plan", "in.xlsx").stderr
    assert "'부산' hold business numbers too" in told
    assert "--sheet '*' takes every sheet that holds business numbers" in told
    assert "takes every sheet" not in run("plan", "in.xlsx", "--sheet", "서울").stderr
