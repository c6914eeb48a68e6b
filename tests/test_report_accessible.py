"""The page of a run in a browser: people who read it with other means, on a phone or on paper, can."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import bansong as bs
from bansong.base.messages import use_language
from bansong.run.page import report_page
from conftest import SAMPLE

pytestmark = pytest.mark.process
REFERENCE: dict[str, Any] = {"registry": SAMPLE / "registry.parquet", "gazetteer": SAMPLE / "gazetteer.parquet"}
WIDTHS, MEDIA = (360, 1280), ("screen", "print")
BAD = ("serious", "critical")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window; skip where it, or what drives it, is missing."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    pytest.importorskip("axe_playwright_python", reason="axe is not installed: pip install 'bansong[browser]'")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


def pages_of(folder: Path, language: str) -> list[Path]:
    """The page that a second run writes, with what changed since the first, and that of its file, unmasked."""
    source, out = folder / "list.csv", folder / "out.csv"
    rows = pl.read_csv(SAMPLE / "customers.csv", infer_schema=False)
    with use_language(language):
        rows.head(280).write_csv(source)
        bs.enrich(source, out, **REFERENCE)
        shutil.copy(out, folder / "before.csv")
        rows.tail(280).write_csv(source)
        bs.enrich(source, out, report=folder / "run.html", letter_cost=500, **REFERENCE)
        report_page(out, folder / "file.html", unmask=True, before=folder / "before.csv")
    return [folder / "run.html", folder / "file.html"]


def faults(browser: Any, page: Path) -> list[tuple[str, int, str, str]]:
    """Rules that a page breaks seriously: medium, width, rule, and the first element that does."""
    from axe_playwright_python.sync_playwright import Axe

    found = []
    context = browser.new_context(bypass_csp=True)  # the page forbids every script, and so axe
    for medium in MEDIA:
        for width in WIDTHS:
            sheet = context.new_page()
            sheet.set_viewport_size({"width": width, "height": 900})
            sheet.emulate_media(media=medium)
            sheet.goto(page.as_uri())
            result = Axe().run(sheet).response
            bad = [one for one in result["violations"] if one["impact"] in BAD]
            found += [(medium, width, one["id"], one["nodes"][0]["html"]) for one in bad]
            sheet.close()
    context.close()
    return found


@pytest.mark.parametrize("language", ["ko", "en"])
def test_axe_finds_nothing_serious_in_a_page(browser: Any, tmp_path: Path, language: str) -> None:
    for page in pages_of(tmp_path, language):
        assert faults(browser, page) == []


def test_axe_finds_what_a_page_must_not_have(browser: Any, tmp_path: Path) -> None:
    """A pale text is found at each width in each medium, and so is a field without a label: the check can fail."""
    filler = "<header><h1>t</h1></header><main><h2>u</h2><ul><li>a</li></ul><table><tr><th>b<td>1</table></main>"
    pale = '<p style="color:#ccc;background:#fff">pale</p><input>'
    page = tmp_path / "bad.html"
    page.write_text(f"<!doctype html><html lang=en><title>t</title><body>{filler}{pale}</body></html>", "utf-8")
    rules = ("color-contrast", "label")
    assert {one[:3] for one in faults(browser, page)} == {
        (medium, width, rule) for medium in MEDIA for width in WIDTHS for rule in rules
    }
