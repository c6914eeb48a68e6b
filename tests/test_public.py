"""What users import, and that importing it is cheap."""

from __future__ import annotations

import subprocess
import sys
from pkgutil import iter_modules

import pytest

import bansong as bs
from bansong import client


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


def test_help_loads_nothing_heavy() -> None:
    heavy = ["polars", "openpyxl", "httpx", "pyarrow", "pydantic", "rich", "xlsxwriter", "fastexcel", "msgspec"]
    code = (
        "import sys\nfrom contextlib import suppress\nfrom bansong.cli.app import main\n"
        "for words in ('--help', 'enrich --help', '--version'):\n"
        "    sys.argv = ['bansong', *words.split()]\n"
        "    with suppress(SystemExit): main()\n"
        f"print('loaded:', [name for name in {heavy!r} if name in sys.modules])"
    )
    assert python(code).endswith("loaded: []")


def test_the_public_names_are_there() -> None:
    """Which they are stands in tests/frozen."""
    assert (set(bs.__all__), hasattr(bs, "nonsense")) == (set(dir(bs)), False)
    assert [name for module in (bs, client) for name in module.__all__ if getattr(module, name) is None] == []
    assert {found.name for found in iter_modules(bs.watch.__path__)} & {*bs.watch.__all__} == set()  # would hide it


USE = "import sys; print(pl.select(pl.lit('124-81-00998').brn.is_valid()).item(), is_valid is bs.number.is_valid)"
LEFT = "print([type(finder).__name__ for finder in sys.meta_path if 'Polars' in type(finder).__name__])"


@pytest.mark.parametrize(
    "first",
    [
        "import polars as pl; import bansong as bs; from bansong.number import is_valid",
        "from bansong.number import is_valid; import bansong as bs; import polars as pl",
        "import bansong as bs; from importlib.util import find_spec; find_spec('polars'); find_spec('polars'); "
        "import polars as pl; from bansong.number import is_valid",
    ],
)
def test_the_namespace_of_polars_is_there_whichever_is_imported_first(first: str) -> None:
    assert python(f"{first}; {USE}; {LEFT}").split() == ["True", "True", "[]"]
