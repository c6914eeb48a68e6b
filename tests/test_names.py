"""The code speaks the language of docs/glossary.md: names are held against its rules."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from conftest import ROOT

PACKAGE = ROOT / "src" / "bansong"

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


@cache
def modules() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(one).endswith(("property", ".setter")) for one in function.decorator_list)


def is_participle(word: str) -> bool:
    return word in IRREGULAR or (bool(re.fullmatch("[a-z]{2,}ed", word)) and word not in NO_PARTICIPLES)


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Every name that a module defines: classes, functions, parameters, variables, attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def words_not_used() -> list[str]:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    cells = [line.split("|")[3] for line in page.splitlines() if line.startswith("| ") and line.count("|") == 4]
    return [word for cell in cells for word in re.findall("`([a-z_]+)`", cell)]


def twice(found: dict[str, list[str]], allowed: dict[str, str]) -> dict[str, list[str]]:
    return {name: places for name, places in found.items() if len(places) > 1 and name not in allowed}


def test_no_class_name_stands_twice() -> None:
    """One name, one concept: a class name is used once in the package, unless the list says why not."""
    found = defaultdict(list)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path)
    assert twice(found, CLASSES_TWICE) == {}
    assert [name for name in CLASSES_TWICE if len(found[name]) < 2] == []  # the list holds no more than it must


def test_no_function_is_named_by_a_participle_alone() -> None:
    """A function's name says what it does, not in which state its result is; properties are values."""
    named = [
        f"{path}: {function.name}"
        for path, function in functions()
        if is_participle(function.name.strip("_")) and not is_property(function)
    ]
    assert named == []


def test_no_name_is_of_the_words_not_used() -> None:
    """The column "not" of the glossary lists the words that this code has given up."""
    words = words_not_used()
    assert len(words) > 10
    pattern = re.compile(rf"(?:^|_)(?:{'|'.join(words)})(?:_|$)")
    apart = {
        path: {re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in defined_names(tree)}
        for path, tree in modules().items()
    }
    assert [f"{path}: {name}" for path, names in apart.items() for name in sorted(names) if pattern.search(name)] == []
    assert [path for path in modules() if pattern.search(Path(path).stem)] == []


@pytest.mark.parametrize(
    ("word", "is_one"), [("told", True), ("settled", True), ("read", False), ("need", False), ("feed", False)]
)
def test_participles_are_told_from_verbs(word: str, is_one: bool) -> None:
    assert is_participle(word) is is_one
