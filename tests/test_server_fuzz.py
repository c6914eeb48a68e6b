"""Requests made from the served document, right and wrong ones: no 5xx, no undeclared status, no other shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from bansong.server.routes import OPERATIONS
from bansong.server.settings import load_plans
from serving import Served, read_here, served

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
ROWS = ["b_no,name,address", "1248100998,삼성전자,경기 수원시 영통구 삼성로 129", "2208162517,네이버,", "1,,"]
CASES = {("POST", "/verify"): 150, ("POST", "/batch"): 60}
CASES |= dict.fromkeys([("GET", path) for path in ("/me", "/healthz", "/openapi.json")], 30)
_OTHERS = 100


class Fuzzed:
    """A running server with keys of all kinds, and what it answered."""

    def __init__(self, server: Served) -> None:
        import requests
        import schemathesis
        from schemathesis.checks import CHECKS, load_all_checks

        load_all_checks()
        self.checks = CHECKS.get_by_names(CONFORMANCE)
        self.url = server.url
        self.session = requests.Session()
        self.session.trust_env = False
        self.schema = schemathesis.openapi.from_dict(self.session.get(f"{server.url}/openapi.json").json())
        good = server.key(quota=10**9)
        self.good = good
        self.keys = st.sampled_from([good] * 12 + [server.key(plan="free"), server.key(quota=0), "wrong", "é", None])
        self.answered: Counter[tuple[str, int]] = Counter()

    def send(self, case: Case, key: str | None) -> None:
        """Send a case with this key, and hold the answer against the document."""
        case.headers.pop("X-API-Key", None)
        headers = {} if key is None else {"X-API-Key": key.encode("latin-1")}
        answer = case.call(base_url=self.url, session=self.session, headers=headers, timeout=30)
        self.answered[case.operation.label, answer.status_code] += 1
        case.validate_response(answer, checks=self.checks)
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert error["code"] and error["message"]  # noqa: PT018


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    folder = tmp_path_factory.mktemp("fuzzed")
    plans = dict(load_plans())
    much = dict.fromkeys(("jobs", "watch_changes", "requests_per_second", "request_burst"), 10**6)
    plans["business"] = msgspec.structs.replace(plans["business"], watches=300, disk_bytes=10**12, **much)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BANSONG_STATE_DIR", str(folder / "state"))
        read_here(patch)
        with served(folder / "db.sqlite", plans=plans, queue=10**6) as server:
            yield Fuzzed(server)


def bounded(cases: int) -> settings:
    checks = list(HealthCheck)
    return settings(
        max_examples=cases, deadline=None, database=None, suppress_health_check=checks, phases=[Phase.generate]
    )


def fuzz(fuzzed: Fuzzed, method: str, path: str, cases: int) -> None:
    """Send so many cases to one operation, half of them valid."""
    from schemathesis import GenerationMode

    operation = fuzzed.schema[path][method]
    modes = [operation.as_strategy(generation_mode=mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)]

    @bounded(cases)
    @given(case=st.one_of(modes), key=fuzzed.keys)
    def send(case: Any, key: str | None) -> None:
        if path == "/batch" and key == fuzzed.good:
            sometimes_a_file(case)
        fuzzed.send(case, key)

    send()


def sometimes_a_file(case: Case) -> None:
    """Random bytes are hardly ever a file with business numbers in it: of those cases that send a file, some do."""
    if isinstance(case.body, dict) and isinstance(file := case.body.get("file"), bytes) and len(file) % 2:
        case.body["file"] = "\n".join([*ROWS, ""]).encode()


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[" ".join(one) for one in OPERATIONS])
def test_many_requests_find_nothing(fuzzed: Fuzzed, method: str, path: str) -> None:
    """Cases for each operation, right and wrong, with right and wrong keys, are answered as described."""
    fuzz(fuzzed, method, path, CASES.get((method, path), _OTHERS))


def stateful(fuzzed: Fuzzed, runs: int, steps: int) -> None:
    """Follow the document's links: what one request made is asked for by the next."""
    machine: Any = fuzzed.schema.as_state_machine()

    class Following(machine):  # type: ignore[misc]
        def before_call(self, case: Case) -> None:
            sometimes_a_file(case)
            if isinstance(case.body, dict) and type(case.body.get("row_id")) is int:
                case.body["row_id"] %= len(ROWS)

        def call(self, case: Case, **_: Any) -> Any:
            case.headers.pop("X-API-Key", None)
            answer = case.call(
                base_url=fuzzed.url, session=fuzzed.session, headers={"X-API-Key": fuzzed.good}, timeout=30
            )
            fuzzed.answered[case.operation.label, answer.status_code] += 1
            return answer

        def validate_response(self, response: Any, case: Case, **_: Any) -> None:
            case.validate_response(response, checks=fuzzed.checks)

    alone = settings(bounded(1), derandomize=False, stateful_step_count=steps, verbosity=Verbosity.quiet)
    for number in range(runs):  # each by itself: the server remembers, which Hypothesis would call flaky
        run_state_machine_as_test(seed(number)(type(f"Following{number}", (Following,), {})), settings=alone)


def test_what_was_made_can_be_used_in_many_ways(fuzzed: Fuzzed) -> None:
    """Jobs and watches that some requests made are found, labelled, read and removed by others, as described."""
    stateful(fuzzed, runs=6, steps=8)
    succeeded = {label for label, status in fuzzed.answered if status < 300}
    assert succeeded & {"GET /batch/{job_id}", "DELETE /watch/{watch_id}", "GET /watch/{watch_id}/history"}
