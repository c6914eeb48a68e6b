"""What is wrong with a file is said in Korean, also where a child process has read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import xlsxwriter

from bansong import BansongError, ReadOptions, enrich
from bansong.base.messages import use_language
from bansong.tables.detect import FILE_OPTIONS, ONLY_ENCODING, open_table
from korean import english_sentences, in_korean

_ROW = "1248100998,서울특별시 중구 세종대로 110"
_UGLY: dict[str, bytes] = {
    "empty.csv": b"",
    "no_number.csv": "이름,메모\n가나상사,서울특별시\n".encode(),
    "no_header.csv": f"{_ROW}\n{_ROW}\n".encode(),
    "long_line.csv": f"사업자번호,주소\n{_ROW}\n{_ROW},나머지\n".encode(),
    "quotes.csv": f'사업자번호,주소\n{_ROW}\n1248100998,"서울\n'.encode(),
    "nul.csv": f"사업자번호,주소\n{_ROW}\n1248100998,\0\n".encode(),
    "broken.zip": b"PK\x03\x04broken",
    "document.hwp": b"HWP Document File V3.00",
    "login.xls": b"<html><head><title>login</title></head><body>please log in</body></html>",
    "python.json": b'[{"b_no": None}]',
    "several.json": b'{"a": [{"b_no": "1"}], "b": [{"b_no": "2"}]}',
    "notes.parquet": b"PAR1 cut off",
}


_SAID_BY_LIBRARIES = re.compile(r"\((?:Parquet magic bytes|File is not a zip|Truncated file|Bad magic)[^)]*\)")


def test_what_is_wrong_with_a_file_is_said_in_korean(tmp_path: Path) -> None:
    english = {}
    for name, content in _UGLY.items():
        path = tmp_path / name
        path.write_bytes(content)
        with use_language("ko"), pytest.raises(BansongError) as failed:
            enrich(path, dry_run=True)
        said = _SAID_BY_LIBRARIES.sub("", in_korean(failed.value))
        if english_sentences(said) or not re.search("(?:니다|세요)(?:[.(]|$)", said):
            english[name] = said
    assert english == {}


def _error(path: Path, **options: Any) -> str:
    with use_language("ko"), pytest.raises(BansongError) as failed, open_table(path, **options):
        pass
    return in_korean(failed.value)


def test_a_child_process_and_a_thread_speak_the_language_of_the_block(tmp_path: Path) -> None:
    book, keys = tmp_path / "book.xlsx", tmp_path / "keys.json"
    with xlsxwriter.Workbook(book) as made:
        made.add_worksheet("목록").write_row(0, 0, ["사업자번호", "주소"])
        made.add_worksheet("빈 시트")
    assert _error(book, wanted=ReadOptions(sheet="빈 시트")) == f"{book}: '빈 시트' 시트가 비어 있습니다"
    keys.write_bytes(b'[{"b_no": "1248100998", "b_no": "2208162517"}]')
    assert _error(keys) == f"{keys}: 1번째 레코드에 'b_no' 키가 두 번 있습니다. 하나만 남겨 주세요"


def test_remedies_name_the_options_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "several.json"
    path.write_bytes(_UGLY["several.json"])
    assert "`file_json_path='a'` 옵션으로 골라 주세요" in _error(path, options=FILE_OPTIONS)
    assert "파일에 하나만 남겨 주세요" in _error(path, options=ONLY_ENCODING)
    path = tmp_path / "nul.csv"
    path.write_bytes(_UGLY["nul.csv"])
    assert "다른 인코딩이면 `encoding=` 옵션으로 지정해 주세요" in _error(path)
    assert "UTF-8이 아닐 수 있습니다" in _error(path, options={})
