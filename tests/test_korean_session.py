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

REFERENCE = f"--registry {SAMPLE / 'registry.parquet'} --gazetteer {SAMPLE / 'gazetteer.parquet'}"
KEY = "test-key-of-the-session"

SESSION = f"""
plan customers.csv {REFERENCE}
enrich customers.csv {REFERENCE} -o out.csv --headers ko --letters l.xlsx --letter-cost 500 --review r.xlsx
enrich customers.csv -o plain.csv
enrich customers.csv book.xlsx {REFERENCE} -o folder/
enrich customers.csv {REFERENCE} -o out.parquet --dry-run
report out.csv -o page.html --letter-cost 500
verify 124-81-00998 --address "경기 수원시 영통구 삼성로 129" {REFERENCE}
verify 12
status 124-81-00998
data build-registry customers.csv -o x.parquet
data build-registry {SAMPLE / "registry_source.csv"} -o registry.parquet
data apply-review customers.csv
doctor --offline
label {SAMPLE / "outcomes.csv"} --file out.csv --returns-requested --complete --sent all
label {SAMPLE / "outcomes.csv"} --file customers.csv --returns-requested
calibrate --report-only
model history
model show
model rollback
watch sync customers.csv --apply --local
watch list --local
watch check --local --registry {SAMPLE / "registry.parquet"}
watch history 124-81-00998 --local
watch remove 124-81-00998 --local
run --init job.toml
run job.toml
runs list job.toml
runs show job.toml last
runs diff job.toml last-1 last
keys create --db server.sqlite --plan business
keys list --db server.sqlite
keys revoke --db server.sqlite none
notices --db server.sqlite
ledger
resolve
forget 124-81-00998 --dry-run
me
enrich customers.csv --engine batch -o out.csv
enrich missing.xlsx
enrich locked.xlsx
enrich cp949.csv --encoding utf-8 -o out.csv
enrich cp949.csv -o out2.csv
enrich customers.csv --columns b_no=없는열 -o out.csv
enrich nothing.csv -o out.csv
enrich headless.csv -o out.csv
enrich rounded.csv -o out3.csv
enrich list.hwp -o out.csv
enrich customers.csv -o customers.csv
enrich customers.csv -o out.docx
enrich customers.csv --status nts -o out.csv
enrich customers.csv --registry customers.csv -o out.csv
enrich customers.csv --gazetteer customers.csv -o out.csv
enrich customers.csv --rate fast -o out.csv
enrich customers.csv --nothing
enrich
nothing
enrich customers.csv --max-age x
enrich customers.csv --engine x
enrich customers.csv --columns x
enrich customers.csv --columns name=#99 -o out.csv
enrich customers.csv --choices x --no-choices -o out.csv
enrich customers.csv -o none/out.csv
enrich customers.csv -o /proc/out.csv
enrich customers.csv --summary -o out.csv
enrich customers.csv --in-place -o out.csv
enrich customers.csv --registry none.parquet -o out.csv
enrich customers.csv --model none -o out.csv
enrich customers.csv --model {SAMPLE / "customers.csv"} -o out.csv
enrich book.xlsx --sheet none -o out.xlsx
enrich s3://bucket/list.csv -o out.csv
enrich http://localhost/list.csv -o out.csv
enrich customers.csv --ledger customers.csv --engine verify --base-url https://localhost
verify 124-81-00998 --engine verify
report none -o page.html
report customers.csv -o page.html
label customers.csv --file out.csv --returns-requested --mailed soon
label customers.csv --run none --returns-requested
calibrate none.csv
calibrate --report-only customers.csv
model show none
model diff
model rollback none
watch add 124-81-00998 --local
watch add 12 --local
watch remove none --local
resolve none --lost
data build-registry none.csv -o x.parquet
data build-gazetteer customers.csv -o x.parquet
data build-gazetteer {SAMPLE / "rnaddrkor_sample.txt"} -o gazetteer.parquet
data fetch-status customers.csv -o x.parquet
data refresh-registry registry.parquet
data update
data apply-review r.xlsx
doctor --offline --registry registry.parquet --ledger customers.csv
forget 12 --yes
forget 124-81-00998 --yes
run broken.toml
run wrong.toml
run none.toml
runs show job.toml none
serve
serve --check --db server.sqlite --plans wrong.toml
serve --check --db customers.csv
keys create --db server.sqlite --plan none
keys list --db server.sqlite
keys erase --db server.sqlite none
notices retry --db server.sqlite --key none
""".strip().splitlines()

PAID = """
me
plan customers.csv --engine verify
enrich customers.csv --engine verify -o paid.csv --budget 3
enrich customers.csv --engine batch -o paid.csv
ledger
resolve
watch sync customers.csv
""".strip().splitlines()

VALUES = re.compile(r"calamine error[^()]*")
"""What a reader says of a damaged workbook, in brackets."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a list, and the files that people send."""
    monkeypatch.chdir(tmp_path)
    sample = (SAMPLE / "customers.csv").read_bytes()
    (tmp_path / "customers.csv").write_bytes(sample)
    (tmp_path / "cp949.csv").write_bytes(sample.decode().encode("cp949"))
    (tmp_path / "locked.xlsx").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2000))
    (tmp_path / "list.hwp").write_bytes(b"HWP Document File V3.00" + bytes(100))
    write(tmp_path / "nothing.csv", "고객,등급\n가,A\n")
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
    return [f"{line}: {found}" for found in english_words(VALUES.sub("…", "\n".join(shown)))]


def test_a_session_on_good_and_ugly_files_is_korean(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is printed, warnings and errors with their remedies among it."""
    for name in ("BANSONG_API_KEY", "BANSONG_BASE_URL", "BANSONG_NTS_KEY"):
        monkeypatch.delenv(name, raising=False)
    found = []
    for line in SESSION:
        if line == "run job.toml":
            write(files / "job.toml", '[[inputs]]\npath = "customers.csv"\n[output]\npath = "o/{name}.{ext}"\n')
        found += english_of(line, said_by(line))
    assert not found, "\n".join(found)


@pytest.mark.process
def test_an_english_session_on_a_korean_computer_is_english(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of the list aside, no Korean sentence is said, whatever the computer's own language is."""
    monkeypatch.setenv("LANG", "ko_KR.UTF-8")
    for line in (one for one in SESSION if one.startswith(("plan", "enrich", "verify", "label", "doctor", "data"))):
        said = said_by(line.replace("--headers ko", ""), "en")
        assert re.findall(r"[가-힣](?:니다|세요|습니까)\b|[가-힣] 없음", said) == [], line


def test_the_headings_of_tables_are_korean(files: Path) -> None:
    """A heading is too short to be a sentence, and is found here; what stands below may be a code."""
    write(files / "job.toml", '[[inputs]]\npath = "customers.csv"\n[output]\npath = "o/{name}.{ext}"\n')
    for line in (
        f"enrich customers.csv {REFERENCE} -o out.csv",
        f"label {SAMPLE / 'outcomes.csv'} --file out.csv --returns-requested --complete --sent all",
        "calibrate",
        "keys create --db server.sqlite --plan business",
        "run job.toml",
    ):
        said_by(line)
    for line, heading in (
        ("calibrate --report-only", "구간 최저 최고 행 반송 예상 평균 확률 반송률"),
        ("model history", "일시 항목 버전 반송 기록 반송 e값 이유"),
        ("model show", "수준 점수 내장 판정 근거"),
        ("runs list job.toml", "실행 시작 종료 코드 행 수 변경 내용 전달"),
        ("runs show job.toml last", "판정함: "),
        ("keys list --db server.sqlite", "웹훅 유효한 비밀값 만든 때 마지막 사용 폐기 참고"),
    ):
        assert heading in " ".join(said_by(line).split()), line


def test_a_labelled_file_is_compared_whichever_language_its_headers_have(files: Path) -> None:
    """What came back, the probabilities and the actions are found in a file with Korean headers and words, too."""
    told = []
    for name, headers in (("ko.csv", "--headers ko"), ("en.csv", "")):
        said_by(f"enrich customers.csv {REFERENCE} -o {name} --no-labels {headers}")
        said_by(f"label {SAMPLE / 'outcomes.csv'} --file {name} --returns-requested --complete --sent all -o l-{name}")
        said = said_by(f"calibrate --report-only l-{name}")
        told.append(said.replace(f"l-{name}", "…"))
    assert told[0] == told[1]
    assert "결과를 아는 251행" in told[0]
    assert "발송 금지 " in told[1]
    assert "반송 여부" in (files / "l-ko.csv").read_text("utf-8-sig")


def test_what_could_not_be_told_is_no_result(files: Path) -> None:
    """On stdout stand closures and changes of grade alone, in whatever language: cron mails them."""
    said_by("watch sync customers.csv --apply --local")
    check = f"watch check --local --registry {SAMPLE / 'registry.parquet'} --notify no/folder.jsonl"
    result = CliRunner().invoke(app, ["--lang", "ko", *shlex.split(check)])
    assert result.exit_code == 3
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["폐업"]
    assert "\n미전달 " in result.stderr


def test_a_session_with_the_service_is_korean(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buying, a budget, a quota that is used up, what is left: the service's own words aside."""
    service = FakeService(KEY, quota=5)
    with serve(service) as url:
        monkeypatch.setenv("BANSONG_BASE_URL", url)
        monkeypatch.setenv("BANSONG_API_KEY", KEY)
        found = [one for line in PAID for one in english_of(line, said_by(line))]
        monkeypatch.setenv("BANSONG_API_KEY", "wrong-key-of-the-session")
        own = said_by("me").replace("API key is missing or invalid", "…")  # the fake's words, which stay
        found += english_of("me, with a wrong key", own)
    assert not found, "\n".join(found)
