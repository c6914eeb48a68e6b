"""What can be wrong with a job's results, or with whose answer it is. All of it was paid for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from bizverify.testing.faults import Act
from bizverify.testing.messages import Asked, Reply
from bizverify.testing.responses import Object, encoded
from bizverify.testing.verdicts import Lookup

_FIELDS: Final = ("biz_status", "bounce_prob", "grade", "action", "fixed_zipcode", "fixed_address", "reasons")


@dataclass(frozen=True, slots=True)
class Partial(Act):
    """A job's results, but only this share of them, from the first."""

    share: float = 0.5

    async def before(self, asked: Asked) -> Reply | None:
        """Ask for it."""
        asked.edits.append(lambda results: results[: int(len(results) * self.share)])
        return None


@dataclass(frozen=True, slots=True)
class Missing(Act):
    """A job's results without this share of them, scattered, the same at each poll.

    With ``renumbered`` the others are numbered anew, without a gap, as if no row had ever been missing.
    """

    share: float = 0.03
    renumbered: bool = False
    seed: int = 0

    async def before(self, asked: Asked) -> Reply | None:
        """Ask for it."""
        dialect = asked.service.dialect

        def without(results: list[Object]) -> list[Object]:
            count = len(results) - int(len(results) * self.share)
            kept = sorted(Random(self.seed).sample(range(len(results)), count))  # noqa: S311 - not a secret
            left = [results[place] for place in kept]
            if not self.renumbered or dialect.row_key is None:
                return left
            return [{**item, dialect.row_key: place + dialect.row_base} for place, item in enumerate(left)]

        asked.edits.append(without)
        return None


@dataclass(frozen=True, slots=True)
class Reordered(Act):
    """A job's results in another order."""

    seed: int = 0

    async def before(self, asked: Asked) -> Reply | None:
        """Ask for it."""

        def shuffled(results: list[Object]) -> list[Object]:
            return Random(self.seed).sample(results, len(results))  # noqa: S311 - not a secret

        asked.edits.append(shuffled)
        return None


@dataclass(frozen=True, slots=True)
class Duplicated(Act):
    """A job's results with the first few given twice."""

    count: int = 1

    async def before(self, asked: Asked) -> Reply | None:
        """Ask for it."""
        asked.edits.append(lambda results: [*results, *results[: self.count]])
        return None


@dataclass(frozen=True, slots=True)
class Repeated(Act):
    """Each of a job's results so often in a row, and no more in all than ``preview`` asks for."""

    times: int = 3

    async def before(self, asked: Asked) -> Reply | None:
        """Ask for it."""
        most = asked.query().get("preview")

        def repeated(results: list[Object]) -> list[Object]:
            every = [item for item in results for _ in range(self.times)]
            return every if most is None else every[: int(most)]

        asked.edits.append(repeated)
        return None


@dataclass(frozen=True, slots=True)
class ShiftedKeys(Act):
    """Each of a job's results bears the row key of the one ``by`` places further, the last ones those of the first."""

    by: int = 1

    async def before(self, asked: Asked) -> Reply | None:
        """Ask for it."""
        key = asked.service.dialect.row_key

        def shifted(results: list[Object]) -> list[Object]:
            if key is None:
                return results
            keys = [item[key] for item in results]
            return [{**item, key: keys[(place + self.by) % len(keys)]} for place, item in enumerate(results)]

        asked.edits.append(shifted)
        return None


@dataclass(frozen=True, slots=True)
class Emptied(Act):
    """A job's results with nothing in the seven fields."""

    async def before(self, asked: Asked) -> Reply | None:
        """Ask for it."""
        under, nothing = asked.service.dialect.answer_under, dict.fromkeys(_FIELDS)

        def emptied(results: list[Object]) -> list[Object]:
            return [item | (nothing if under is None else {under: nothing}) for item in results]

        asked.edits.append(emptied)
        return None


@dataclass(frozen=True, slots=True)
class SomebodyElses(Act):
    """The answers to ``/verify``, or in a job, are about a record that differs in one field; so are their echoes."""

    field: Literal["b_no", "name", "address"] = "b_no"

    async def before(self, asked: Asked) -> Reply | None:
        """Ask for it."""
        asked.answered_record = self._other
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
    """Of an upload: the reply names the first job there was. Of a poll: the record is that of the first job."""

    async def before(self, asked: Asked) -> Reply | None:
        """Show the first job in the place of the one that was asked for."""
        if asked.kind == "job" and asked.service.jobs:
            asked.target = next(iter(asked.service.jobs))
        return None

    async def after(self, asked: Asked, reply: Reply) -> Reply:
        """Name the first job in the place of the new one."""
        if asked.kind == "batch" and reply.status < 300:
            reply.body = encoded(json.loads(reply.body) | {"job_id": next(iter(asked.service.jobs))})
        return reply


@dataclass(frozen=True, slots=True)
class Word(Act):
    """A job's status is this word, whatever became of it: ``failed``, or one that no client can know."""

    word: str = "failed"

    async def before(self, asked: Asked) -> Reply | None:
        """Ask for it."""
        asked.word = self.word
        return None
