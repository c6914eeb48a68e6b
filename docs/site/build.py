"""Builds the documentation site, in English and in Korean, into ``build/site``: ``python docs/site/build.py``.

What goes in is laid out in ``build/site-pages`` first: the pages of the repository with their links as the site needs
them, and the pages that are made from the code. Sphinx warns of nothing then, or the build fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).parent))
import reference

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
SITE = ROOT / "build" / "site"

SECTIONS: dict[str, dict[str, list[str]]] = {
    "en": {
        "Tutorial": ["tutorial"],
        "How-to": [
            *(
                "data-sources",
                "app",
                "status",
                "actions",
                "report",
                "scheduling",
                "labels",
                "watch",
                "buying",
                "client",
            ),
            *("cloud", "scaling", "service", "runbook", "testing"),
        ],
        "Reference: Python": [f"reference/{page}" for page, _ in reference.GROUPS.values()],
        "Reference": [
            *("cli", "reference/options", "reference/job-file", "reference/errors", "reference/json", "reference/http"),
            *("tables", "guesses", "glossary"),
        ],
        "Explanation": ["how_it_works", "risk", "risk-accuracy", "address-accuracy", "measured", "privacy"],
        "Project": ["readme", "decisions/index", "changelog", "contributing", "security", "conduct"],
    },
    "ko": {
        "배우기": ["tutorial", "quickstart"],
        "하는 방법": ["app", "preparing-data", "actions", "outcomes", "scheduled-jobs", "faq"],
        "참고": ["cli", "reference/options", "reference/job-file", "reference/errors"],
        "설명": ["privacy", "readme"],
    },
}
ELSEWHERE = {
    "en": {
        "README.md": "readme",
        "CHANGELOG.md": "changelog",
        "CONTRIBUTING.md": "contributing",
        "SECURITY.md": "security",
        "CODE_OF_CONDUCT.md": "conduct",
        "benchmarks/README.md": "measured",
        "docs/site/index.md": "index",
    },
    "ko": {"README.ko.md": "readme", "docs/site/index.ko.md": "index"},
}
"""Pages that do not stand in ``docs/`` or ``docs/ko/`` under their own name."""
NAMES = {"en": "English", "ko": "한국어"}
SAME = {"scheduling": "scheduled-jobs", "labels": "outcomes", "data-sources": "preparing-data"}
"""English pages, and the Korean ones about the same."""
THEME_WORDS = {
    ">Next<": ">다음<",
    ">Previous<": ">이전<",
    ">Home<": ">처음<",
    "On this page": "이 페이지에서",
    "Back to top": "맨 위로",
    "Skip to content": "본문으로 건너뛰기",
    "Toggle site navigation sidebar": "메뉴 여닫기",
    "Toggle table of contents sidebar": "목차 여닫기",
    "Toggle Light / Dark / Auto color theme": "밝은 화면, 어두운 화면, 자동",
    "Toggle navigation of": "하위 메뉴:",
}
"""What the theme says in English only."""


def pages_of(lang: str) -> dict[str, str]:
    """Return the site's pages of a language that the repository holds: path in the repository, place in the site."""
    folder = ROOT / "docs" / ("ko" if lang == "ko" else "")
    own = {path.relative_to(ROOT).as_posix(): path.stem for path in sorted(folder.glob("*.md"))}
    if lang == "en":
        own |= {f"docs/decisions/{path.name}": f"decisions/{path.stem}" for path in (folder / "decisions").glob("*.md")}
    return own | ELSEWHERE[lang]


def lay_out(lang: str, target: Path) -> dict[str, str]:
    """Write all pages of a language below ``target``, and return them: path in the repository, place in the site."""
    shutil.rmtree(target, ignore_errors=True)
    made = reference.pages(lang)
    pages = {path: place for path, place in pages_of(lang).items() if place not in made}
    places = {**pages, **({"docs/decisions": "decisions/index"} if lang == "en" else {"docs/cli.md": "cli"})}
    places |= {"docs": "index"}
    others = {path: place for path, place in pages_of("ko" if lang == "en" else "en").items() if path not in places}
    texts = {place: resolved(path, place, places, others, target) for path, place in pages.items()} | made
    texts["index"] += contents(lang, texts.keys())
    if lang == "en":
        texts["decisions/index"] = "# Decisions\n\n```{toctree}\n:maxdepth: 1\n:glob:\n\n[0-9]*\n```\n"
    for place, text in texts.items():
        page = target / f"{place}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "docs" / "bansong-job.schema.json", target)
    return {place: place for place in texts}


def contents(lang: str, made: object) -> str:
    """Return the start page's lists of pages; Sphinx complains of a page that is in none, or is not there."""
    lists = []
    for title, places in SECTIONS[lang].items():
        listed = "\n".join(place for place in places if not place.endswith("tutorial") or place in made)
        lists.append(f"```{{toctree}}\n:caption: {title}\n:maxdepth: 1\n\n{listed}\n```\n" if listed else "")
    return "\n" + "\n".join(lists)


LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
PACKAGES = "docs/how_it_works.md"
"""What stands for a folder of the repository."""


def resolved(path: str, place: str, places: dict[str, str], others: dict[str, str], target: Path) -> str:
    """Return a page of the repository with its links as the site needs them."""
    up = "../" * place.count("/")

    def lead(link: re.Match[str]) -> str:
        to, anchor = link.groups()
        named = Path(os.path.normpath(Path(path).parent / to)).as_posix()
        named = PACKAGES if named not in places and (ROOT / named).is_dir() else named
        if named in places:
            return f"](/{places[named]}.md{anchor or ''})"
        if named in others:
            lang = "en" if target.name == "ko" else "ko"
            return f"](other:{up}../{lang}/{others[named]}.html{anchor or '#'})"
        copy = target / "files" / named
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / named, copy)
        return f"](/files/{named})"

    parts = re.split(r"(^ *```.*?^ *```)", (ROOT / path).read_text(encoding="utf-8"), flags=re.M | re.S)
    parts[::2] = [LINK.sub(lead, part) for part in parts[::2]]
    return "".join(parts)


def build(lang: str) -> int:
    """Build one language; return Sphinx's exit code."""
    from sphinx.cmd.build import build_main

    source, target = ROOT / "build" / "site-pages" / lang, SITE / lang
    pages, other = lay_out(lang, source), "ko" if lang == "en" else "en"
    twins = SAME if lang == "en" else {korean: english for english, korean in SAME.items()}
    there = {*pages_of(other).values(), *SHARED}
    counterparts = {page: twins.get(page, page) for page in pages if twins.get(page, page) in there}
    plan = {"language": lang, "other": {"language": other, "name": NAMES[other], "pages": counterparts}}
    os.environ["BANSONG_SITE"] = json.dumps(plan)
    options = ["-q", "-W", "--keep-going", "-E", "-d", str(ROOT / "build" / "site-state" / lang)]
    done = build_main([*options, "-c", str(HERE), "-b", "html", str(source), str(target)])
    if lang == "ko":
        for page in target.rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            for english, korean in THEME_WORDS.items():
                text = text.replace(english, korean)
            page.write_text(text, encoding="utf-8")
    return done


SHARED = ("index", "cli", "reference/options", "reference/job-file", "reference/errors", "search", "genindex")
"""Generated pages that both languages have."""


# what Sphinx does not check: links from one language into the other, and that nothing is asked of other hosts


class Links(HTMLParser):
    """Collects where a page leads, what it loads, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name == "href" and tag == "a" and value:
                self.leads.append(value)
            elif value and (name in {"src", "srcset", "action", "data"} or (name == "href" and tag == "link")):
                self.loads.append(value)


def faults() -> Iterator[str]:
    """What is wrong with the site, one line each."""
    read = {page: Links(page) for page in sorted(SITE.rglob("*.html"))}
    for page, links in read.items():
        where = page.relative_to(SITE)
        for link in [*links.leads, *links.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in links.loads and parts.scheme != "data":
                    yield f"{where}: loads {link} from elsewhere"
                continue
            to = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
            if not to.exists():
                yield f"{where}: {link} leads nowhere"
            elif parts.fragment and to in read and unquote(parts.fragment) not in read[to].anchors:
                yield f"{where}: {link} has no such anchor"
    for sheet in SITE.rglob("*.css"):
        if re.search(r"url\(\s*[\"']?(?:https?:)?//|@import", sheet.read_text(encoding="utf-8")):
            yield f"{sheet.relative_to(SITE)}: loads from elsewhere"


def main() -> None:
    if sys.argv[1:]:
        sys.exit(build(sys.argv[1]))
    shutil.rmtree(SITE, ignore_errors=True)
    both = [subprocess.Popen([sys.executable, __file__, lang]) for lang in NAMES]
    codes = [one.wait() for one in both]
    (SITE / "index.html").write_text('<meta charset="utf-8"><meta http-equiv="refresh" content="0; url=en/index.html">')
    found = [*faults()]
    print("\n".join(found) or f"{SITE.relative_to(ROOT)}: every link leads somewhere")
    sys.exit(any(codes) or bool(found))


if __name__ == "__main__":
    main()
