"""A server that learns, seen by its keys: jobs, outcomes, and answers before and after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from handclock import HandClock
from serving import HTTP, Served, rows_of, served

ADDRESSEES = [
    ("1248100998", "삼성전자", "경기 수원시 영통구 삼성로 129"),
    ("2208162517", "네이버", "경기 성남시 분당구 정자일로 95"),
    ("1208147521", "다음카카오", "제주특별자치도 제주시 첨단로 242"),
]


@dataclass
class Asking:
    """A key at a served database."""

    url: str
    secret: str

    def post(self, path: str, body: object) -> httpx.Response:
        return HTTP.post(f"{self.url}{path}", json=body, headers=self.headers, timeout=60)

    @property
    def headers(self) -> dict[str, str]:
        return {"X-API-Key": self.secret}

    def verify(self, addressee: int = 0) -> dict[str, Any]:
        b_no, name, address = ADDRESSEES[addressee]
        answer: dict[str, Any] = self.post("/verify", {"b_no": b_no, "name": name, "address": address}).json()
        return answer

    def label(self, job: str, row_id: int, bounced: bool, reason: str | None = None) -> httpx.Response:
        return self.post(f"/batch/{job}/label", {"row_id": row_id, "bounced": bounced, "reason": reason})

    def batch(self, clock: HandClock, content: str | None = None, **query: str) -> str:
        """The id of a job that is done, of the addressees unless something else is given."""
        rows = [",".join(row) for row in ADDRESSEES]
        content = content or "\n".join(["사업자등록번호,상호,주소", *rows, ""])
        files = {"file": ("a.csv", content.encode())}
        sent = HTTP.post(f"{self.url}/batch", files=files, headers=self.headers, params=query, timeout=60)
        job: str = sent.json()["job_id"]
        clock.until(lambda: self.status(job) == "done")
        return job

    def status(self, job: str) -> str:
        status: str = HTTP.get(f"{self.url}/batch/{job}", headers=self.headers, timeout=60).json()["status"]
        return status


@dataclass
class Scene:
    """A server, its clock, and what its file says."""

    server: Served
    clock: HandClock

    def key(self, **more: Any) -> Asking:
        return Asking(self.server.url, self.server.key(**more))

    def learned(self) -> None:
        """Let time pass until every outcome is in a label store."""
        waits = "SELECT count(*) FROM labels WHERE learned IS NULL"
        self.clock.until(lambda: rows_of(self.server.db, waits) == [(0,)], seconds=1)

    @property
    def learning(self) -> Path:
        return Path(f"{self.server.db}.files") / "learning"


@contextmanager
def scene(folder: Path, clock: HandClock | None = None, **settings: Any) -> Iterator[Scene]:
    clock = clock or HandClock()
    with served(folder / "db.sqlite", clock.clock, **settings) as server:
        yield Scene(server, clock)
