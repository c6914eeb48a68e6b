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
FORMS = [("NFD", "NFC"), ("NFC", "NFD")]


def spell(form: str, text: str) -> str:
    return unicodedata.normalize(form, text)  # type: ignore[arg-type]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(("disk", "typed"), FORMS)
def test_a_file_is_found_however_its_name_is_spelled(
    tmp_path: Path, disk: str, typed: str, run: Callable[..., CompletedProcess[str]]
) -> None:
    """The output is beside it under the same spelling; an output that is there is replaced and gets no twin."""
    folder = tmp_path / spell(disk, "거래처 자료")
    folder.mkdir()
    write(folder / spell(disk, "명단.csv"), TEXT)
    name = spell(typed, "거래처 자료/명단.csv")
    for _ in range(2):
        assert run("enrich", name).returncode == 0
    assert names(folder) == [spell(disk, "명단.csv"), spell(disk, "명단.enriched.csv")]
    write(folder / spell(disk, "결과.csv"), "old")
    bs.enrich(tmp_path / name, tmp_path / spell(typed, "거래처 자료/결과.csv"))
    assert [one for one in names(folder) if one.endswith(".csv")].count(spell(disk, "결과.csv")) == 1
    assert spell(typed, "결과.csv") not in names(folder)


@pytest.mark.parametrize(("disk", "typed"), FORMS)
def test_folders_and_patterns_are_found_too(tmp_path: Path, disk: str, typed: str) -> None:
    folder = tmp_path / spell(disk, "거래처")
    folder.mkdir()
    for name in ("명단1.csv", "명단2.csv"):
        write(folder / spell(disk, name), TEXT)
    assert bs.plan([tmp_path / spell(typed, "거래처")]).rows == 2
    assert bs.plan([str(tmp_path / spell(typed, "거래처/명단*.csv"))]).rows == 2


@pytest.mark.parametrize("lock", ["~${}", ".~lock.{}#"])
def test_a_workbook_that_is_open_is_told_and_a_lock_is_no_input(
    tmp_path: Path, run: Callable[..., CompletedProcess[str]], lock: str
) -> None:
    """What is not saved there is not in the file; a pattern that the shell expanded brings lock files along."""
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
    write(tmp_path / "a.csv", TEXT)
    write(tmp_path / "b.csv", TEXT)
    write(tmp_path / "읽어보기.txt", "이 폴더는 거래처 명단입니다.\n문의: 김대리\n")
    write(tmp_path / "package.json", '{"name": "x", "version": "1"}')
    write(tmp_path / "scan.csv", "%PDF-1.4\n")
    report = bs.enrich([tmp_path])
    assert report.rows == 2
    assert len(report.passed_over) == 3
    assert not report.failed
    for name in ("읽어보기.txt", "package.json", "scan.csv"):
        with pytest.raises(InputError):  # somebody named it
            bs.plan([tmp_path / "a.csv", tmp_path / name])
    for name, text in (("codes.csv", "코드,이름\nA,가\n"), ("list.xlsx", "PK\x03\x04broken"), ("empty.csv", "")):
        write(tmp_path / name, text)
        with pytest.raises(InputError, match=name):
            bs.plan([tmp_path])
        (tmp_path / name).unlink()
