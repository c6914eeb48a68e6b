"""From a file to its enriched file: every row accounted for, published whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import anyio
import openpyxl
import polars as pl
import pytest

import bansong as bs
from bansong.base import publish
from bansong.base.files import sha256_of
from bansong.errors import AccountingError, ColumnError, InputError, OutputError, RegistryError, UsageError
from bansong.run import table
from bansong.tables import frames
from bansong.tables.columns import choose_columns
from conftest import NINE, NOTHING_CHECKED, SAMPLE, json_of, spreadsheet, write

TEXT = "사업자등록번호,상호,주소\n124-81-00998,삼성전자,경기도 수원시 영통구 삼성로 129\n,무명,서울\n1.2E+9,가,나\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "list.csv", TEXT)


def frame_of(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema=False)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def expected() -> pl.DataFrame:
    rows = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False)
    return bs.verify_frame(rows, registry=SAMPLE / "registry.parquet", labels=False, choices=False).select(NINE)


@pytest.mark.parametrize("name", ["customers_cp949.csv", "customers.json", "customers.xlsx"])
def test_the_sample_is_enriched_the_same_in_every_format(tmp_path: Path, expected: pl.DataFrame, name: str) -> None:
    report = bs.enrich(SAMPLE / name, tmp_path / "out.parquet", registry=SAMPLE / "registry.parquet")
    assert report.rows == sum(report.counts.values()) == 300
    assert report.plan.rows == report.plan.lookups + report.plan.duplicates + report.plan.invalid
    assert pl.read_parquet(tmp_path / "out.parquet").select(NINE).equals(expected)
    assert {"active", "closed", "suspended", "unknown"} == set(expected["biz_status"].drop_nulls())


def test_a_small_table_is_answered_like_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cells in (("small", 10**9), ("large", 0)):
        monkeypatch.setattr("bansong.run.table._FEW_CELLS", cells)
        bs.enrich(SAMPLE / "customers.csv", tmp_path / f"{name}.csv", registry=SAMPLE / "registry.parquet")
    assert (tmp_path / "small.csv").read_bytes() == (tmp_path / "large.csv").read_bytes()


def test_header_synonyms_seen_in_real_files_are_known(shared: Path) -> None:
    synonyms = json_of(shared / "status" / "header_synonyms.json")
    roles = ("b_no", "name", "address", "zipcode")
    missed = []
    for kind, role in zip(("b_no", "name", "address", "zip"), roles, strict=True):
        for header in synonyms[kind]:
            headers = [header] if role == "b_no" else ["사업자등록번호", header]
            found = choose_columns(frames.read(pl.DataFrame(schema=dict.fromkeys(headers, pl.String))), roles).columns
            missed += [] if role in found and found[role].header == header else [(role, header)]
    assert missed == []
    for trap in synonyms["collision_traps"]:
        with pytest.raises(ColumnError):
            choose_columns(frames.read(pl.DataFrame({trap: ["x"]})), roles)


def test_enriching_an_enriched_file_replaces_the_nine_columns(source: Path, tmp_path: Path) -> None:
    """Also with a prefix, which is known again."""
    one, two, direct = (tmp_path / f"{name}.csv" for name in ("one", "two", "direct"))
    bs.enrich(source, one, prefix="bv_", lang="ko")
    bs.enrich(one, two, prefix="bv_", lang="en")
    bs.enrich(source, direct, prefix="bv_", lang="en")
    assert frame_of(two).columns[3:] == [f"bv_{name}" for name in NINE]
    assert two.read_bytes() == direct.read_bytes()


def test_rows_that_do_not_balance_are_never_published(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = bs.LocalEngine.answer
    faults = {
        "lost": lambda frame: frame.filter(pl.col("c0") != "1.2E+9"),
        "doubled": lambda frame: pl.concat([frame, frame.head(1)]),
        "reordered": lambda frame: frame.reverse(),
        "unlabelled": lambda frame: frame.with_columns(row_status=pl.lit("odd")),
    }
    for fault in faults.values():
        monkeypatch.setattr(bs.LocalEngine, "answer", lambda self, frame, fault=fault: fault(answer(self, frame)))
        with pytest.raises(AccountingError, match="nothing was published"):
            bs.enrich(source, tmp_path / "out.csv")
    monkeypatch.setattr(bs.LocalEngine, "answer", answer)
    monkeypatch.setattr("bansong.tables.csv.format.CsvVerbs.count", lambda *_: 2)
    with pytest.raises(AccountingError, match="3 rows in, 2 in the output file"):
        bs.enrich(source, tmp_path / "out.csv")
    assert names_in(tmp_path) == ["list.csv"]


def test_an_input_that_changes_during_the_run_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows and its answers may be of two versions: here the lines were copied before, and are read after."""
    source, written = write(tmp_path / "in.csv", 'b_no,name\n1248100998,"a\nb"\n2208162517,c\n'), table.write_table

    def change_before(*given: Any) -> Any:
        write(source, 'b_no,name\n2208162517,"a\nb"\n1248100998,c\n')
        return written(*given)

    monkeypatch.setattr(table, "write_table", change_before)
    with pytest.raises(InputError) as refused:
        bs.enrich(source, tmp_path / "out.csv")
    assert refused.value.code == "inputs.input_changed"
    assert not (tmp_path / "out.csv").exists()


def test_the_default_output_stands_beside_the_input_and_is_private(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source.parent)
    assert bs.enrich("list.csv").output == "list.enriched.csv"
    assert stat.S_IMODE(source.with_name("list.enriched.csv").stat().st_mode) == 0o600
    assert names_in(source.parent) == ["list.csv", "list.enriched.csv"]


def test_a_replaced_file_keeps_its_mode_and_a_link_stays_a_link(source: Path, tmp_path: Path) -> None:
    real = write(tmp_path / "real.csv", "old")
    real.chmod(0o640)
    (tmp_path / "link.csv").symlink_to(real)
    bs.enrich(source, tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink()
    assert (real.read_text()[:5], stat.S_IMODE(real.stat().st_mode)) == ("사업자등록", 0o640)


def test_no_file_that_is_read_is_written_and_no_file_written_twice(source: Path, tmp_path: Path) -> None:
    """Whichever name leads to it: the file's own, a symbolic link, a hard link. ``in_place`` replaces the input."""
    registry, model, out = tmp_path / "r.parquet", tmp_path / "m.toml", tmp_path / "out.csv"
    registry.write_bytes((SAMPLE / "registry.parquet").read_bytes())
    model.write_text(bs.Scorecard.load().to_toml(), encoding="utf-8")
    (tmp_path / "soft.csv").symlink_to(source)
    os.link(source, tmp_path / "hard.csv")
    (tmp_path / "registry.csv").symlink_to(registry)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for written, other in (
        ({"output": source}, "input"),
        ({"output": out, "manifest": source}, "input"),
        ({"output": tmp_path / "soft.csv"}, "input"),
        ({"output": tmp_path / "hard.csv"}, "input"),
        ({"output": tmp_path / "registry.csv"}, "registry"),
        ({"output": out, "manifest": model}, "model"),
        ({"output": out, "manifest": out}, "output"),
        ({"in_place": True, "manifest": source}, "input"),
    ):
        with pytest.raises(UsageError, match=f"is the {other} itself; give another"):
            bs.enrich(source, **written, registry=registry, model=model)
    with pytest.raises(UsageError, match="do not name an output"):
        bs.enrich(source, source, in_place=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    bs.enrich(source, in_place=True)
    assert frame_of(source).columns[3:] == list(NINE)


def test_what_an_output_cannot_have_of_the_file_is_said(tmp_path: Path) -> None:
    """A workbook that is only read comes back without its other sheets, and not in place; titles need their format."""
    old = spreadsheet(tmp_path / "in.ods", [["목록"], ["사업자번호", "상호"], ["124-81-00998", "가"]])
    with pytest.raises(UsageError, match=r"in\.ods: cannot be replaced in place, ods files are only read"):
        bs.plan(old, in_place=True)
    report = bs.enrich(old)
    assert report.output == str(tmp_path / "in.enriched.xlsx")
    assert any(note.startswith("the output is a new workbook: its other sheets") for note in report.warnings)
    titled = write(tmp_path / "in.csv", "고객 목록\n사업자번호,상호\n124-81-00998,가\n")
    said = "1 title line above the header not in the output; in the input's own format it has all lines"
    assert said in bs.plan(titled, tmp_path / "out.json").warnings


def test_header_lines_that_are_joined_or_doubtful_are_said_and_no_more(tmp_path: Path) -> None:
    """Nothing of two lines is lost; a row taken for the header by its words would leave rows above it unverified."""
    source = write(tmp_path / "in.csv", "번호,거래처,\n,사업자등록번호,상호\n1,124-81-00998,가\n")
    about = [one for one in bs.plan(source, tmp_path / "out.json").warnings if "line" in one]
    assert about == ["the 2 lines of the header are one line in the output"]
    rows = "Reg,Firm,Where\n사업자번호 없음,상호 미상,주소 불명\n124-81-00998,가,서울\n220-81-62517,나,부산\n"
    report = bs.plan(write(tmp_path / "in.csv", rows))
    assert "1 line above the header's last: kept as they are, and not verified" in report.warnings


@pytest.mark.parametrize(
    ("output", "options", "error", "message"),
    [
        ("no/such/out.csv", {}, OutputError, "does not exist"),
        ("out.doc", {}, OutputError, "cannot write the format"),
        ("out.parquet", {"output_encoding": "cp949"}, UsageError, r"out\.parquet: `output_encoding=` is for CSV"),
        ("out.csv", {"summary": True}, UsageError, r"out\.csv: `summary=` is for workbooks, this output is csv"),
        ("out.csv", {"backup": False}, UsageError, "`backup=False` is for `in_place=True`"),
        ("out.csv", {"engine": "cloud"}, UsageError, "unknown engine 'cloud'"),
    ],
)
def test_what_cannot_be_is_refused_first(
    source: Path, tmp_path: Path, output: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bs.enrich(source, tmp_path / output, **options)
    assert names_in(tmp_path) == ["list.csv"]


def test_an_error_of_another_file_is_not_said_of_the_output(tmp_path: Path) -> None:
    for error in (PermissionError(13, "Permission denied", "in.csv"), FileNotFoundError("in.csv: gone")):
        with pytest.raises(InputError, match=r"in\.csv: .*(denied|gone)"), publish.publish_file(tmp_path / "out.csv"):
            raise error
    with pytest.raises(OutputError, match=r"out\.csv: cannot be written"), publish.publish_file(tmp_path / "out.csv"):
        raise OSError(28, "No space left on device")


def test_the_summary_is_made_of_the_very_account_that_balances(source: Path, tmp_path: Path) -> None:
    report = bs.enrich(source, tmp_path / "a.xlsx", summary=True)
    found = dict(row[:2] for row in openpyxl.load_workbook(tmp_path / "a.xlsx")["summary"].values)
    assert (found["rows"], found["missing"], found["scientific"]) == (3, 1, 1)
    assert {name: found[name] for name in report.counts} == report.counts
    for name in ("biz_status", "grade", "action"):
        counts: dict[str, int] = report.as_dict()[name]  # type: ignore[assignment]
        assert {word: found[word] for word in counts} == counts


def test_a_plan_counts_without_writing_anything(source: Path, tmp_path: Path, state_directory: Path) -> None:
    report = bs.plan(write(source, TEXT + "1248100998,삼성전자,경기도 수원시 영통구 삼성로 129\n"))
    plan = report.plan
    assert (plan.rows, plan.lookups, plan.duplicates, plan.invalid) == (4, 1, 1, 2)
    assert plan.invalid_by_problem == {"missing": 1, "scientific": 1}
    assert report.account is None
    assert (names_in(tmp_path), list(state_directory.rglob("*"))) == (["list.csv"], [])


def test_a_manifest_records_the_run(
    source: Path, tmp_path: Path, state_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    report = bs.enrich(
        source, registry=SAMPLE / "registry.parquet", progress=lambda done, total: told.append((done, total))
    )
    assert told[-1] == (3, 3)
    path = state_directory / "runs" / f"{report.run_id}.json"
    record = json_of(path)
    assert (report.manifest, stat.S_IMODE(path.stat().st_mode)) == (str(path), 0o600)
    assert record["inputs"][0]["sha256"] == sha256_of(source)
    assert record["versions"]["bansong"] == bs.__version__
    assert record["versions"]["registry"].startswith("2026-11-01-")
    assert record["row_status"] == {"verified": 1, "cached": 0, "invalid": 2, "pending": 0, "in_doubt": 0, "failed": 0}
    monkeypatch.setenv("BANSONG_STATE_DIR", str(write(tmp_path / "file", "") / "below"))
    with pytest.raises(OutputError, match="give `manifest='PATH'`"):
        bs.enrich(source)


def test_reports_show_in_a_notebook_with_everything_escaped(tmp_path: Path) -> None:
    html = bs.enrich(write(tmp_path / "<b>.csv", TEXT))._repr_html_()
    assert ("&lt;b&gt;.enriched.csv" in html, "<b>" in html) == (True, False)
    assert "<script>" not in bs.verify("1248100998", name="<script>", address="<script> 1")._repr_html_()


@NOTHING_CHECKED
def test_one_business_and_a_frame_are_verified() -> None:
    """A column of the user's with our name is kept, with a warning."""
    one = bs.verify("124-81-00998", name="삼성전자", address="경기 수원시 영통구 삼성로 129")
    assert (one.b_no, one.biz_status, one.grade, one.action) == ("1248100998", "unknown", "A", "confirm")
    assert "[base -50]" in str(one)
    bad = bs.verify("900101-1234567")
    assert (bad.b_no, bad.row_status) == (None, "invalid")
    with pytest.warns(UserWarning, match="ours is 'grade_bv'"):
        found = bs.verify_frame(pl.DataFrame({"b_no": ["1248100998"], "address": [""], "grade": ["VIP"]}))
    assert (found["grade"][0], found.width) == ("VIP", 12)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_async_door_gives_the_same_report(source: Path, tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    report = anyio.run(lambda: bs.aenrich([source], tmp_path / "out"), backend=backend)
    assert report.rows == 3


def registry_of(path: Path) -> dict[str, str]:
    return {f"{row['b_no']:010d}": row["biz_status"] for row in pl.read_parquet(path).iter_rows(named=True)}


def test_the_newest_row_of_a_number_wins_and_unknown_words_are_listed(tmp_path: Path) -> None:
    rows = [
        *("124-81-00998,계속사업자,2024-01-01", "1248100998,폐업자,20260101", "220-81-62517,휴업자,2026.1.2"),
        *("220-81-62517,폐업자,2025-12-31", "120-81-47521,이전중,2026-01-01", "1.2E9,계속사업자,2026-01-01"),
        "107-86-14075,,2026-01-01",
    ]
    source = write(tmp_path / "s.csv", "사업자번호,상태,기준일자\n" + "\n".join(rows))
    report = bs.build_registry([source], tmp_path / "r.parquet")
    assert registry_of(tmp_path / "r.parquet") == {"1248100998": "closed", "2208162517": "suspended"}
    assert report.unknown_words == {"이전중": 1}
    assert report.left_out == {"no_status": 1, "scientific": 1, "unknown_status": 1}
    assert (report.rows, report.businesses, report.duplicates) == (7, 2, 2)
    assert report.version.startswith("2026-01-02-")


def test_the_mail_order_registry_is_understood(shared: Path, tmp_path: Path) -> None:
    report = bs.build_registry([shared / "status" / "ftc_shape_sample_cp949.csv"], tmp_path / "r.parquet")
    assert report.by_status == {"active": 3, "suspended": 0, "closed": 1, "unregistered": 0}
    assert registry_of(tmp_path / "r.parquet")["2208734425"] == "closed"


def test_a_registry_is_built_from_folders_enriched_files_and_every_format(tmp_path: Path) -> None:
    """Hidden files, lock files and the registry itself in the folder are no sources."""
    folder = tmp_path / "in"
    (folder / ".trash").mkdir(parents=True)
    write(folder / "a.csv", "b_no,status\n1248100998,active\n")
    closed = pl.DataFrame({"b_no": [2208162517], "b_stt": ["폐업자"], "end_dt": ["20250102"]})
    closed.write_parquet(folder / "b.parquet")
    for name in (".hidden.csv", "~$book.xlsx", ".trash/old.csv"):
        write(folder / name, "x")
    for _ in range(2):
        report = bs.build_registry([folder], folder / "r.parquet")
        assert [Path(one).name for one in report.sources] == ["a.csv", "b.parquet"]
    since = pl.read_parquet(folder / "r.parquet").sort("b_no")["since"].to_list()
    assert [str(day) for day in since] == ["None", "2025-01-02"]
    customers = write(tmp_path / "c.csv", "b_no,name\n1248100998,가\n2208162517,나\n1208147521,다\n")
    bs.enrich(customers, tmp_path / "c.xlsx", registry=folder / "r.parquet")
    report = bs.build_registry([tmp_path / "c.xlsx"], tmp_path / "again.parquet")
    assert registry_of(tmp_path / "again.parquet") == {"1248100998": "active", "2208162517": "closed"}
    assert report.left_out == {"no_status": 1}


def test_a_registry_never_replaces_a_source_and_what_makes_none_is_refused(tmp_path: Path) -> None:
    source, out = write(tmp_path / "s.csv", "b_no,상태\n1248100998,폐업자\n"), tmp_path / "out.parquet"
    (tmp_path / "r.parquet").symlink_to(source)
    for target, said in (("r.parquet", "is one of the sources"), ("s.csv", r"call it \.parquet")):
        with pytest.raises(UsageError, match=said):
            bs.build_registry([source], tmp_path / target)
    assert source.read_text().startswith("b_no")
    (tmp_path / "empty").mkdir()
    for sources, said in (
        ([write(tmp_path / "a.csv", "b_no,메모\n1248100998,x\n")], "with a status was found; the headers are: b_no"),
        ([write(tmp_path / "b.csv", "b_no,상태\n1248100998,x\n")], "no row of 1 has"),
        ([], "no source"),
        ([tmp_path / "empty"], "holds no table"),
    ):
        with pytest.raises(RegistryError, match=said):
            bs.build_registry(sources, out)
    assert not out.exists()


def test_the_sample_registry_is_what_its_source_gives(tmp_path: Path) -> None:
    bs.build_registry([SAMPLE / "registry_source.csv"], tmp_path / "r.parquet")
    assert pl.read_parquet(tmp_path / "r.parquet").equals(pl.read_parquet(SAMPLE / "registry.parquet"))
