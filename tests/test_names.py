"""The code speaks the language of docs/glossary.md, and its messages are translated: one reading of all modules."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import translations

CLASSES_TWICE: dict[str, str] = {
    "Dialect": "of a CSV file, and of the fake service (public in bansong.testing)",
    "Lookup": "the fake shares nothing with the client, and its own is public in bansong.testing",
}
"""Class names that may stand more than once, with the reason."""

IRREGULAR = frozenset(
    """
    asked begun bound bought broken brought caught chosen come done drawn fed felt forgotten found given gone got grown
    heard held hidden hurt kept known laid led left lent lost made meant met paid said seen sent shown sold spent stood
    swept taken taught thought told torn understood undone withdrawn won worn wound written
    """.split()  # noqa: SIM905 - reads better so
)
"""Participles that do not end in -ed."""

NO_PARTICIPLES = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "speed"})
OF_OPTIONS = ("flag", "off", "help", "off_help")
"""Keywords of a declared option, whose texts are for the command line alone."""


@dataclass
class Code:
    """What a module defines and says: names, functions that are no properties, classes, and texts with their line."""

    names: set[str] = field(default_factory=set)
    functions: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    texts: list[tuple[int, str]] = field(default_factory=list)


@cache
def modules() -> dict[str, Code]:
    return {name: code_of(nodes) for name, nodes in translations.nodes().items()}


def code_of(nodes: list[ast.AST]) -> Code:
    code, silent = Code(), set[int]()
    for node in nodes:
        match node:
            case ast.ClassDef(name=name):
                code.names.add(name)
                code.classes.append(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                code.names.add(name)
                if not any(ast.unparse(one).endswith(("property", ".setter")) for one in node.decorator_list):
                    code.functions.append(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                code.names.add(name)
            case ast.Expr(value=ast.Constant() as docstring):
                silent.add(id(docstring))
            case ast.keyword(arg=name, value=value) if name in OF_OPTIONS:
                silent.update(id(one) for one in ast.walk(value))
    texts = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in silent)
    code.texts = [(node.lineno, node.value) for node in texts if isinstance(node.value, str)]
    return code


def is_participle(word: str) -> bool:
    return word in IRREGULAR or (bool(re.fullmatch("[a-z]{2,}ed", word)) and word not in NO_PARTICIPLES)


def words_not_used() -> list[str]:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    cells = [line.split("|")[3] for line in page.splitlines() if line.startswith("| ") and line.count("|") == 4]
    return [word for cell in cells for word in re.findall("`([a-z_]+)`", cell)]


def test_every_message_is_translated_with_its_fields_and_the_catalogue_is_current() -> None:
    assert translations.faults() == []


def test_no_class_name_stands_twice_unless_the_list_says_why() -> None:
    places = defaultdict(list)
    for path, code in modules().items():
        for name in code.classes:
            places[name].append(path)
    assert {name: found for name, found in places.items() if len(found) > 1}.keys() == CLASSES_TWICE.keys()


def test_no_function_is_named_by_a_participle_alone() -> None:
    assert [is_participle(word) for word in ("told", "settled", "read", "need", "feed")] == [True, True, *[False] * 3]
    named = [(path, name) for path, code in modules().items() for name in code.functions]
    assert [(path, name) for path, name in named if is_participle(name.strip("_"))] == []


def test_no_name_is_of_the_words_not_used() -> None:
    words = words_not_used()
    assert len(words) > 10
    pattern = re.compile(rf"(?:^|_)(?:{'|'.join(words)})(?:_|$)")
    apart = [
        (path, re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower())
        for path, code in modules().items()
        for name in (*code.names, Path(path).stem)
    ]
    assert [(path, name) for path, name in apart if pattern.search(name)] == []


def test_messages_of_the_library_name_no_options() -> None:
    """An option means nothing in Python and over HTTP; only whole commands between backquotes have some."""
    found = [
        f"{path}:{line}: {text}"
        for path, code in modules().items()
        if Path(path).parts[0] not in ("cli", "testing")
        for line, text in code.texts
        if re.search(r"(?<![\w-])(--[a-z]|-o )", re.sub(r"bansong [a-z][^`]*(`|$)", "", text))
    ]
    assert found == []
