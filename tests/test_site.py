"""The documentation site: built as CI builds it, complete, in itself, and searchable without a network."""

from __future__ import annotations

import html
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click
import pytest
from filelock import FileLock

import bansong as bs
from bansong.cli.app import app
from conftest import LONG, ROOT
from test_errors import problems

pytestmark = [pytest.mark.process, pytest.mark.timeout(LONG)]  # the first test builds the site
SITE = ROOT / "build" / "site"


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """The site, built once for all workers; Sphinx's warnings are errors."""
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install '.[docs]'")
    said = tmp_path_factory.getbasetemp().parent / f"site-{testrun_uid}"
    with FileLock(f"{said}.lock"):
        if not said.exists():
            command = [sys.executable, str(ROOT / "docs" / "site" / "build.py")]
            built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            said.write_text(f"{built.returncode}{built.stdout}{built.stderr}", encoding="utf-8")
    assert said.read_text(encoding="utf-8") == "0"
    return SITE


@cache
def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\bid="([^"]+)"', read(page)))


def test_every_public_name_has_an_entry(site: Path) -> None:
    found = {name for page in site.glob("en/reference/python*.html") for name in anchors(page)}
    names = [f"bansong.{name}" for name in bs.__all__ if name not in {"__version__", "errors", "number", "watch"}]
    for module in ("bansong.client", "bansong.watch"):
        names += [f"{module}.{name}" for name in importlib.import_module(module).__all__]
    testing = vars(importlib.import_module("bansong.testing")).items()
    names += [f"bansong.testing.{name}" for name, thing in testing if isinstance(thing, type)]
    errors = vars(bs.errors).items()
    names += [f"bansong.errors.{name}" for name, thing in errors if isinstance(thing, type) and name.endswith("Error")]
    names += ["bansong.number.is_valid", "bansong.number.format", "bansong.number.PROBLEMS"]
    under_bansong = {f"bansong.{name}" for name in bs.__all__}
    lacking = [name for name in names if name not in found and f"bansong.{name.split('.')[-1]}" not in under_bansong]
    assert len(names) > 120
    assert lacking == []


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_every_error_code_has_an_entry_with_its_message(site: Path, lang: str) -> None:
    page = site / lang / "reference" / "errors.html"
    assert {f"problem-{code}" for code in problems()} <= anchors(page)
    assert "UsageError" in read(page)


@pytest.mark.parametrize("lang", ["en", "ko"])
def test_every_option_of_every_command_is_there(site: Path, lang: str) -> None:
    page = html.unescape(re.sub("<[^>]+>", "", read(site / lang / "cli.html")))

    def flags(command: click.Command) -> set[str]:
        options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        own = {flag for one in options for flag in (*one.opts, *one.secondary_opts)}
        children = command.commands.values() if isinstance(command, click.Group) else ()
        return own.union(*map(flags, children))

    expected = flags(app)
    assert len(expected) > 100
    assert sorted(flag for flag in expected if flag not in page) == []


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert [*_faults(site)] == []


def _faults(site: Path) -> Iterator[str]:
    for page in site.rglob("*.html"):
        leads = set(re.findall(r'<a\b[^>]*?\shref="([^"]*)"', read(page)))
        loads = set(re.findall(r'<(?!a\b)\w+\b[^>]*?\s(?:src|href|action|data|srcset)="([^"]*)"', read(page)))
        for link in leads | loads:
            parts = urlsplit(link)
            to = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
            if parts.scheme or parts.netloc:
                if link in loads and parts.scheme != "data":
                    yield f"{page}: loads {link}"
            elif not to.exists():
                yield f"{page}: {link} leads nowhere"
            elif parts.fragment and to.suffix == ".html" and unquote(parts.fragment) not in anchors(to):
                yield f"{page}: {link} has no such anchor"
    for sheet in site.rglob("*.css"):
        yield from re.findall(r"url\(\s*[\"']?(?:https?:)?//[^)]*|@import[^;]*", read(sheet))


@pytest.mark.parametrize(("lang", "page"), [("en", "status"), ("ko", "app"), ("en", "reference/errors")])
def test_each_page_leads_to_the_other_language_and_speaks_its_own(site: Path, lang: str, page: str) -> None:
    other = "ko" if lang == "en" else "en"
    text = read(site / lang / f"{page}.html")
    there = f"{page}.html" if (site / other / f"{page}.html").exists() else "index.html"
    assert re.search(rf'href="(?:\.\./)+{other}/{there}"', text)
    assert f'<html class="no-js" lang="{lang}"' in text
    assert ("On this page" in text, "이 페이지에서" in text) == (lang == "en", lang == "ko")


@pytest.mark.parametrize(
    ("lang", "query", "page"),
    [
        ("en", "bounce", "labels.html"),
        ("en", "주소", "data-sources.html"),
        ("ko", "주소", "preparing-data.html"),
        ("ko", "반송", "outcomes.html"),
        ("ko", "bounce", "cli.html"),
        ("en", "csv.", "reference/errors.html"),
    ],
)
def test_search_works_from_a_folder(site: Path, lang: str, query: str, page: str) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium")
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install '.[browser]'")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page()
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{(site / lang / 'search.html').as_uri()}?q={query}")
        tab.wait_for_selector("#search-results li", timeout=60_000)
        tab.wait_for_function("document.querySelector('.search-summary').textContent.match(/[0-9]/)", timeout=60_000)
        found = tab.eval_on_selector_all("#search-results li a", "all => all.map(one => one.getAttribute('href'))")
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert any(link.partition("#")[0].partition("?")[0].endswith(page) for link in found), found[:20]
