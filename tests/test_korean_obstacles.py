"""A person who reads only Korean gets past what stops mailing teams most: each message says what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from bansong.base.messages import use_audience
from bansong.cli.app import app
from bansong.cli.options import COMMAND_LINE
from bansong.errors import BansongError
from bansong.testing import FakeNts, FakeService, serve
from conftest import ROOT
from korean import english_words

NUMBERS = ("1248100998", "2208162517")
LIST = "사업자등록번호,전화번호,상호,주소\n" + "".join(
    f"{number},02-1234-567{place},가나상사,서울 종로구 종로 {place}\n" for place, number in enumerate(NUMBERS, 1)
)


@pytest.fixture(autouse=True)
def korean_computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("BANSONG_LANG", "LC_ALL", "LC_MESSAGES", "BANSONG_NTS_KEY", "BANSONG_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "ko_KR.UTF-8")
    Path("명단.csv").write_text(LIST, encoding="utf-8")


def say(*words: str) -> tuple[int, str]:
    """The exit code and all that a command prints, which holds no English words."""
    result = CliRunner().invoke(app, words, prog_name="bansong")
    error = result.exception
    if isinstance(error, BansongError):
        with use_audience(COMMAND_LINE):
            code, text = error.exit_code, str(error)
    elif error is None or isinstance(error, SystemExit):
        code, text = result.exit_code, result.output
    else:
        raise error
    assert english_words(text) == [], text
    return code, text


def test_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = say("enrich", "명단.csv", "--status", "nts")
    assert code == 2
    assert "data.go.kr에서 무료로 발급받아" in text
    page, variable = re.search(r"방법: (\S+)\) 환경 변수 (\w+)에", text).groups()
    assert "국세청 무료 인증키" in (ROOT / page).read_text(encoding="utf-8")
    with serve(FakeNts("free-key", dict.fromkeys(NUMBERS, "active"))) as url:
        monkeypatch.setenv("BANSONG_NTS_URL", url)
        monkeypatch.setenv(variable, "free-key")
        code, text = say("enrich", "명단.csv", "--status", "nts")
    assert (code, "휴·폐업 상태 2건 중 2건 확인" in text) == (0, True)


def test_a_quota_that_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FakeService("key-of-the-team", quota=1)
    with serve(service) as url:
        monkeypatch.setenv("BANSONG_BASE_URL", url)
        monkeypatch.setenv("BANSONG_API_KEY", "key-of-the-team")
        code, text = say("enrich", "명단.csv", "--engine", "verify")
        assert (code, service.paid_total) == (5, 0)
        assert "이번 달 남은 한도가 1건이라 구매하지 않았습니다" in text
        option = re.search(r"(--budget) (\d+) 옵션으로", text)
        code, text = say("enrich", "명단.csv", "--engine", "verify", *option.groups())
        assert (code, service.paid_total) == (5, 1)
        assert "예산·한도 초과 1건" in text


def test_a_wrong_column() -> None:
    code, text = say("enrich", "명단.csv", "--columns", "b_no=전화번호")
    assert code == 3
    assert "('전화번호' 열, 대부분 전화번호 형식)" in text
    example = re.search(r"--columns로 사업자등록번호 열을 지정해 주세요\(예: (\S+)\)", text)[1]
    assert say("enrich", "명단.csv", "--columns", example)[0] == 0


def test_the_questions_page_quotes_what_is_said() -> None:
    page = (ROOT / "docs/ko/faq.md").read_text(encoding="utf-8")
    catalogue = (ROOT / "src/bansong/locale/ko/LC_MESSAGES/bansong.po").read_text(encoding="utf-8")
    said = catalogue.replace('"\n"', "").replace("{name}가", "API 키가").replace("{place}행", "1행")
    cells = [cell for row in re.findall(r"^\| ([^|]+) \|", page, flags=re.M) for cell in row.split(", ")]
    quoted = [cell for cell in cells if cell.endswith("니다")]
    assert len(quoted) > 6
    assert [cell for cell in quoted if cell not in said] == []
