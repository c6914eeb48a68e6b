"""Wrong results of a job, or answers about another record. All were paid."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from bansong.testing.dialect_bodies import Object, encode_json
from bansong.testing.faults import Act
from bansong.testing.messages import FakeReply, FakeRequest
from bansong.testing.verdicts import Lookup

_FIELDS: Final = ("biz_status", "bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address", "reasons")


class _ResultsFault(Act, ABC):
    async def before(self, request: FakeRequest) -> FakeReply | None:
        request.edits.append(lambda results: self.edit(request, results))
        return None

    @abstractmethod
    def edit(self, request: FakeRequest, results: list[Object]) -> list[Object]: ...


@dataclass(frozen=True, slots=True)
class Partial(_ResultsFault):
    """Only the first ``share`` of a job's results."""

    share: float = 0.5

    def edit(self, request: FakeRequest, results: list[Object]) -> list[Object]:  # noqa: ARG002
        return results[: int(len(results) * self.share)]


@dataclass(frozen=True, slots=True)
class Missing(_ResultsFault):
    """Results without a scattered ``share``, the same at each poll. ``renumbered``: close the gaps in the keys."""

    share: float = 0.03
    renumbered: bool = False
    seed: int = 0

    def edit(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        dialect = request.service.dialect
        count = len(results) - int(len(results) * self.share)
        kept = sorted(Random(self.seed).sample(range(len(results)), count))  # noqa: S311 - not a secret
        left = [results[place] for place in kept]
        if not self.renumbered or dialect.row_key is None:
            return left
        return [{**item, dialect.row_key: place + dialect.row_base} for place, item in enumerate(left)]


@dataclass(frozen=True, slots=True)
class Reordered(_ResultsFault):
    """A job's results in another order."""

    seed: int = 0

    def edit(self, request: FakeRequest, results: list[Object]) -> list[Object]:  # noqa: ARG002
        return Random(self.seed).sample(results, len(results))  # noqa: S311 - not a secret


@dataclass(frozen=True, slots=True)
class Duplicated(_ResultsFault):
    """A job's results, the first few given twice."""

    count: int = 1

    def edit(self, request: FakeRequest, results: list[Object]) -> list[Object]:  # noqa: ARG002
        return [*results, *results[: self.count]]


@dataclass(frozen=True, slots=True)
class Repeated(_ResultsFault):
    """Each result that many times, but no more in all than ``preview`` asks for."""

    times: int = 3

    def edit(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        most = request.query().get("preview")
        every = [item for item in results for _ in range(self.times)]
        return every if most is None else every[: int(most)]


@dataclass(frozen=True, slots=True)
class ShiftedKeys(_ResultsFault):
    """Each result with the row key of the one ``by`` places further."""

    by: int = 1

    def edit(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        key = request.service.dialect.row_key
        if key is None:
            return results
        keys = [item[key] for item in results]
        return [{**item, key: keys[(place + self.by) % len(keys)]} for place, item in enumerate(results)]


@dataclass(frozen=True, slots=True)
class Emptied(_ResultsFault):
    """Results with null in the seven fields."""

    def edit(self, request: FakeRequest, results: list[Object]) -> list[Object]:
        under, nothing = request.service.dialect.answer_under, dict.fromkeys(_FIELDS)
        return [item | (nothing if under is None else {under: nothing}) for item in results]


@dataclass(frozen=True, slots=True)
class SomebodyElses(Act):
    """Answers, and echoes, about a record that differs in one field."""

    field: Literal["b_no", "name", "address"] = "b_no"

    async def before(self, request: FakeRequest) -> FakeReply | None:
        request.answered_record = self._other
        return None

    def _other(self, row: Lookup) -> Lookup:
        match self.field:
            case "b_no":
                return row._replace(b_no=f"{(int(row.b_no) + 5_000_000_000) % 10_000_000_000:010}")
            case "name":
                return row._replace(name="다른 상사")
        return row._replace(address="부산광역시 해운대구 센텀중앙로 79")


@dataclass(frozen=True, slots=True)
class FirstJob(Act):
    """Replies to uploads name the first job, and polls show it."""

    async def before(self, request: FakeRequest) -> FakeReply | None:
        if request.kind == "job" and request.service.jobs:
            request.target = next(iter(request.service.jobs))
        return None

    async def after(self, request: FakeRequest, reply: FakeReply) -> FakeReply:
        if request.kind == "batch" and reply.status < 300:
            reply.body = encode_json(json.loads(reply.body) | {"job_id": next(iter(request.service.jobs))})
        return reply


@dataclass(frozen=True, slots=True)
class Word(Act):
    """A job's status is this word."""

    word: str = "failed"

    async def before(self, request: FakeRequest) -> FakeReply | None:
        request.word = self.word
        return None
