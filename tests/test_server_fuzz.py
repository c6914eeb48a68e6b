"""Requests made from the served document, right and wrong ones: no 5xx, no undeclared status, no other shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bansong.server.routes import OPERATIONS
from bansong.server.settings import load_plans
from serving import CSV, Served, read_here, served

if TYPE_CHECKING:
    from schemathesis import Case  # takes more than a second, which the default suite does not pay

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.filterwarnings("default"),  # schemathesis' and requests' own are not ours to keep
]
CONFORMANCE = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
CASES = {("POST", "/verify"): 150, ("POST", "/batch"): 60}
CASES |= dict.fromkeys([("GET", path) for path in ("/me", "/healthz", "/openapi.json")], 30)
_OTHERS = 100


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    plans = dict(load_plans())
    much = dict.fromkeys(("jobs", "watch_changes", "requests_per_second", "request_burst"), 10**6)
    plans["business"] = msgspec.structs.replace(plans["business"], watches=300, disk_bytes=10**12, **much)
    with pytest.MonkeyPatch.context() as patch:
        read_here(patch)
        with served(tmp_path_factory.mktemp("fuzzed") / "db.sqlite", plans=plans, queue=10**6) as running:
            yield running


@pytest.fixture(scope="module")
def send(server: Served) -> Callable[[Case, str | None], None]:
    """Send a case with a key, and hold the answer against the document."""
    import requests
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    checks, session = CHECKS.get_by_names(CONFORMANCE), requests.Session()
    session.trust_env = False

    def send(case: Case, key: str | None) -> None:
        case.headers.pop("X-API-Key", None)
        headers = {} if key is None else {"X-API-Key": key.encode("latin-1")}
        # random bytes are hardly ever a file with business numbers in it: some cases get one
        if isinstance(case.body, dict) and isinstance(file := case.body.get("file"), bytes) and len(file) % 2:
            case.body["file"] = CSV.encode()
        answer = case.call(base_url=server.url, session=session, headers=headers, timeout=30)
        case.validate_response(answer, checks=checks)
        if answer.status_code >= 400:
            assert all(answer.json()["error"][name] for name in ("code", "message"))

    return send


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[" ".join(one) for one in OPERATIONS])
def test_many_requests_find_nothing(
    server: Served, send: Callable[[Case, str | None], None], method: str, path: str
) -> None:
    """Cases for each operation, half of them valid, with right and wrong keys, are answered as described."""
    import schemathesis

    schema = schemathesis.openapi.from_dict(server.http.get(f"{server.url}/openapi.json").json())
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    cases = st.one_of([schema[path][method].as_strategy(generation_mode=mode) for mode in modes])
    keys = [server.key(quota=10**9)] * 12 + [server.key("free"), server.key(quota=0), "wrong", "é", None]
    unchecked: Any = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    bounded = settings(max_examples=CASES.get((method, path), _OTHERS), phases=[Phase.generate], **unchecked)
    bounded(given(case=cases, key=st.sampled_from(keys))(send))()
