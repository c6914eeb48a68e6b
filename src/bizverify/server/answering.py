"""Single lookups, answered by the embedded engine."""

from __future__ import annotations

import anyio.to_thread
import polars as pl

from bizverify.model import REASON_SEPARATOR, RECORD_COLUMNS
from bizverify.server.engines import Engines
from bizverify.server.wire import Verified, VerifyRequest


class Answering:
    """Answers single lookups."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    async def answer(self, scope: str, lookup: VerifyRequest) -> Verified:
        """Answer one lookup."""
        return await anyio.to_thread.run_sync(self._answered, scope, lookup)

    def _answered(self, scope: str, lookup: VerifyRequest) -> Verified:
        record = {"b_no": lookup.b_no, "name": lookup.name, "address": lookup.address, "zipcode": None}
        frame = pl.LazyFrame([record], schema=dict.fromkeys(RECORD_COLUMNS, pl.String))
        row = self._engines.engine(scope).answer(frame).collect().row(0, named=True)
        reasons = row["reasons"].split(REASON_SEPARATOR) if row["reasons"] else []
        seven = {name: row[name] for name in Verified.__struct_fields__ if name != "reasons"}
        return Verified(**seven, reasons=reasons)
