"""What a person reads in Korean: worded as mailing teams say it, in every command, and without English."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import xlsxwriter
from babel.messages.pofile import read_po
from click.testing import CliRunner

import bansong as bs
from bansong import BansongError, ReadOptions
from bansong.base.messages import Lang, use_audience, use_language
from bansong.cli.app import app
from bansong.cli.options import COMMAND_LINE
from bansong.engine.risk.reasons import parse_reasons
from bansong.engine.risk.scorecard import Scorecard
from bansong.tables.detect import FILE_OPTIONS, ONLY_ENCODING, open_table
from conftest import ROOT, SAMPLE, write
from korean import english_words

Run = Callable[..., subprocess.CompletedProcess[str]]

EARLIER = {
    ("status", "closed_over_12_months"): "폐업 12개월 초과 (2024-05-21 폐업)",
    ("status", "not_found"): "상태 미확인: 등록 자료에 없는 번호",
    ("status", "not_checked"): "휴·폐업 미확인: 사업자 상태 자료를 지정하지 않음",
    ("age", "over_10_years"): "개업 10년 초과",
    ("address", "exact_with_unit"): "상세주소까지 갖춘 공식 주소",
    ("address", "building_only"): "건물 본번은 있으나 부번이 없음",
    ("change", "changed"): "공식 표기로 바꿈: 도로명",
    ("region", "seoul"): "서울 지역 우편물의 실적",
    ("history", "moved"): "이 주소로 보낸 우편물 반송됨: 이사",
}
"""What the release wrote whose Korean was reworded, by the level that it tells."""


OTHER_WORDS = {
    "휴·폐업 상태": r"영업 상태|사업자 상태",
    "반송 등급": r"(?<!반송 )등급",
    "판정 근거": r"판정 사유|작용한 사유|가장 큰 사유",
    "처리 상태": r"행 처리 결과",
    "원본 파일": r"입력 파일",
    "결과 불명": r"결과 미확인",
}
"""The one word for a thing, and others that were used for it."""


@cache
def messages() -> dict[str, str]:
    path = Path(bs.__file__).parent / "locale" / "ko" / "LC_MESSAGES" / "bansong.po"
    with path.open("rb") as file:
        found = [message for message in read_po(file) if message.id]
    plain = [(one.id, one.string) if isinstance(one.id, str) else (one.id[-1], one.string[0]) for one in found]
    return dict(plain)


def test_roles_may_be_named_in_korean(run: Run, tmp_path: Path) -> None:
    source = write(tmp_path / "in.csv", "갑,을,병\n124-81-00998,삼성전자,경기 수원시 영통구 삼성로 129\n")
    roles = {"사업자번호": "갑", "상호": "을", "주소": "병"}
    report = bs.enrich(source, tmp_path / "out.csv", columns=roles)
    assert {role: one.header for role, one in report.columns.items()} == {"b_no": "갑", "name": "을", "address": "병"}
    given = ",".join(f"{role}={header}" for role, header in roles.items())
    assert run("plan", source, "--columns", given).returncode == 0
    unknown = run("plan", source, "--columns", "번호=갑", env={"BANSONG_LANG": "ko"})
    assert (unknown.returncode, "사업자번호, 상호, 주소, 우편번호" in unknown.stderr) == (2, True)


def test_reasons_of_the_release_before_are_read_back() -> None:
    features, cells = Scorecard.load().features, []
    for (feature, level), text in EARLIER.items():
        found, subject = features[feature][level], {"change": "address"}.get(feature, feature)
        base = "[base -50] 일반 사업자 우편의 출발점 (model)"
        cells.append(f"{base} | [{subject} {found.points:+d}] {text} ({found.source})")
    read = parse_reasons(pl.LazyFrame({"reasons": cells}), "reasons").collect().to_dicts()
    assert [(row[f"level:{feature}"], row["unread"]) for row, (feature, _) in zip(read, EARLIER, strict=True)] == [
        (level, False) for _, level in EARLIER
    ]


def test_one_thing_has_one_word() -> None:
    said = messages().values()
    assert [(word, ko) for word, others in OTHER_WORDS.items() for ko in said if re.search(others, ko)] == []


FROZEN = ROOT / "tests" / "frozen"
REGISTRY = f"--registry {SAMPLE / 'registry.parquet'}"
LABEL = f"label {SAMPLE / 'outcomes.csv'} --returns-requested --complete --sent all"

SESSION = f"""
enrich customers.csv {REGISTRY} -o out.csv --headers ko --letters l.xlsx --letter-cost 500
data build-registry {SAMPLE / "registry_source.csv"} -o registry.parquet
data update
doctor --offline --registry registry.parquet --ledger customers.csv
{LABEL} --file out.csv -o l.csv
calibrate
calibrate --report-only
calibrate --report-only l.csv
model history
model show
model diff
keys create --db server.sqlite --plan business
notices list --db server.sqlite
serve --check --db server.sqlite --plans wrong.toml
forget 124-81-00998 --dry-run
enrich headless.csv -o out.csv
enrich rounded.csv -o out3.csv
nothing
enrich customers.csv --max-age x
enrich customers.csv --columns x
enrich customers.csv --choices x --no-choices -o out.csv
run broken.toml
run wrong.toml
""".strip().splitlines()
"""What stands in no transcript of `tests/frozen`."""

HEADINGS = {
    "calibrate --report-only": "구간 최저 최고 행 반송 예상 평균 확률 반송률",
    "model history": "일시 항목 버전 반송 기록 반송 e값 이유",
    "model show": "수준 점수 내장 판정 근거",
}
"""Headings are too short to be sentences."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(SAMPLE / "customers.csv", tmp_path)
    write(tmp_path / "headless.csv", "124-81-00998,가\n220-81-62517,나\n")
    write(tmp_path / "broken.toml", "inputs =\n")
    write(tmp_path / "wrong.toml", "[run]\ndeadline = 5\n")
    write(tmp_path / "rounded.csv", "사업자번호\n1.248E+09\n1.24E+09\n")
    return tmp_path


def said_by(line: str, lang: Lang = "ko") -> str:
    result = CliRunner().invoke(app, ["--lang", lang, *shlex.split(line)], prog_name="bansong")
    if isinstance(result.exception, BansongError):
        with use_language(lang), use_audience(COMMAND_LINE):
            return f"{result.output}\n{result.exception}"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def english_of(line: str, text: str) -> list[str]:
    shown = [one for one in text.splitlines() if not one.startswith("사용법:")]
    return [f"{line}: {found}" for found in english_words("\n".join(shown))]


def test_a_session_on_good_and_ugly_files_is_korean(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BANSONG_API_KEY", "BANSONG_BASE_URL", "BANSONG_NTS_KEY"):
        monkeypatch.delenv(name, raising=False)
    said = {line: said_by(line) for line in SESSION}
    assert [found for line, text in said.items() for found in english_of(line, text)] == []
    assert "결과를 아는 " in said["calibrate --report-only l.csv"]  # of a file with Korean headers
    assert [line for line, heading in HEADINGS.items() if heading not in " ".join(said[line].split())] == []


def test_transcripts_and_sentences_of_errors_in_korean_hold_no_english() -> None:
    paths = [path for path in FROZEN.rglob("*.ko.txt") if path.parent.name in ("frozen", "transcripts")]
    said = {path.name: path.read_text(encoding="utf-8").replace("used in MONTH", "…").splitlines() for path in paths}
    assert len(said) > 8
    shown = {name: "\n".join(line for line in lines if not line.startswith("$ ")) for name, lines in said.items()}
    assert [found for name, text in shown.items() for found in english_of(name, text)] == []


def error_in_korean(path: Path, **options: Any) -> str:
    with use_language("ko"), pytest.raises(BansongError) as failed, open_table(path, **options):
        pass
    with use_language("ko"):
        return str(failed.value)


def test_a_child_process_and_a_thread_speak_the_language_of_the_block(tmp_path: Path) -> None:
    book, keys = tmp_path / "book.xlsx", tmp_path / "keys.json"
    with xlsxwriter.Workbook(book) as made:
        made.add_worksheet("목록").write_row(0, 0, ["사업자번호", "주소"])
        made.add_worksheet("빈 시트")
    assert error_in_korean(book, wanted=ReadOptions(sheet="빈 시트")) == f"{book}: '빈 시트' 시트가 비어 있습니다"
    keys.write_bytes(b'[{"b_no": "1248100998", "b_no": "2208162517"}]')
    assert error_in_korean(keys) == f"{keys}: 1번째 레코드에 'b_no' 키가 두 번 있습니다. 하나만 남겨 주세요"


def test_remedies_name_the_options_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "several.json"
    path.write_bytes(b'{"a": [{"b_no": "1"}], "b": [{"b_no": "2"}]}')
    assert "`file_json_path='a'` 옵션으로 골라 주세요" in error_in_korean(path, options=FILE_OPTIONS)
    assert "파일에 하나만 남겨 주세요" in error_in_korean(path, options=ONLY_ENCODING)
    path = tmp_path / "nul.csv"
    path.write_bytes(b"b_no\n1248100998\0\n")
    assert "다른 인코딩이면 `encoding=` 옵션으로 지정해 주세요" in error_in_korean(path)
    assert "UTF-8이 아닐 수 있습니다" in error_in_korean(path, options={})
