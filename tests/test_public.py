"""What users import, and that importing it is cheap."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import bansong as bs
from bansong import client


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_public_names_are_these() -> None:
    """A name is added or taken away deliberately, never by accident."""
    assert sorted(bs.__all__) == [
        "ApiKey",
        "BansongError",
        "BlockingClient",
        "CancelToken",
        "Client",
        "Engine",
        "EngineKind",
        "EnrichKeywords",
        "ErasureReport",
        "FilesReport",
        "FrameKeywords",
        "Gazetteer",
        "GazetteerError",
        "HybridEngine",
        "JobReport",
        "LabelReport",
        "LocalEngine",
        "NtsKey",
        "ReadOptions",
        "Registry",
        "Report",
        "ReviewReport",
        "Scorecard",
        "ServiceEngine",
        "ServiceKeywords",
        "ServiceOptions",
        "StatusOptions",
        "StatusOverlay",
        "Verification",
        "VerifyKeywords",
        "WriteOptions",
        "__version__",
        "aenrich",
        "afetch_status",
        "apply_review",
        "build_gazetteer",
        "build_registry",
        "calibrate",
        "enrich",
        "errors",
        "fetch_status",
        "forget",
        "label",
        "number",
        "plan",
        "run_job",
        "set_language",
        "verify",
        "verify_frame",
        "watch",
    ]
    for name in bs.__all__:
        assert getattr(bs, name) is not None
    assert set(bs.__all__) == set(dir(bs))


def test_the_names_of_the_client_are_these() -> None:
    """What a program that uses the client may name in its own annotations."""
    assert sorted(client.__all__) == [
        "Account",
        "Acknowledged",
        "ApiKey",
        "BaseUrl",
        "BatchCreated",
        "BatchStatus",
        "BinaryFile",
        "BlockingClient",
        "BlockingRawClient",
        "Client",
        "EventHooks",
        "FileContent",
        "Headers",
        "HttpTransport",
        "Idempotency",
        "RawClient",
        "RawResponse",
        "Result",
        "Step",
        "Timeout",
        "Timeouts",
        "Verified",
        "Verify",
        "WatchChange",
        "WatchEntry",
    ]
    for name in client.__all__:
        assert getattr(client, name) is not None


def test_number_is_a_module_that_can_be_imported() -> None:
    """`bs.number` and `import bansong.number` are one module, whatever its file is called."""
    code = "from bansong.number import is_valid; import bansong as bs; print(is_valid is bs.number.is_valid)"
    assert python(code) == "True"


def test_a_source_tree_that_is_not_installed_knows_its_version() -> None:
    """The User-Agent header needs the version; it must not come from an installation that may be missing."""
    code = (
        "import importlib.metadata as m\n"
        "def missing(name): raise m.PackageNotFoundError(name)\n"
        "m.version = missing\n"
        "from bansong.client.request import user_agent\n"
        "print(user_agent().split(' ')[0])"
    )
    assert python(code) == f"bansong/{bs.__version__}"


@pytest.mark.parametrize("name", ["Client", "BlockingClient", "RawClient", "BlockingRawClient", "RawResponse"])
def test_what_a_signature_of_the_client_names_can_be_imported(name: str) -> None:
    """From `bansong.client`, or from Python itself."""
    kind = getattr(client, name)
    public = [kind.__init__, *(getattr(kind, method) for method in dir(kind) if method[0] != "_")]
    functions = [getattr(method, "fget", method) for method in public]
    signatures = [inspect.signature(function) for function in functions if callable(function)]
    written = [
        str(annotation)
        for signature in signatures
        for annotation in (signature.return_annotation, *(one.annotation for one in signature.parameters.values()))
    ]
    named = set(re.findall(r"\b[A-Z]\w+", " ".join(written))) - {"ServiceResponse"}
    assert (
        named
        - {*client.__all__, "None", "Self", "Callable", "Any", "Coroutine", "AsyncIterator", "Iterator", "Mapping"}
        == set()
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bs.nonsense  # noqa: B018


@pytest.mark.parametrize("order", ["import bansong, polars as pl", "import polars as pl, bansong"])
def test_the_namespace_is_there_whichever_is_imported_first(order: str) -> None:
    assert python(f"{order}; print(pl.select(pl.lit('124-81-00998').brn.is_valid()).item())") == "True"


def test_asking_whether_polars_is_there_does_not_lose_the_namespace() -> None:
    ask = "import bansong, importlib.util; importlib.util.find_spec('polars'); importlib.util.find_spec('polars')"
    use = "import polars as pl, sys; print(pl.select(pl.lit('124-81-00998').brn.is_valid()).item())"
    gone = "print([type(finder).__name__ for finder in sys.meta_path if 'Polars' in type(finder).__name__])"
    assert python(f"{ask}; {use}; {gone}").split() == ["True", "[]"]


@pytest.mark.parametrize("command", ["--help", "enrich --help", "--version"])
def test_help_loads_nothing_heavy(command: str) -> None:
    """`bansong --help` is to answer at once: polars, openpyxl and the like are imported when they are needed."""
    heavy = ["polars", "openpyxl", "httpx", "pyarrow", "pydantic", "rich", "xlsxwriter", "fastexcel", "msgspec"]
    code = (
        f"import sys; sys.argv = ['bansong', *{command.split()!r}]\n"
        "from bansong.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print('loaded:', [name for name in {heavy!r} if name in sys.modules])"
    )
    assert python(code).endswith("loaded: []")


def test_every_error_has_an_exit_code_and_one_root() -> None:
    found = [value for value in vars(bs.errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(found) == 31
    for error in found:
        assert issubclass(error, bs.BansongError)
        assert error.exit_code in (1, 2, 3, 4, 5, 6, 130)
        assert error.__name__ in (bs.errors.__doc__ or "")
