"""The label store: labels are united, never counted twice, and say no more than is known."""

from __future__ import annotations

import multiprocessing
import stat
from dataclasses import replace
from datetime import UTC, date, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bansong as bs
from bansong.engine.overlays import HISTORY_SCHEMA
from bansong.engine.risk.reasons import EVIDENCE_DTYPES
from bansong.errors import LabelError
from bansong.history.labels import LabelStore
from bansong.history.mailings import (
    KNOWN,
    LABEL_SCHEMA,
    STORE_SCHEMA,
    LabelBatch,
    MailingMetadata,
    MailingTerms,
    OutcomeSource,
)
from examples import examples

DAY = date(2026, 10, 5)
NOW = datetime(2026, 11, 22, tzinfo=UTC)
ROWS = 24
LETTERS = [row - row % 2 if row < 8 else row for row in range(ROWS)]
"""Of the first eight rows each two are one letter."""

PLACES = {"row_id": pl.UInt32, "letter": pl.UInt32}
Outcome = tuple[int, bool, str | None]


def knowledge(rows: pl.Series, model: str = "2026.11.3") -> pl.DataFrame:
    """What an enriched file would say of rows: the probability is the row's number in percent, of row 20 none."""
    letter = pl.col("row_id").replace_strict(range(ROWS), LETTERS)
    said = {
        "bounce_prob": pl.when(pl.col("row_id") != 20).then(pl.col("row_id") / 100),
        "grade": pl.lit("A"),
        "score": pl.lit(-50, pl.Int32),
        "model": pl.lit(model),
        "unread": pl.col("row_id") == 21,
        "b_no": (letter + 1_000_000_000).cast(pl.String),
        "address_key": pl.format("주소{}", letter),
    }
    frame = rows.alias("row_id").to_frame()
    return frame.with_columns(**{name: pl.lit(None, STORE_SCHEMA[name]) for name in KNOWN if name != "row_id"} | said)


def batch(outcomes: list[Outcome], source: str = "a", day: date = DAY, **declared: Any) -> LabelBatch:
    declaration = MailingTerms(**({"mailed": day, "returns_requested": True} | declared))
    sources = (OutcomeSource(source, source, NOW),)
    about = MailingMetadata(f"run-{day:%Y%m%d}", "out.csv", "run", "local", "2026.11.3", declaration, sources, NOW)
    rows = [(row, LETTERS[row], said, code, code, None) for row, said, code in sorted(set(outcomes))]
    labels = pl.DataFrame(rows, schema=LABEL_SCHEMA, orient="row")

    def sent(by: MailingTerms) -> pl.DataFrame:
        every = pl.DataFrame({"row_id": range(ROWS), "letter": LETTERS}, schema=PLACES)
        letters = every.unique("letter", keep="first").filter(by.silence_is_delivery and by.sent is not None)
        return letters if by.sent in (None, ("all",)) else letters.filter(pl.col("letter") < 5)

    return LabelBatch(about, labels, pl.DataFrame(schema=PLACES), knowledge, sent, NOW)


def rows_of(book: LabelStore) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(mailing.path) for mailing in book.mailings()])


def bounced(book: LabelStore) -> dict[int, bool | None]:
    return dict(rows_of(book).select("row_id", "bounced").iter_rows())


@st.composite
def mailings(draw: st.DrawFn) -> tuple[list[Outcome], list[list[Outcome]]]:
    """Outcomes that do not contradict each other, and some parts of them, in any order, with repetitions."""
    rows = draw(st.lists(st.integers(0, ROWS - 1), unique=True, min_size=1))
    codes = st.sampled_from([None, "moved", "refused", "absent"])
    truth = [(row, *draw(st.one_of(st.just((False, None)), st.tuples(st.just(True), codes)))) for row in rows]
    parts = draw(st.lists(st.lists(st.sampled_from(truth), min_size=1), max_size=4))
    left = [one for one in truth if not any(one in part for part in parts)]
    return truth, draw(st.permutations([*parts, *([left] if left else [])]))


@examples(25)
@given(mailings(), st.booleans())
def test_any_split_order_and_repetition_gives_the_same_book(
    tmp_path_factory: pytest.TempPathFactory, mailing: tuple[list[Outcome], list[list[Outcome]]], complete: bool
) -> None:
    truth, parts = mailing
    declared: dict[str, Any] = {"complete": complete, "sent": ("all",)}
    whole, split = (LabelStore(tmp_path_factory.mktemp("book") / name) for name in ("whole", "split"))
    whole.record(batch(truth, **declared))
    for place, part in enumerate(parts):
        split.record(batch(part, str(place), **declared))
    assert rows_of(split).equals(rows_of(whole))
    letters = rows_of(whole).filter(pl.col("said").is_null())["letter"]
    assert letters.is_unique().all()
    assert set(letters).isdisjoint(LETTERS[row] for row, *_ in truth)
    assert len(rows_of(whole)) == len(truth) + letters.len()


def test_recording_again_changes_nothing_not_even_the_file(tmp_path: Path) -> None:
    book = LabelStore(tmp_path / "b")
    first = book.record(batch([(1, True, "moved"), (9, False, None)]))
    before = first.path.stat()
    again = book.record(batch([(1, True, "moved"), (9, False, None)]))
    assert (first.new, first.known, again.new, again.known) == (2, 0, 0, 2)
    assert (again.path.stat().st_ino, again.path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert stat.S_IMODE(before.st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o700


def test_what_contradicts_the_book_is_not_taken_unless_asked(tmp_path: Path) -> None:
    """A recorded label stays; with `replace` the new one counts. A reason where there was none is no contradiction."""
    book = LabelStore(tmp_path)
    book.record(batch([(9, True, None), (10, False, None), (11, True, "moved")]))
    kept = book.record(batch([(9, True, "closed"), (10, True, None), (11, True, "absent"), (12, True, None)], "b"))
    assert sorted(kept.clashing) == [10, 11]
    assert (kept.new, kept.known, kept.replaced) == (1, 1, 0)
    codes = dict(rows_of(book).select("row_id", "reason_code").iter_rows())
    assert codes == {9: "closed", 10: None, 11: "moved", 12: None}
    replaced = book.record(batch([(10, True, None), (11, True, "absent")], "c"), replace=True)
    assert (replaced.replaced, replaced.clashing.len()) == (2, 0)
    assert dict(rows_of(book).select("row_id", "said").iter_rows())[10] is True
    assert [source.name for source in book.mailings()[0].about.sources] == ["a", "b", "c"]


def test_no_return_is_delivery_only_where_it_is_sure(tmp_path: Path) -> None:
    """Where returns were requested and are complete; a refused letter says nothing either way."""
    outcomes: list[Outcome] = [(8, True, "moved"), (9, False, None), (10, True, "refused")]
    for place, (declared, ninth) in enumerate(
        [({}, None), ({"complete": True}, False), ({"complete": True, "returns_requested": False}, None)]
    ):
        book = LabelStore(tmp_path / str(place))
        book.record(batch(outcomes, **declared))
        assert bounced(book) == {8: True, 9: ninth, 10: None}


def test_silence_is_delivery_only_of_what_was_sent(tmp_path: Path) -> None:
    """Complete, requested and sent: each letter without an outcome arrived, once; a later return takes its place."""
    book, sure = LabelStore(tmp_path), {"complete": True, "sent": ("all",)}
    book.record(batch([(8, True, "moved")]))
    assert bounced(book) == {8: True}
    done = book.record(batch([(8, True, "moved")], "b", **sure))
    arrived = set(LETTERS) - {8}
    assert done.silent == len(arrived)
    assert bounced(book) == {8: True} | dict.fromkeys(arrived, False)
    book.record(batch([(1, True, "absent")], "c"))
    assert bounced(book) == {8: True, 1: True} | dict.fromkeys(arrived - {0}, False)
    assert book.mailings()[0].declaration.complete


def test_an_outcome_of_a_row_that_was_not_mailed_teaches_nothing(tmp_path: Path) -> None:
    """Who declares which rows went out contradicts a return of another row: it is kept, counted, and no evidence."""
    book = LabelStore(tmp_path)
    outcomes = [(0, True, "moved"), (8, True, "moved")]
    done = book.record(batch(outcomes, complete=True, sent=("send",)))
    assert done.unmailed == 1
    assert (bounced(book)[0], bounced(book)[8]) == (True, None)
    assert rows_of(book).filter(row_id=8)["said"].to_list() == [True]
    assert book.record(batch(outcomes, complete=True, sent=("send",))).frame.equals(done.frame)


def test_a_doubtful_letter_has_not_arrived(tmp_path: Path) -> None:
    book, sure = LabelStore(tmp_path), {"complete": True, "sent": ("all",)}
    doubtful = pl.DataFrame({"row_id": [9, 2], "letter": [9, 2]}, schema=PLACES)
    book.record(replace(batch([(8, True, None)], **sure), doubtful=doubtful))
    assert (bounced(book)[9], bounced(book)[2], bounced(book)[10]) == (None, None, False)
    book.record(batch([(10, False, None)], "b", **sure))
    assert (bounced(book)[9], bounced(book)[2]) == (None, None)
    book.record(batch([(9, False, None), (3, True, None)], "c", **sure))
    assert bounced(book)[9] is False
    assert 2 not in bounced(book)


def test_a_mailing_is_declared_in_one_way_unless_it_is_replaced(tmp_path: Path) -> None:
    for later in ({"returns_requested": False}, {"mail_class": "bulk"}):
        book = LabelStore(tmp_path / "".join(later))
        book.record(batch([(8, True, None)], mail_class="ordinary"))
        with pytest.raises(LabelError) as caught:
            book.record(batch([(9, True, None)], "b", **later))
        assert caught.value.code == "mailings.mailing_declared_otherwise"
        assert rows_of(book).height == 1
        book.record(batch([(9, True, None)], "b", **later), replace=True)
        [(name, value)] = later.items()
        assert getattr(book.mailings()[0].declaration, name) == value


def test_the_evidence_is_what_the_file_said_when_it_was_mailed(tmp_path: Path) -> None:
    """Evidence has its columns and dtypes; rows without a probability or of unread reasons are left out."""
    book = LabelStore(tmp_path)
    book.record(batch([(8, True, "moved"), (20, True, None), (21, True, None)]))
    later = batch([(8, True, "moved"), (9, True, None)], "b")
    book.record(replace(later, known=lambda rows: knowledge(rows, "9.9")))
    frame = book.evidence().collect()
    assert dict(frame.schema) == EVIDENCE_DTYPES | {"mailing": pl.String, "recorded": pl.Datetime("us", "UTC")}
    assert dict(frame.select("row_id", "model").iter_rows()) == {8: "2026.11.3", 9: "9.9"}
    assert book.evidence(unread=True).collect().filter("unread")["row_id"].to_list() == [21]
    assert book.evidence(["other"]).collect().is_empty()
    assert book.evidence([book.mailings()[0].id]).collect().height == 2
    assert LabelStore(tmp_path / "none").evidence().collect().is_empty()


def test_the_history_is_of_the_newest_mailing(tmp_path: Path) -> None:
    """moved, absent and delivered, as HISTORY_SCHEMA; other reasons say nothing and hide nothing."""
    book, old, new = LabelStore(tmp_path), date(2026, 3, 1), date(2026, 9, 1)
    assert book.history() is None
    book.record(batch([(8, True, "moved"), (9, True, "absent"), (10, True, "moved")], day=old, complete=True))
    book.record(batch([(8, False, None), (9, True, "closed"), (11, False, None)], "b", day=new, complete=True))
    history = book.history()
    assert history is not None
    frame = history.sort("b_no").collect()
    assert dict(frame.schema) == HISTORY_SCHEMA
    told = [("delivered", new), ("absent", old), ("moved", old), ("delivered", new)]
    assert [row[2:] for row in frame.iter_rows()] == told
    assert frame["b_no"].to_list() == [1_000_000_000 + row for row in (8, 9, 10, 11)]
    outcomes = book.outcomes().sort("b_no").collect().select("bounced", "bounce_reason")
    assert outcomes.rows() == [(False, None), (True, "closed"), (True, "moved"), (False, None)]


def test_a_damaged_book_file_is_named_by_all_that_reads_it(tmp_path: Path) -> None:
    book = LabelStore(tmp_path)
    path = book.record(batch([(8, True, None)])).path
    foreign = BytesIO()
    pl.DataFrame({"a": [1]}).write_parquet(foreign)
    for content in (b"", b"PAR1 nonsense", foreign.getvalue()):
        path.write_bytes(content)
        again = batch([(9, True, None)])
        for use in (book.mailings, lambda: book.record(again), book.evidence, book.history, book.outcomes):  # noqa: B023
            with pytest.raises(LabelError, match=r"run-20261005\.parquet: is damaged.*bansong label"):
                use()


def test_a_copy_of_a_book_file_is_not_learned_from_twice(tmp_path: Path) -> None:
    """It is named with the remedy; only where the right one is gone the copy may have its name."""
    book = LabelStore(tmp_path)
    path = book.record(batch([(8, True, None)])).path
    copy = path.with_name("run-20261005 (1).parquet")
    copy.write_bytes(path.read_bytes())
    for learn in (book.evidence, lambda: bs.calibrate(labels=tmp_path, today=DAY)):
        with pytest.raises(LabelError, match=r"\(1\)\.parquet: is a copy of run-20261005\.parquet"):
            learn()
    path.unlink()
    copy.rename(path)
    assert book.evidence().collect().height == 1


def _record(folder: Path, row: int) -> None:
    LabelStore(folder).record(batch([(row, True, None)], str(row)))


@pytest.mark.process
def test_processes_that_record_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each waits for the other: all labels are in the book."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_record, args=(tmp_path / "b", row)) for row in range(8, 11)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 3
    assert rows_of(LabelStore(tmp_path / "b"))["row_id"].to_list() == [8, 9, 10]
