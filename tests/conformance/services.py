"""The services that are at hand: our own server over a socket, and the shipped fake in each of its dialects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from bansong.server.settings import load_plans
from bansong.testing import DIALECTS, FakeService, serve
from conformance.target import Account, Key, Target
from serving import read_here, served

OURS = "ours"
FAKES = [f"fake:{name}" for name in ("plain", *DIALECTS)]
USUAL = ("fake:wrapped", "fake:terse")
"""The dialects of the default suite, as far from each other as any two; `-m fuzz` asks the others."""
FOREIGN = "foreign"

FAKE_EXEMPT = {
    "spreadsheet": "the fake does not read spreadsheets, and says so (docs/testing.md)",
    "other": "the fake knows one key",
}
"""What the fake does not claim, with the reason."""
FOREIGN_EXEMPT = {
    "too large": "the largest size is not shown (§8), and trying for it would be rude",
}
_UPLOAD_BYTES = 300_000


@contextmanager
def target_of(name: str, folder: Path, config: pytest.Config) -> Iterator[Target]:
    """Serve what is to be served for as long as the block lasts."""
    if name == FOREIGN:
        yield foreign(config)
    elif name == OURS:
        with ours(folder) as target:
            yield target
    else:
        with fake(name) as target:
            yield target


@contextmanager
def ours(folder: Path) -> Iterator[Target]:
    plans = dict(load_plans())
    plans["business"] = msgspec.structs.replace(plans["business"], upload_bytes=_UPLOAD_BYTES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        read_here(patch)  # each in a process of its own: that is asked of `bansong serve` in test_command
        with served(folder / "db.sqlite", plans=plans) as server:
            keys = (server.key(), server.key(plan="free"), server.key(quota=2), server.key())
            account, free, small, other = (Account(server.url, Key(key)) for key in keys)
            yield Target(OURS, account, free, small, other, too_large=_UPLOAD_BYTES + 1)


@contextmanager
def fake(name: str) -> Iterator[Target]:
    dialect = DIALECTS.get(name.partition(":")[2])
    with ExitStack() as stack:

        def account(**more: object) -> Account:
            service = FakeService("test-key", dialect=dialect, **more)  # type: ignore[arg-type]
            return Account(stack.enter_context(serve(service)), Key("test-key"))

        yield Target(
            name,
            account(quota=5_000, max_bytes=_UPLOAD_BYTES),
            free=account(quota=5_000, plan="free"),
            small=account(quota=2),
            too_large=_UPLOAD_BYTES + 1,
            exempt=FAKE_EXEMPT,
        )


def foreign(config: pytest.Config) -> Target:
    url = config.getoption("base_url").rstrip("/")

    def account(option: str, variable: str) -> Account | None:
        key = config.getoption(option) or os.environ.get(variable)
        return Account(url, Key(key)) if key else None

    main = account("api_key", "BANSONG_API_KEY")
    if main is None:
        raise pytest.UsageError("--base-url needs a key: give --api-key, or set BANSONG_API_KEY")
    return Target(
        FOREIGN,
        main,
        free=account("free_key", "BANSONG_FREE_KEY"),
        small=account("small_quota_key", "BANSONG_SMALL_QUOTA_KEY"),
        other=account("other_key", "BANSONG_OTHER_KEY"),
        pause=1.0,
        exempt=FOREIGN_EXEMPT,
    )
