"""What users import, and that importing it is cheap."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import iter_modules

import pytest

import bansong as bs
from bansong import client
from conftest import ROOT


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_source_tree_that_is_not_installed_knows_its_version() -> None:
    code = (
        "import importlib.metadata as m\n"
        "def missing(name): raise m.PackageNotFoundError(name)\n"
        "m.version = missing\n"
        "from bansong.client.request import user_agent\n"
        "print(user_agent().split(' ')[0])"
    )
    assert python(code) == f"bansong/{bs.__version__}"


def test_every_error_has_an_exit_code_and_one_root() -> None:
    found = [value for value in vars(bs.errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(found) == 35
    for error in found:
        assert issubclass(error, bs.BansongError)
        assert error.exit_code in (1, 2, 3, 4, 5, 6, 130)
        assert error.__name__ in (bs.errors.__doc__ or "")


HEAVY = ["polars", "openpyxl", "httpx", "pyarrow", "pydantic", "rich", "xlsxwriter", "fastexcel", "msgspec"]


def test_help_loads_nothing_heavy() -> None:
    """The console script's module; `python -m bansong`, however Python's own options are written."""
    code = (
        "import sys\nfrom contextlib import suppress\nfrom _bansong_start import main\n"
        "for words in ('--help', 'enrich --help', '--version'):\n"
        "    sys.argv = ['bansong', *words.split()]\n"
        "    with suppress(SystemExit): main()\n"
        f"print('loaded:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert python(code).endswith("loaded: []")
    for options in (["-m", "bansong"], ["-Wdefault", "-Pm", "bansong"], ["-mbansong"]):
        words = [sys.executable, "-X", "importtime", *options, "enrich", "--help"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert {line.split("|")[-1].strip() for line in done.stderr.splitlines()}.isdisjoint(HEAVY)
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["scripts"] == {"bansong": "_bansong_start:main"}


def test_the_public_names_are_there() -> None:
    """Which they are stands in tests/frozen."""
    assert (set(bs.__all__), hasattr(bs, "nonsense")) == (set(dir(bs)), False)
    assert [name for module in (bs, client) for name in module.__all__ if getattr(module, name) is None] == []
    assert {found.name for found in iter_modules(bs.watch.__path__)} & {*bs.watch.__all__} == set()  # would hide it


def test_help_is_one_screen_and_names_everything_once() -> None:
    shown = python("import bansong; help(bansong)")
    assert (
        python("import runpy, sys; sys.argv = ['pydoc', 'bansong']; runpy.run_module('pydoc', run_name='__main__')")
        == shown
    )
    lines = shown.splitlines()
    assert len(lines) <= 50
    table = shown[shown.index("Verify  ") : shown.index("PACKAGE CONTENTS")]
    names = [name for line in table.strip().splitlines() for name in line.split(maxsplit=1)[1].split(", ")]
    assert sorted(names) == sorted({*bs.__all__} - {"__version__"})


def test_a_star_import_gives_all_public_names() -> None:
    found = python("before = {*dir()}\nfrom bansong import *\nprint(*{*dir()} - before - {'before'})")
    assert {*found.split()} == {*bs.__all__}


USE = "import sys; print(pl.select(pl.lit('124-81-00998').brn.is_valid()).item(), sys.meta_path == finders)"


@pytest.mark.parametrize(
    "first",
    [
        "import polars as pl; import bansong as bs",
        "import bansong, polars as pl",
        "from bansong.number import is_valid; import polars as pl; assert is_valid(1248100998)",
        "import _bansong_start; from bansong.cli import app; from bansong import LocalEngine; import polars as pl",
    ],
)
def test_the_namespace_of_polars_is_there_whichever_is_imported_first(first: str) -> None:
    """And nothing hooks into the imports of others."""
    assert python(f"import sys; finders = [*sys.meta_path]; {first}; {USE}").split() == ["True", "True"]


def test_a_program_with_the_name_of_ours_in_its_arguments_has_the_namespace(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__init__.py").write_text("import bansong, polars\nprint(hasattr(polars.Expr, 'brn'))")
    (tmp_path / "tool" / "__main__.py").touch()
    for words in (["-m", "tool", "bansong"], ["-m", "tool", "-m", "bansong"]):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "True\n"
