"""What an error looks like: one sentence in a notebook, Python's traceback everywhere else."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import pkgutil
import re
import string
from functools import cache
from types import ModuleType

import pytest

import bansong
from bansong.base.messages import use_audience
from bansong.cli.options import COMMAND_LINE
from bansong.errors import AccountingError, ColumnError, InputError, Problem, QuotaError

CELLS = (
    "import bansong as bs\nbs.enrich('customers_that_are_not_there.csv')",
    "from bansong.errors import AccountingError\nraise AccountingError('3 rows in, 2 out')",
    "1 / 0",
)


@pytest.mark.process
def test_in_a_notebook_an_expected_error_is_its_sentence_and_a_defect_keeps_its_traceback() -> None:
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    NotebookClient(book, kernel_name="python3", allow_errors=True, timeout=120).execute()
    (line,), defect, another = (cell.outputs[-1].traceback for cell in book.cells)
    assert line.startswith("InputError: customers_that_are_not_there.csv: ")
    assert "\n" not in line
    assert "Traceback (most recent call last)" in "\n".join(defect)
    assert "\n".join(defect).endswith("3 rows in, 2 out")
    assert len(another) > 1


def test_a_notebook_shows_a_sentence_and_of_a_defect_the_traceback() -> None:
    assert InputError("a sentence")._render_traceback_() == ["InputError: a sentence"]
    assert InputError.__module__ == "bansong.errors"  # as tracebacks outside of notebooks name it
    try:
        raise AccountingError("3 rows in, 2 out")
    except AccountingError as error:
        assert error._render_traceback_()[0] == "Traceback (most recent call last):"  # noqa: PT017


GONE = Problem("files.gone", "{path}: there is no such file; give another with `registry=`")


def test_an_error_is_data_and_its_sentence_is_made_where_it_is_read() -> None:
    error = InputError(GONE, path="a.csv")
    assert (error.code, error.fields) == ("files.gone", {"path": "a.csv"})
    assert str(error) == "a.csv: there is no such file; give another with `registry=`"
    assert repr(error) == "InputError('a.csv: there is no such file; give another with `registry=`')"
    with use_audience(COMMAND_LINE):
        assert str(error) == "a.csv: there is no such file; give another with --registry"


def test_an_error_crosses_processes() -> None:
    quota = QuotaError(GONE, status=429, detail="none left", raw=b"{}", path="a.csv")
    for error in (InputError("a sentence"), ColumnError(GONE, missing="b_no", path="a.csv"), quota):
        crossed = pickle.loads(pickle.dumps(error))
        assert (type(crossed), str(crossed), crossed.code) == (type(error), str(error), error.code)
        assert crossed.__dict__ == error.__dict__


def test_codes_are_stable_names_of_one_problem_each() -> None:
    found = problems()
    assert len(found) > 400
    assert [code for code in found if not re.fullmatch(r"[a-z]+\.[a-z0-9_]+", code)] == []


def test_each_error_is_raised_with_the_fields_of_its_sentence() -> None:
    sentences = {name: one for module in modules() for name, one in vars(module).items() if isinstance(one, Problem)}
    checked = 0
    for module in modules():
        own = {name: one for name, one in vars(module).items() if isinstance(one, Problem)}
        for call in (one for one in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(one, ast.Call)):
            given = {word.arg for word in call.keywords}
            for raised in (one.id for one in call.args[:2] if isinstance(one, ast.Name) and one.id in sentences):
                problem = own.get(raised, sentences[raised])
                wanted = {field for text in (problem.text, problem.plural) for field in fields_of(text)}
                if None not in given:
                    assert wanted <= given, f"{module.__name__}:{call.lineno}: {problem.code}"
                    checked += 1
    assert checked > 500


def fields_of(sentence: str) -> set[str]:
    return {field for _, field, _, _ in string.Formatter().parse(sentence) if field is not None}


@cache
def modules() -> list[ModuleType]:
    """The modules of the package, but the one that needs Spark."""
    names = [found.name for found in pkgutil.walk_packages(bansong.__path__, "bansong.")]
    return [importlib.import_module(name) for name in names if not name.endswith(("__main__", "distributed.spark"))]


def problems() -> dict[str, Problem]:
    """The problems of all modules by their code."""
    found: dict[str, Problem] = {}
    for module in modules():
        for name, thing in vars(module).items():
            if isinstance(thing, Problem):
                assert found.setdefault(thing.code, thing) is thing, f"{thing.code}: {module.__name__}.{name}"
    return found
