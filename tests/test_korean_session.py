"""A person who reads only Korean gets through: every command on good and ugly files, and nothing is said in English."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import openpyxl
import pytest
from click.testing import CliRunner

from bansong.base.messages import Lang
from bansong.cli.app import app
from bansong.errors import BansongError
from bansong.testing import FakeService, serve
from conftest import SAMPLE, write
from korean import as_printed, english_words

REGISTRY = f"--registry {SAMPLE / 'registry.parquet'}"
REFERENCE = f"{REGISTRY} --gazetteer {SAMPLE / 'gazetteer.parquet'}"
KEY = "test-key-of-the-session"
LABEL = f"label {SAMPLE / 'outcomes.csv'} --returns-requested --complete --sent all"

SESSION = f"""
plan customers.csv {REGISTRY}
enrich customers.csv {REFERENCE} -o out.csv --headers ko --letters l.xlsx --letter-cost 500 --review r.xlsx
enrich customers.csv book.xlsx -o folder/
report out.csv -o page.html --letter-cost 500
verify 124-81-00998 --address "경기 수원시 영통구 삼성로 129" {REFERENCE}
verify 12
status 124-81-00998
data build-registry {SAMPLE / "registry_source.csv"} -o registry.parquet
data build-gazetteer {SAMPLE / "rnaddrkor_sample.txt"} -o gazetteer.parquet
data apply-review r.xlsx
data update
doctor --offline --registry registry.parquet --ledger customers.csv
{LABEL} --file out.csv
calibrate
calibrate --report-only
model history
model show
model diff
watch sync customers.csv --apply --local
watch add 124-81-00998 --local
watch list --local
watch check --local {REGISTRY}
watch history 124-81-00998 --local
watch remove 124-81-00998 --local
run --init made.toml
run job.toml
runs list job.toml
runs show job.toml last
runs diff job.toml last-1 last
keys create --db server.sqlite --plan business
keys list --db server.sqlite
notices list --db server.sqlite
serve --check --db server.sqlite --plans wrong.toml
ledger
forget 124-81-00998 --dry-run
me
enrich customers.csv --engine batch -o out.csv
enrich cp949.csv -o out2.csv
enrich headless.csv -o out.csv
enrich rounded.csv -o out3.csv
enrich customers.csv --nothing
enrich
nothing
enrich customers.csv --max-age x
enrich customers.csv --columns x
enrich customers.csv --choices x --no-choices -o out.csv
enrich book.xlsx --sheet none -o out.xlsx
run broken.toml
run wrong.toml
""".strip().splitlines()
"""What prints tables, reports and usage; sentences of errors are held against the catalogue elsewhere."""

HEADINGS = {
    "calibrate --report-only": "구간 최저 최고 행 반송 예상 평균 확률 반송률",
    "model history": "일시 항목 버전 반송 기록 반송 e값 이유",
    "model show": "수준 점수 내장 판정 근거",
    "runs list job.toml": "실행 시작 종료 코드 행 수 변경 내용 전달",
    "runs show job.toml last": "판정함: ",
    "keys list --db server.sqlite": "웹훅 유효한 비밀값 만든 때 마지막 사용 폐기 참고",
}
"""Headings are too short to be sentences."""

PAID = """
me
plan customers.csv --engine verify
enrich customers.csv --engine verify -o paid.csv --budget 3
enrich customers.csv --engine batch -o paid.csv
ledger
resolve
watch sync customers.csv
""".strip().splitlines()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a list, and the files that people send."""
    monkeypatch.chdir(tmp_path)
    sample = (SAMPLE / "customers.csv").read_bytes()
    (tmp_path / "customers.csv").write_bytes(sample)
    (tmp_path / "cp949.csv").write_bytes(sample.decode().encode("cp949"))
    write(tmp_path / "job.toml", '[[inputs]]\npath = "customers.csv"\n[output]\npath = "o/{name}.{ext}"\n')
    write(tmp_path / "headless.csv", "124-81-00998,가\n220-81-62517,나\n")
    write(tmp_path / "broken.toml", "inputs =\n")
    write(tmp_path / "wrong.toml", "[run]\ndeadline = 5\n")
    write(tmp_path / "rounded.csv", "사업자번호\n1.248E+09\n1.24E+09\n")
    book = openpyxl.Workbook()
    for row in (("사업자번호", "주소"), ("124-81-00998", "서울 종로구 종로 1"), ("합계", None)):
        book.active.append(row)
    book.save(tmp_path / "book.xlsx")
    return tmp_path


def said_by(line: str, lang: Lang = "ko") -> str:
    """What a command prints for people, on both streams."""
    result = CliRunner().invoke(app, ["--lang", lang, *shlex.split(line)], prog_name="bansong")
    if isinstance(result.exception, BansongError):
        return f"{result.output}\n{as_printed(result.exception, lang)}"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def english_of(line: str, text: str) -> list[str]:
    """English words that are no usage line."""
    shown = [one for one in text.splitlines() if not one.startswith("사용법:")]
    return [f"{line}: {found}" for found in english_words("\n".join(shown))]


@pytest.mark.process
def test_an_english_session_on_a_korean_computer_is_english(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "ko_KR.UTF-8")
    for line in (one for one in SESSION if one.startswith(("plan", "enrich", "verify", "label", "doctor", "data"))):
        said = said_by(line.replace("--headers ko", ""), "en")
        assert re.findall(r"[가-힣](?:니다|세요|습니까)\b|[가-힣] 없음", said) == [], line


def test_what_could_not_be_told_is_no_result(files: Path) -> None:
    said_by("watch sync customers.csv --apply --local")
    check = f"watch check --local --registry {SAMPLE / 'registry.parquet'} --notify no/folder.jsonl"
    result = CliRunner().invoke(app, ["--lang", "ko", *shlex.split(check)])
    assert result.exit_code == 3
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["폐업"]
    assert "\n미전달 " in result.stderr


def test_a_session_with_the_service_is_korean(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService(KEY, quota=5)
    with serve(service) as url:
        monkeypatch.setenv("BANSONG_BASE_URL", url)
        monkeypatch.setenv("BANSONG_API_KEY", KEY)
        found = [one for line in PAID for one in english_of(line, said_by(line))]
        monkeypatch.setenv("BANSONG_API_KEY", "wrong-key-of-the-session")
        own = said_by("me").replace("API key is missing or invalid", "…")  # the fake's words, which stay
        found += english_of("me, with a wrong key", own)
    assert not found, "\n".join(found)


def test_a_session_on_good_and_ugly_files_is_korean(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BANSONG_API_KEY", "BANSONG_BASE_URL", "BANSONG_NTS_KEY"):
        monkeypatch.delenv(name, raising=False)
    said = {line: said_by(line) for line in SESSION}
    assert [found for line, text in said.items() for found in english_of(line, text)] == []
    assert [line for line, heading in HEADINGS.items() if heading not in " ".join(said[line].split())] == []


def test_a_labelled_file_is_compared_whichever_language_its_headers_have(files: Path) -> None:
    told = []
    for name, headers in (("ko.csv", "--headers ko"), ("en.csv", "")):
        said_by(f"enrich customers.csv {REGISTRY} -o {name} --no-labels {headers}")
        said_by(f"{LABEL} --file {name} -o l-{name}")
        told.append(said_by(f"calibrate --report-only l-{name}").replace(f"l-{name}", "…"))
    assert told[0] == told[1]
    assert "결과를 아는 251행" in told[0]
    assert "반송 여부" in (files / "l-ko.csv").read_text("utf-8-sig")
