"""Names as they are on the disk: Hangul as macOS spells it, locks of Excel, files of a folder that are no tables."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import bansong as bs
from bansong.base.schema import Alert
from bansong.errors import InputError
from books import written
from conftest import write

TEXT = "사업자번호,상호\n124-81-00998,삼성전자\n"


def spell(form: str, text: str) -> str:
    return unicodedata.normalize(form, text)  # type: ignore[arg-type]


@pytest.mark.parametrize(("disk", "typed"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_files_folders_and_patterns_are_found_however_they_are_spelled(tmp_path: Path, disk: str, typed: str) -> None:
    """The output is beside a file under the same spelling; an output that is there is replaced and gets no twin."""
    folder = tmp_path / spell(disk, "거래처 자료")
    folder.mkdir()
    write(folder / spell(disk, "명단.csv"), TEXT)
    name = spell(typed, "거래처 자료/명단.csv")
    for asked in (
        [folder],
        [tmp_path / spell(typed, "거래처 자료")],
        [str(tmp_path / spell(typed, "거래처 자료/명*.csv"))],
    ):
        assert bs.plan(asked).rows == 1
    for _ in range(2):
        bs.enrich(tmp_path / name)
    write(folder / spell(disk, "결과.csv"), "old")
    bs.enrich(tmp_path / name, tmp_path / spell(typed, "거래처 자료/결과.csv"))
    names = {path.name for path in folder.iterdir()}
    assert names == {spell(disk, one) for one in ("명단.csv", "명단.enriched.csv", "결과.csv", "결과.csv.bak")}


@pytest.mark.parametrize("lock", ["~${}", ".~lock.{}#"])
def test_a_workbook_that_is_open_is_told_and_a_lock_is_no_input(
    tmp_path: Path, run: Callable[..., CompletedProcess[str]], lock: str
) -> None:
    source = written(tmp_path / "a.xlsx", [["사업자번호", "상호"], ["124-81-00998", "가"]])
    assert not any("lies beside" in warning for warning in bs.plan(source).warnings)
    write(tmp_path / lock.format("a.xlsx"), "김대리")
    write(tmp_path / lock.format("a.enriched.xlsx"), "김대리")
    told = [warning for warning in bs.plan(source).warnings if isinstance(warning, Alert) and "lies beside" in warning]
    assert ["a.enriched.xlsx seems" in one for one in told] == [False, True]
    if lock.startswith("~"):
        done = run("enrich", "~$a.xlsx", "a.xlsx")
        assert (done.returncode, (tmp_path / "a.enriched.xlsx").exists()) == (0, True)
        assert "~$a.xlsx" in done.stdout + done.stderr


def test_what_is_no_table_in_a_folder_is_passed_over_and_a_broken_list_is_not(tmp_path: Path) -> None:
    """A note names it. A list without numbers, or one that is damaged, may hold customers: it ends the run."""
    others = {
        "읽어보기.txt": "이 폴더는 거래처 명단입니다.\n문의: 김대리\n",
        "package.json": '{"name": "x"}',
        "scan.csv": "%PDF-1.4\n",
    }
    for name, text in {"a.csv": TEXT, "b.csv": TEXT, **others}.items():
        write(tmp_path / name, text)
    report = bs.enrich([tmp_path])
    assert (report.rows, len(report.passed_over), report.failed) == (2, 3, {})
    for name in others:  # somebody named it
        with pytest.raises(InputError):
            bs.plan([tmp_path / "a.csv", tmp_path / name])
    for name, text in (("codes.csv", "코드,이름\nA,가\n"), ("list.xlsx", "PK\x03\x04broken"), ("empty.csv", "")):
        write(tmp_path / name, text)
        with pytest.raises(InputError, match=name):
            bs.plan([tmp_path])
        (tmp_path / name).unlink()
