"""Sphinx's settings for the documentation site, in both languages; ``build.py`` says which, and what goes in."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.shell import BashLexer
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.search import languages
from sphinx.search.en import SearchEnglish
from sphinx.util.nodes import make_refnode

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "src"))

from bansong import __version__  # noqa: E402

PLAN = json.loads(os.environ["BANSONG_SITE"])
"""What ``build.py`` planned: the language, the other one, and the pages that have a twin there."""

project = "bansong"
author = "The bansong team"
copyright = "The bansong team. MIT licence"
release = version = __version__
language = PLAN["language"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
templates_path = [str(HERE / "templates")]
nitpicky = True
smartquotes = False

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "mailto": None, "other": "{{path}}#{{fragment}}"}

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
nitpick_ignore_regex = [
    ("py:.*", r"(?!bansong).*"),  # other libraries' pages are not on this machine
    (
        "py:class",
        r"bansong\..*\.(_\w+|[A-Z]|ArrowStream|Column|Frame|FakeApp|Tables|ModelStore)",
    ),  # annotations that only type checkers need
]

html_theme = "furo"
html_title = "bansong"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_show_sourcelink = html_copy_source = False
html_show_sphinx = False
html_domain_indices = False
html_search_language = "words"
html_search_scorer = str(HERE / "static" / "scorer.js")
html_context = {"plan": PLAN}
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "language.html", "sidebar/search.html", "sidebar/scroll-start.html"),
        *("sidebar/navigation.html", "sidebar/scroll-end.html"),
    ]
}


class Words(SearchEnglish):
    """English words, and each two neighbouring syllables of Korean ones: 주소 is found in 도로명주소를, too."""

    lang = "words"
    language_name = "English"  # names the stemmer in JavaScript
    js_splitter_code = """
function splitQuery(query) {
  const words = query.match(/[가-힣]+|(?:(?![가-힣])[\\p{L}\\p{N}_])+/gu) || [];
  return words.flatMap((word) =>
    /^[가-힣]{3,}$/.test(word) ? [...word.slice(1)].map((letter, place) => word[place] + letter) : [word]);
}
"""

    def split(self, input: str) -> list[str]:
        found = re.findall(r"[가-힣]+|[^\W가-힣]+", input)
        pairs = (word[place : place + 2] for word in found if word[0] >= "가" for place in range(len(word) - 1))
        return [*found, *pairs]


languages["words"] = Words


def find_public(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement) -> Any:
    """Find what a docstring names as its own module knows it, ``Report`` or ``bansong.run.report.Report``."""
    if node.get("refdomain") != "py":
        return None
    name = node["reftarget"].rpartition(".")[2]
    objects = env.domains.python_domain.objects
    places = {(one.docname, one.node_id) for full, one in objects.items() if full.rpartition(".")[2] == name}
    if len(places) != 1:
        return None
    docname, anchor = places.pop()
    return make_refnode(app.builder, node["refdoc"], docname, anchor, content, name)


def leave_out_of_contents(_: Sphinx, domain: str, kind: str, content: nodes.Element) -> None:
    """Keep fields out of the lists of contents, which are copied into every page: a third of the time of a build."""
    if domain == "py" and kind in {"attribute", "property"}:
        for signature in content.parent.findall(desc_signature):
            signature["_toc_name"] = ""


def setup(app: Sphinx) -> None:
    for module in ("bansong.run.enrich", "bansong.run.verify"):  # overloads show `**options`, not every keyword
        source = ModuleAnalyzer.for_module(module)
        source.analyze()
        source.overloads.clear()
    app.connect("object-description-transform", leave_out_of_contents)
    app.add_object_type("problem", "problem", objname={"en": "error code", "ko": "오류 코드"}[PLAN["language"]])
    app.add_lexer("cron", BashLexer)
    app.connect("missing-reference", find_public)
