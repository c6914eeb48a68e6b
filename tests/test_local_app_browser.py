"""The page of `bansong app` in a browser, on a desk and on a phone, with the keyboard, and judged by axe."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from conftest import SAMPLE
from test_report_accessible import BAD, browser  # noqa: F401 - a fixture
from test_windows import POOR

pytestmark = pytest.mark.process
REFERENCE = ("--registry", SAMPLE / "registry.parquet", "--gazetteer", SAMPLE / "gazetteer.parquet")
WIDTHS = (1280, 390)
ENV = {"PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join((POOR["PYTHONPATH"], *sys.path))}


@contextmanager
def started(*options: object, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run `bansong app`; yield its address. It ends in good order when it is asked to, and leaves nothing."""
    command = [sys.executable, "-m", "bansong", "app", "--no-browser", *map(str, options)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8", env=os.environ | (env or {})) as process:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", process.stderr.readline())
        try:
            assert found is not None
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
            assert (process.wait(60), rest) == (0, "")
    assert list((Path(os.environ["BANSONG_STATE_DIR"]) / "app").iterdir()) == []


def faults(sheet: Any) -> list[tuple[str, str]]:
    from axe_playwright_python.sync_playwright import Axe

    bad = [one for one in Axe().run(sheet).response["violations"] if one["impact"] in BAD]
    overflow = sheet.evaluate("document.documentElement.scrollWidth > innerWidth")
    return [(one["id"], one["nodes"][0]["html"]) for one in bad] + ([("overflow", "")] if overflow else [])


def press_until(sheet: Any, selector: str) -> None:
    """Go on with the Tab key until the element has the focus, with a ring around it."""
    for _ in range(60):
        sheet.keyboard.press("Tab")
        if sheet.evaluate(f"document.activeElement?.matches({selector!r})"):
            assert sheet.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"the Tab key does not reach {selector}")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("language", ["ko", "en"])
def test_a_list_is_checked_with_the_keyboard_and_axe_finds_nothing_serious(
    browser: Any,  # noqa: F811
    width: int,
    language: str,
) -> None:
    with started("--lang", language, *REFERENCE) as address:
        context = browser.new_context(bypass_csp=True, viewport={"width": width, "height": 800})  # axe is a script
        sheet, errors = context.new_page(), list[str]()
        sheet.on("console", lambda message: errors.append(message.text))
        sheet.on("pageerror", lambda error: errors.append(str(error)))
        sheet.goto(address)
        sheet.wait_for_selector("#drop-list")
        assert "token" not in sheet.url
        assert faults(sheet) == []
        press_until(sheet, "input[data-use=list]")
        sheet.set_input_files("input[data-use=list]", SAMPLE / "customers.xlsx")
        sheet.wait_for_selector("form[action='/run']")
        assert sheet.evaluate("document.activeElement.tagName") == "H2"
        assert faults(sheet) == []
        press_until(sheet, "select")
        press_until(sheet, "form[action='/run'] > button")
        sheet.keyboard.press("Enter")
        sheet.wait_for_selector(".files a")
        assert sheet.evaluate("document.activeElement.textContent").startswith("2.")
        assert sheet.inner_text("#live") == sheet.evaluate("document.activeElement.textContent")
        for summary in sheet.query_selector_all("summary"):
            summary.focus()
            sheet.keyboard.press("Enter")
        assert faults(sheet) == []
        with sheet.expect_download() as down:
            sheet.click(".files a >> nth=0")
        assert down.value.suggested_filename.endswith(".xlsx")
        with context.expect_page() as opened:
            sheet.click(".files a[target=_blank]")
        opened.value.wait_for_function("document.title.includes('customers')")
        assert errors == []
        context.close()


def test_a_page_that_is_reloaded_or_opened_twice_shows_the_same_and_says_when_the_program_ended(
    browser: Any,  # noqa: F811
) -> None:
    context = browser.new_context()
    with started(*REFERENCE) as address:
        one, two = context.new_page(), context.new_page()
        one.goto(address)
        one.set_input_files("input[data-use=list]", SAMPLE / "customers.csv")
        one.wait_for_selector("form[action='/run']")
        one.reload()
        one.wait_for_selector("form[action='/run']")
        two.goto(address)
        two.wait_for_selector("form[action='/run']")
        two.click("form[action='/clear'] button")
        two.wait_for_selector("#drop-list")
        one.click("form[action='/run'] > button")
        one.wait_for_selector("#drop-list")  # there is no list any more
    two.click("[data-use=list]", trial=True)
    two.evaluate("refresh()")
    two.wait_for_selector("#gone:not([hidden])")
    context.close()


def test_a_process_as_poor_as_on_windows_serves_the_page() -> None:
    with started(*REFERENCE, env=POOR | ENV) as address, httpx.Client() as http:
        url = address.partition("/?")[0]
        assert http.get(address).status_code == 200
        given = (SAMPLE / "customers.csv").read_bytes()
        assert http.post(f"{url}/upload", params={"use": "list", "name": "con.csv"}, content=given).status_code == 204
