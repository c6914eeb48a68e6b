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
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # check.py
import reference
from check import ROOT, Lang

HERE = Path(__file__).parent
SITE = ROOT / "build" / "site"

SECTIONS: dict[Lang, dict[str, str]] = {
    "en": {
        "Tutorial": "tutorial notebooks",
        "How-to": "data-sources app status actions report scheduling labels watch buying client cloud scaling service "
        "runbook testing",
        "Reference": "cli reference/options reference/job-file reference/errors reference/json tables guesses glossary",
        "Reference: Python": " ".join(f"reference/{page}" for page in reference.GROUPS),
        "Explanation": "how_it_works risk risk-accuracy address-accuracy measured privacy",
        "Project": "readme decisions/index changelog versioning contributing security conduct",
    },
    "ko": {
        "배우기": "tutorial",
        "하는 방법": "app preparing-data actions outcomes scheduled-jobs faq",
        "참고": "cli reference/options reference/job-file reference/errors",
        "설명": "readme privacy",
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
        "notebooks/README.md": "notebooks",
        "docs/site/index.md": "index",
    },
    "ko": {"README.ko.md": "readme", "docs/site/index.ko.md": "index"},
}
"""Pages that do not stand in ``docs/`` or ``docs/ko/`` under their own name."""
NAMES = {"en": "English", "ko": "한국어"}
_PAIRS = {"scheduling": "scheduled-jobs", "labels": "outcomes", "data-sources": "preparing-data"}
SAME = {"en": _PAIRS, "ko": {korean: english for english, korean in _PAIRS.items()}}
"""Pages about the same under different names."""
MADE_IN_BOTH = {"reference/options", "reference/job-file", "reference/errors"}
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
    'search query.": [\n            ""': 'search query.": [\n            "${resultCount}쪽을 찾았습니다."',
}
"""What the theme says in English only, and what Sphinx's Korean leaves blank."""


OTHER: dict[Lang, Lang] = {"en": "ko", "ko": "en"}


def pages_of(lang: Lang) -> dict[str, str]:
    """Return a language's pages that the repository holds: path in the repository, place in the site."""
    folder = "docs/ko" if lang == "ko" else "docs"
    own = [*ROOT.glob(f"{folder}/*.md"), *ROOT.glob(f"{folder}/decisions/*.md")]
    places = {path: path.relative_to(ROOT / folder).with_suffix("").as_posix() for path in sorted(own)}
    return {path.relative_to(ROOT).as_posix(): place for path, place in places.items()} | ELSEWHERE[lang]


def lay_out(lang: Lang, target: Path) -> set[str]:
    """Write all pages of a language below ``target``, and return their places in the site."""
    shutil.rmtree(target, ignore_errors=True)
    made = reference.pages(lang)
    own, others = pages_of(lang), pages_of(OTHER[lang])
    special = {"docs": "index", **({"docs/decisions": "decisions/index"} if lang == "en" else {"docs/cli.md": "cli"})}
    texts = {place: resolved(path, place, own | special, others, target) for path, place in own.items()} | made
    if lang == "en":
        texts["decisions/index"] = "# Decisions\n\n```{toctree}\n:glob:\n\n[0-9]*\n```\n"
    texts["readme"] = texts["readme"].replace("# bansong", {"en": "# Overview", "ko": "# 처음 안내"}[lang], 1)
    texts["index"] += "".join(_contents(*section, texts) for section in SECTIONS[lang].items())
    for place, text in texts.items():
        page = target / f"{place}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "docs" / "bansong-job.schema.json", target)
    return {*texts}


def _contents(title: str, places: str, texts: Mapping[str, str]) -> str:
    listed = "\n".join(place for place in places.split() if place in texts)  # Sphinx complains of a page in no list
    return f"\n```{{toctree}}\n:caption: {title}\n:maxdepth: 1\n\n{listed}\n```\n"


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
            other = "en" if target.name == "ko" else "ko"
            return f"](other:{up}../{other}/{others[named]}.html{anchor or '#'})"
        copy = target / "files" / named
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / named, copy)
        return f"](/files/{named})"

    parts = re.split(r"(^ *```.*?^ *```)", (ROOT / path).read_text(encoding="utf-8"), flags=re.M | re.S)
    parts[::2] = [LINK.sub(lead, part) for part in parts[::2]]
    return "".join(parts)


def build(lang: Lang) -> int:
    """Build one language; return Sphinx's exit code."""
    from sphinx.cmd.build import build_main

    source, target, other = ROOT / "build" / "site-pages" / lang, SITE / lang, OTHER[lang]
    pages = lay_out(lang, source)
    there = {*pages_of(other).values(), "cli", "search", "genindex", *(page for page in pages if page in MADE_IN_BOTH)}
    twins = {page: SAME[lang].get(page, page) for page in (*pages, "search", "genindex")}
    found = {page: twin for page, twin in twins.items() if twin in there}
    os.environ["BANSONG_SITE"] = json.dumps({"language": lang, "other": other, "name": NAMES[other], "twins": found})
    options = ["-q", "-W", "--keep-going", "-E", "-d", str(ROOT / "build" / "site-state" / lang)]
    done = build_main([*options, "-c", str(HERE), "-b", "html", str(source), str(target)])
    for page in (*target.rglob("*.html"), target / "_static" / "translations.js") if lang == "ko" else ():
        text = page.read_text(encoding="utf-8")
        for english, korean in THEME_WORDS.items():
            text = text.replace(english, korean)
        page.write_text(text, encoding="utf-8")
    return done


def main() -> None:
    if sys.argv[1:]:
        sys.exit(build(sys.argv[1]))
    shutil.rmtree(SITE, ignore_errors=True)
    both = [subprocess.Popen([sys.executable, __file__, lang]) for lang in NAMES]
    codes = [one.wait() for one in both]
    if not all((SITE / lang).exists() for lang in NAMES):
        sys.exit("not built")
    (SITE / "index.html").write_text('<meta charset="utf-8"><meta http-equiv="refresh" content="0; url=en/index.html">')
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
