"""§2.3, §2.4, §4.2 to §4.4: batch jobs and what became of their rows."""

from __future__ import annotations

import io
import json
from typing import Any

import openpyxl
import pytest

from conformance.target import LINES, Target, endpoints, finished, found, job_path, lists_of_objects, upload

EXCEL = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"


def created(target: Target, **request: Any) -> tuple[str, int]:
    """Upload a file, and return the identifier and total of its job."""
    answer = target.account.ask("POST", "/batch", **request)
    assert answer.is_success, answer.text
    return told(answer.json())


def told(answer: dict[str, Any]) -> tuple[str, int]:
    """§4.2: `{job_id: string, total: integer}`."""
    assert isinstance(answer["job_id"], str)
    assert type(answer["total"]) is int
    return answer["job_id"], answer["total"]


def one_row() -> dict[str, str]:
    return dict(zip(LINES[0].split(","), LINES[1].split(","), strict=True))


def test_a_batch_of_three_rows_is_counted_and_ends_as_done(
    target: Target, job: dict[str, Any], job_id: str, record: dict[str, Any]
) -> None:
    """§2.3, §3, §4.2, §4.3: total is the number of rows; a job becomes `done` and stays so."""
    assert told(job)[1] == 3
    assert record["status"] == "done"
    assert found(target.account.ask("GET", job_path(job_id), params={"preview": 2}).json(), "status") == "done"


def test_a_spreadsheet_is_accepted(target: Target) -> None:
    """§4.2: Excel files are accepted."""
    target.must("spreadsheet")
    workbook = openpyxl.Workbook()
    workbook.active.append(LINES[0].split(","))  # type: ignore[union-attr]
    workbook.active.append(LINES[1].split(","))  # type: ignore[union-attr]
    content = io.BytesIO()
    workbook.save(content)
    job_id, total = created(target, files={"file": ("customers.xlsx", content.getvalue(), EXCEL)})
    assert total == 1
    finished(target.account, job_id, target.pause)


def test_json_is_accepted(target: Target) -> None:
    """§4.2: JSON files are accepted."""
    content = json.dumps([one_row()], ensure_ascii=False).encode()
    job_id, total = created(target, files={"file": ("customers.json", content, "application/json")})
    assert total == 1
    finished(target.account, job_id, target.pause)


def test_the_flags_are_taken(target: Target) -> None:
    """§4.2: `offline` and `paid` are query parameters, true or false."""
    job_id, total = created(target, files=upload(3), params={"offline": "false", "paid": "true"})
    assert total == 3
    finished(target.account, job_id, target.pause)


@pytest.mark.parametrize("case", ["another part", "no form"])
def test_a_form_without_the_file_is_refused(target: Target, case: str) -> None:
    """§4.2: the upload is multipart/form-data with a part named `file`; anything else is a fault of the request."""
    request: dict[str, Any] = {"files": upload(1, part="document")} if case == "another part" else {"json": [one_row()]}
    status = target.account.ask("POST", "/batch", **request).status_code
    assert 400 <= status < 500
    assert status not in {401, 403, 404, 413, 429}


def test_the_preview_is_the_number_of_top_results(target: Target, job_id: str, record: dict[str, Any]) -> None:
    """§4.3: as many top results are given as `preview` says."""
    lengths = {len(one) for one in lists_of_objects(record) if one}
    assert 2 in lengths
    with_one = target.account.ask("GET", job_path(job_id), params={"preview": 1}).json()
    assert {len(one) for one in lists_of_objects(with_one) if one} == {1}


def test_an_outcome_is_recorded(target: Target, job_id: str, record: dict[str, Any]) -> None:
    """§2.4, §4.4: an outcome of a row, with the reason in free text, is taken; row 2 is one in any numbering."""
    method, _, request = endpoints()["4.4"]
    answer = target.account.ask(method, f"{job_path(job_id)}/label", **request)
    assert answer.is_success, answer.text


@pytest.mark.parametrize("label", [{"row_id": "zwei", "bounced": True}, {"row_id": 2, "bounced": "vielleicht"}])
def test_an_outcome_of_other_types_is_refused(target: Target, job_id: str, label: dict[str, Any]) -> None:
    """§2.4: row_id is an integer and bounced a boolean."""
    status = target.account.ask("POST", f"{job_path(job_id)}/label", json=label).status_code
    assert 400 <= status < 500
    assert status not in {401, 403, 413, 429}
