"""A broken service can neither empty the purse nor put an answer on a wrong row, however often the command is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from broken_services import RIGHT, ROWS, TABLE, WRONG, Engine, campaign

CASES = [(engine, name) for engine, cases in TABLE.items() for name in cases]

STOP = "the purchase does not stop for good after three trials"
ECHO = "a contradicting echo is not seen"
MATCHING = "results are not matched as well as they could be"
TWICE = "bytes that follow a complete response are taken for the next"

RED: dict[tuple[str, str], str] = {
    **{
        ("batch", name): STOP
        for name in (
            "an upload is answered by 500",
            "an upload's reply has no job",
            "an upload is answered by a web page",
            "an upload is answered by an error object",
            "an upload is answered by garbage",
            "an upload's reply is cut",
            "an upload's reply never comes",
            "an upload's reply is far too large",
            "an upload is asked to wait for ages",
            "every upload is the same job",
            "a job is not known",
            "a job fails with 500",
            "a job's record is a web page",
            "a job's record is an error object",
            "a job's record is far too large",
            "a job is redirected",
            "a job asks to wait for ages",
            "a job is never done",
            "a job's status is no known word",
            "a job shows another job's results",
            "a job's answers are empty",
            "a job's answers are another number's",
            "a job's answers are another number's, nested",
            "a job has neither keys nor echoes",
        )
    },
    **{
        ("batch", name): ECHO
        for name in (
            "a job's answers are of another name",
            "a job's answers are at another address",
            "a job's answers are of another name, nested",
        )
    },
    **{
        ("verify", name): ECHO
        for name in (
            "an answer is another number's, nested",
            "an answer is of another name",
            "an answer is at another address, nested",
            "every third answer is another number's, nested",
        )
    },
    **{
        ("batch", name): MATCHING
        for name in (
            "a job's rows are dropped and numbered anew",
            "a job gives each result three times",
            "a job gives each result three times, keys only",
            "a job echoes the number only, at two addresses",
            "a job lacks 3 % of its rows",
            "a job's results come late",
            "a job's texts have a byte that is no UTF-8",
        )
    },
    **{("verify", name): TWICE for name in ("every response is sent twice", "every tenth response is sent twice")},
}
"""What is red, and why."""


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        pytest.param(
            *case, marks=[pytest.mark.xfail(strict=True, reason=RED[case])] if case in RED else [], id="-".join(case)
        )
        for case in CASES
    ],
)
def test_a_broken_service_takes_little_and_misleads_nobody(engine: Engine, name: str, tmp_path: Path) -> None:
    """The command and three repeats: few lookups spent, none twice, no row with a wrong answer, and everything told."""
    case = TABLE[engine][name]
    found = campaign(tmp_path, engine, case)
    assert found.again == 0
    for run, outcome in enumerate(found.outcomes):
        assert outcome.count(WRONG) == 0, f"run {run}"
        assert outcome.silent == 0, f"run {run}"
        whole = outcome.rows is not None and outcome.count(RIGHT) == ROWS
        assert (outcome.code == 0) == whole, f"run {run}: the exit code says whether all rows are answered"
        assert whole or outcome.words, f"run {run}: what is wrong is told"
    assert found.spent <= case.most
    assert found.outcomes[-1].count(RIGHT) >= case.least
    if case.uploads is not None:
        assert found.uploads <= case.uploads
