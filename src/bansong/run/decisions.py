"""What people decided in an enriched file: kept by the next run, or mailed by `bansong letters`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import polars as pl
import polars.selectors as cs

from bansong.base.after_fork import refuse_after_fork
from bansong.base.display import Shown
from bansong.base.errors import BansongError, InputError, Notice, Problem, UsageError
from bansong.base.files import as_path, private_folder
from bansong.base.messages import Lang, Option, current_language, gettext
from bansong.base.options import ALL_SHEETS, ENGINE_KINDS, ReadKeywords, ReadOptions, check_keywords, shows_keywords
from bansong.base.remote import fetch_file
from bansong.base.schema import ACTIONS, ADDED_COLUMNS, DECIDED_MARKS, FILE, HEADERS, Choice, code_expr, word_of
from bansong.engine.address.attach import attach
from bansong.engine.records import DIGITS, ROW_ID
from bansong.engine.risk.reasons import AT_BEST, LEVEL, parse_reasons
from bansong.engine.text import postal_digits, without_space
from bansong.history.letters import non_blank
from bansong.run.accounting import kept_alert
from bansong.run.columns import keep_apart
from bansong.run.manifest import DECIDED, agreements, find_record, records_of, row_digests
from bansong.run.options import WriteOptions
from bansong.run.runner import AnswersOfAll
from bansong.run.side_files import SideFiles, WrittenSides
from bansong.run.survey import PreparedTable, columns_for_letters, prepare_table
from bansong.tables.detect import open_table, reading
from bansong.tables.table import KEPT, json_text

if TYPE_CHECKING:
    from bansong.engine.address.gazetteer import Gazetteer
    from bansong.run.table import TableRun

NOT_AN_OUTPUT: Final = Problem(
    "decisions.not_an_output", "{path}: has no column `action` of ours; give a file that `bansong enrich` wrote"
)
ACTIONS_UNKNOWN: Final = Problem(
    "decisions.actions_unknown",
    "{path}: these actions are unknown: {listed} ({count:,} in all); write {known}, or leave the cell empty",
)
ONE_SHEET_ONLY: Final = Problem(
    "decisions.one_sheet_only", "{path}: a list of letters is made of one sheet; name it with {option}"
)
SENT_BY_HAND: Final = Problem(
    "alert.sent_by_hand", "rows set to `send` by hand, against bansong's own answer: {rows} ({count:,} in all)"
)
CHANGED_SINCE: Final = Problem(
    "alert.changed_since",
    "rows to be sent whose number, name or address was changed since bansong checked them: {rows} ({count:,} in all); "
    "their letters go to `fixed_address`: correct that, or enrich the changed list again",
)
DECISIONS_LOST: Final = Problem(
    "alert.decisions_lost",
    "{path}: what people wrote in these rows was not kept, because number, name or address are not in the list as they "
    "were, or are there twice with different decisions: {rows} ({count:,} in all)",
)
DECISIONS_UNKNOWN: Final = Problem(
    "alert.decisions_unknown",
    "{path}: what bansong wrote there is not recorded on this machine, or its columns of number, name and address were "
    "left out (with {select}) or changed, so it is not known which cells people changed; at most cells that "
    "`row_note` marks were kept",
)
ZIPCODE_LEFT_OUT: Final = Problem(
    "alert.zipcode_left_out",
    "postal code left out, because the address was typed by hand: rows {rows} ({count:,} in all); enrich again with a "
    "gazetteer, which adds the codes that are certain, or type them into the list of letters",
)
ACTIONS_BLANK: Final = Problem(
    "alert.actions_blank",
    "answered rows whose `action` is blank get no letter: {rows} ({count:,} in all); if cells were merged, unmerge and "
    "fill them",
)

_KEY: Final = "decisions:key"
_WHOLE: Final = "decisions:whole"  # key of all of a row's cells
_OWN: Final = "decisions:own"  # our own action
_FLAGS: Final = {name: f"{DECIDED}{name}" for name in ("action", "fixed_address")}
_DECIDED: Final = {**_FLAGS, "fixed_zipcode": _FLAGS["fixed_address"]}  # the flag of each cell that people decide on
_IS_TYPED: Final = pl.col(_FLAGS["fixed_address"]).fill_null(False) & pl.col("fixed_address").is_not_null()
_MARK: Final = rf"(?:{'|'.join(DECIDED_MARKS.values())}): (.*)$"
_SHOWN: Final = 20


@contextmanager
def open_output(
    path: Path, read: ReadOptions, prefix: str, chosen: Mapping[str, Choice] | None = None
) -> Iterator[tuple[PreparedTable, pl.LazyFrame]]:
    """Open an enriched file as people left it; its rows have our columns under their names, with codes for words."""
    with fetch_file(path) as data, open_table(path, read, data=data.path) as table, reading(table):
        if chosen is not None:  # people may have added columns like those of the run
            headers = table.headers
            same = {role: one for role, one in chosen.items() if all(headers.count(p.header) == 1 for p in one.parts)}
            places = {role: one.spell(lambda p: f"#{headers.index(p.header) + 1}") for role, one in same.items()}
            read = replace(read, columns=places)
        prepared = prepare_table(table, read, WriteOptions(prefix=prefix), ENGINE_KINDS["local"])
        nine = prepared.earlier.nine
        if "action" not in nine:
            raise InputError(NOT_AN_OUTPUT, path=path)
        cells = {name: pl.col(f"c{nine[name]}") if name in nine else pl.lit(None, pl.String) for name in ADDED_COLUMNS}
        texts = {name: code_expr(non_blank(cell), name) for name, cell in cells.items() if name != "reasons"}
        texts["fixed_zipcode"] = postal_digits(texts["fixed_zipcode"])
        yield prepared, prepared.rows.with_columns(reasons=cells["reasons"], **texts)


@dataclass(frozen=True, slots=True)
class Decisions:
    """What people wrote into an earlier output, and once a run has applied it, what the run reports of it."""

    path: Path
    key: pl.Expr  # of the new rows
    rows: pl.DataFrame  # by key: which cells people decided on, their values, and the cells of added columns
    columns: Mapping[str, str]  # headers that people added, by their name in `rows`
    lost: tuple[int, ...]  # numbers of the rows whose decisions were not kept
    known: bool  # whether it is recorded what bansong wrote
    notes: tuple[Notice, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    sent_by_hand: tuple[int, ...] = ()  # numbers of rows

    def apply(self, answers: pl.LazyFrame, lang: Lang) -> pl.LazyFrame:
        """Put what people wrote in place of the answers, and mark it in ``row_note``."""
        rows = answers.with_columns(self.key.alias(_KEY), pl.col("action").alias(_OWN))
        rows = rows.join(self.rows.lazy(), on=_KEY, how="left", maintain_order="left").drop(_KEY)
        words = [pl.when(flag).then(pl.lit(HEADERS[lang][name])) for name, flag in _FLAGS.items()]
        mark = pl.lit(f"{DECIDED_MARKS[lang]}: ") + pl.concat_str(words, separator=", ", ignore_nulls=True)
        note = pl.concat_str("row_note", mark, separator="; ", ignore_nulls=True)
        return rows.with_columns(
            *(pl.when(flag).then(f"decisions:{name}").otherwise(name).alias(name) for name, flag in _DECIDED.items()),
            pl.when(pl.any_horizontal(_FLAGS.values())).then(note).otherwise("row_note").alias("row_note"),
        ).with_columns(pl.when(_IS_TYPED.not_()).then(pl.col("^zipcode$")))

    def tally(self) -> list[pl.Expr]:
        """Return aggregations over the applied rows, for :meth:`after`."""
        by_hand = pl.col(_FLAGS["action"]) & (pl.col("action") == "send") & pl.col(_OWN).ne_missing("send")
        return [pl.col(*_FLAGS.values()).sum(), pl.col(ROW_ID).filter(by_hand).implode().alias(_OWN)]

    def after(self, tallied: Mapping[str, Any], first_row: int) -> Self:
        counts = {name: int(tallied[flag]) for name, flag in _FLAGS.items()}
        sent = tuple(row + first_row for row in tallied[_OWN])
        return replace(self, rows=self.rows.clear(), counts=counts, sent_by_hand=sent)

    def as_dict(self) -> dict[str, object]:
        found = {"path": str(self.path), **self.counts, "columns": [*self.columns.values()], "lost": [*self.lost]}
        return found | {"sent_by_hand": [*self.sent_by_hand], "known": self.known}

    def alerts(self) -> Iterator[Notice]:
        if self.sent_by_hand:
            yield Notice(SENT_BY_HAND, **_list_rows(self.sent_by_hand))
        if self.lost:
            yield Notice(DECISIONS_LOST, path=self.path, **_list_rows(self.lost))
        if not self.known:
            yield Notice(DECISIONS_UNKNOWN, path=self.path, select=Option("select"))
        yield from self.notes

    def lines(self) -> list[tuple[str, str]]:
        words = HEADERS[current_language()]
        found = [f"{words[name]} {count:,}" for name, count in self.counts.items() if count]
        if not (listed := ", ".join([*found, *self.columns.values()])):
            return []
        return [(gettext("kept by hand"), gettext("{listed} (from {path})", listed=listed, path=self.path))]


def _list_rows(rows: tuple[int, ...]) -> dict[str, Any]:
    listed = ", ".join(f"{row:,}" for row in rows[:_SHOWN]) + (" …" if len(rows) > _SHOWN else "")
    return {"rows": listed, "count": len(rows)}


def read_decisions(path: Path, run: TableRun, read: ReadOptions, prefix: str, *, named: bool) -> Decisions | None:
    """Read what people wrote into an earlier output of a table; raise for another file only if it was ``named``."""
    try:
        with open_output(path, read, prefix, run.prepared.chosen) as (earlier, found):
            added, common = _other_columns(earlier, run.prepared)
            own = {f"own:{name}": digest for name, digest in row_digests(found.collect_schema().names()).items()}
            keys = {_KEY: _key_of(found), _WHOLE: _key_of(found, common)}
            left = found.select(ROW_ID, "row_note", *_DECIDED, *added, **keys, **own).collect()
    except BansongError:
        if named:
            raise
        if run.recorded is None or not records_of(run.recorded):  # no output of ours
            return None
        texts, flags = (f"decisions:{name}" for name in _DECIDED), _FLAGS.values()
        none = dict.fromkeys([_KEY], pl.UInt64) | dict.fromkeys(flags, pl.Boolean) | dict.fromkeys(texts, pl.String)
        return Decisions(path, pl.lit(0, pl.UInt64), pl.DataFrame(schema=none), {}, (), known=False)
    record, headers = find_record(left, None if named else run.recorded, prefix="own:")
    added = {id_: header for id_, header in added.items() if header not in headers and (named or record is not None)}
    left = left.with_columns(cs.datetime().dt.to_string("%Y-%m-%d %H:%M:%S"))
    left = left.with_columns(cs.temporal().cast(pl.String))
    decided = _find_decided(left, record, [*added])
    # rows with one key that differ are told apart by all cells
    differ, plain = pl.col("whole").n_unique().over(_KEY), _key_of(run.rows)
    unlike = decided.filter(differ > 1)[_KEY].unique().implode()
    decided = decided.with_columns(pl.when(differ > 1).then(_WHOLE).otherwise(_KEY).alias(_KEY))
    key = pl.when(plain.is_in(unlike)).then(_key_of(run.rows, common.values())).otherwise(plain)
    there = pl.col(_KEY).is_in(run.rows.select(key).collect(engine="streaming").to_series().implode())
    kept = decided.filter(pl.col("kept") & (differ == 1) & there).unique(_KEY)
    lost = decided.filter(pl.col("kept") | pl.col("strange")).join(kept, on=_KEY, how="anti")
    is_other_list = decided.filter(there).is_empty()
    names = {id_: f"{KEPT}+{place}" for place, id_ in enumerate([] if is_other_list else added, 1)}
    kept = _with_codes(kept, run.engine.local.gazetteer)
    bare = kept.filter(_IS_TYPED, pl.col("fixed_zipcode").is_null())[ROW_ID].sort() + earlier.table.first_row
    kept = kept.select(_KEY, *_FLAGS.values(), *_DECIDED, *names)
    kept = kept.rename({name: f"decisions:{name}" for name in _DECIDED} | names)
    columns, first_row = {name: added[id_] for id_, name in names.items()}, earlier.table.first_row
    wrong = decided.filter(pl.col(_FLAGS["action"]), ~pl.col("action").is_in(ACTIONS))
    notes = [Notice(ACTIONS_UNKNOWN, **_list_unknown(wrong, path, first_row, run.prepared.lang))] if len(wrong) else []
    notes += [Notice(ZIPCODE_LEFT_OUT, **_list_rows(tuple(bare)))] if len(bare) else []
    if not named and record is not None and kept.is_empty() and lost.is_empty():
        return None
    return Decisions(path, key, kept, columns, tuple(lost[ROW_ID] + first_row), record is not None, (*notes,))


def _with_codes(decided: pl.DataFrame, gazetteer: Gazetteer | None) -> pl.DataFrame:
    # the postal codes of typed addresses without one, where they are certain
    asked = decided.lazy().filter(_IS_TYPED, pl.col("fixed_zipcode").is_null())
    asked = asked.select(_KEY, address="fixed_address", zipcode=pl.lit(None, pl.String))
    found = attach(asked, gazetteer, "en").filter(pl.col("match_level") == "exact").select(_KEY, "fixed_zipcode")
    return decided.update(found.collect(), on=_KEY)


def _list_unknown(wrong: pl.DataFrame, path: Path, first_row: int, lang: Lang) -> dict[str, Any]:
    rows, known = wrong[ROW_ID] + first_row, ", ".join(word_of(one, lang) for one in ACTIONS)
    shown = zip(rows[:_SHOWN], wrong["action"], strict=False)
    listed = ", ".join(gettext("row {row}: {choice!r}", row=row, choice=word) for row, word in shown)
    return {"path": path, "count": wrong.height, "rows": rows.to_list(), "listed": listed, "known": known}


def _other_columns(earlier: PreparedTable, prepared: PreparedTable) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers of the columns that only the earlier table has, and the names of the others in both tables."""
    theirs = [place for place in range(len(earlier.table.headers)) if place not in earlier.earlier.places]
    headers = {f"c{place}": header for place in theirs if (header := earlier.table.headers[place])}
    names = {header: name for name, header in prepared.layout if name == FILE}  # of merged inputs
    names |= {header: f"c{place}" for place, header in enumerate(prepared.table.headers)}
    common = {id_: names[header] for id_, header in headers.items() if header in names}
    return {id_: header for id_, header in headers.items() if id_ not in common}, common


def _key_of(rows: pl.LazyFrame, more: Iterable[str] = ()) -> pl.Expr:
    # as jobs know rows again: number, name and address without spaces
    there = rows.collect_schema()
    cells = {name: pl.col(name).cast(pl.String) for name in ("b_no", "name", "address") if name in there}
    if DIGITS in there:
        cells["b_no"] = pl.coalesce(DIGITS, cells["b_no"])
    cells |= {name: pl.col(name).cast(pl.String) for name in more if not there[name].is_nested()}
    return without_space(pl.concat_str([cell.fill_null("") for cell in cells.values()], separator="\x1f")).hash()


def _find_decided(left: pl.DataFrame, record: pl.DataFrame | None, added: list[str]) -> pl.DataFrame:
    """Add whether people decided on cells and wrote anything to be ``kept``; unrecorded rows are ``strange``."""
    marks = pl.col("row_note").str.extract(_MARK, 1).fill_null("")
    marked = {name: marks.str.contains_any([words[name] for words in HEADERS.values()]) for name in _FLAGS}
    flags, strange, has_old_code = marked, pl.lit(False), pl.lit(False)
    if record is not None:
        known, same = agreements(record, prefix="own:")
        flags = {name: pl.when(known).then(~same[name]).otherwise(mark) for name, mark in marked.items()}
        strange = ~known & pl.col("action").is_not_null()
        has_old_code = ~same["address"] & same["zipcode"] if "zipcode" in same else has_old_code  # not in older records
    # an emptied action asks for ours again; an emptied address is a decision for the one that was given
    flags["action"] &= pl.col("action").is_not_null()
    rows = left.with_columns(flag.alias(_FLAGS[name]) for name, flag in flags.items())
    rows = rows.with_columns(pl.when(~has_old_code).then("fixed_zipcode"))
    nested = {id_ for id_ in added if left[id_].dtype.is_nested()}
    texts = [json_text(pl.col(id_)).alias(id_) if id_ in nested else pl.col(id_).cast(pl.String) for id_ in added]
    filled = [non_blank(text).is_not_null() for text in texts]
    theirs = [pl.when(flag).then(name).alias(f"decisions:{name}") for name, flag in _DECIDED.items()]
    whole = pl.struct(*_FLAGS.values(), *theirs, *texts).hash()
    kept = pl.any_horizontal(*_FLAGS.values(), *filled)
    return rows.with_columns(kept.alias("kept"), strange.alias("strange"), whole.alias("whole"))


@dataclass(frozen=True, slots=True, repr=False)
class LettersReport(Shown):
    """The outcome of :func:`letters`: counts of letters, and the rows that people set to ``send``."""

    path: str
    columns: Mapping[str, Choice]
    written: WrittenSides
    sent_by_hand: tuple[int, ...]  # numbers of rows
    warnings: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """3 if an earlier list was kept, because the new one would be empty, else 0."""
        return 3 if self.written.lacks_letters else 0

    def as_dict(self) -> dict[str, object]:
        by_hand, warnings = [*self.sent_by_hand], [*map(str, self.warnings)]
        return {"input": self.path, **self.written.as_dict(), "sent_by_hand": by_hand, "warnings": warnings}

    def _describe(self) -> list[tuple[str, str]]:
        return [(gettext("input"), self.path), *self.written.lines()]


@shows_keywords(ReadKeywords, (ReadOptions,))
def letters(
    file: str | Path,
    output: str | Path,
    *,
    letter_columns: Sequence[str] = (),
    letter_cost: float | None = None,
    allow_empty: bool = False,
    prefix: str = "",
    **options: Unpack[ReadKeywords],
) -> LettersReport:
    """Write the list for the mail house from an enriched file as people left it.

    ``file``: an output of :func:`enrich`, also sorted, filtered, with other columns, without some rows; the actions,
    corrected addresses and names in it count. ``output``, ``letter_columns``, ``letter_cost``, ``allow_empty``: as
    ``letters`` and so on of :func:`enrich`. ``prefix``, ``sheet``, …: how the file was made, and is read.

    Raises :class:`InputError` for a file without our actions, or with unknown ones, and :class:`OutputError`.
    """
    refuse_after_fork()
    check_keywords(letters, options)
    path, wanted = as_path(file), WriteOptions(letters=output, letter_cost=letter_cost, allow_empty=allow_empty)
    sides = SideFiles.of_run(wanted)
    if not isinstance(options.get("sheet"), str | None) or options.get("sheet") == ALL_SHEETS:
        raise UsageError(ONE_SHEET_ONLY, path=path, option=Option("sheet", "NAME"))
    keep_apart({"input": path}, {"letter list": sides.letters}, in_place=False)
    with private_folder() as folder, open_output(path, ReadOptions(**options), prefix) as (prepared, rows):
        first_row, kept = prepared.table.first_row, AnswersOfAll(folder, sides)
        rows, noted = _without_old_codes(rows)
        carried, lacking = columns_for_letters(prepared, letter_columns)
        rows = rows.with_columns(pl.col(id_).cast(pl.String).alias(name) for name, id_ in carried.items())
        answers = parse_reasons(
            kept.keep(rows.with_columns(pl.col("row_status").fill_null("verified")), "", first_row), "reasons"
        )
        sent = answers.filter(pl.col("action") == "send", ~_may_be_ours()).select(pl.col(ROW_ID) + first_row)
        wrong = answers.filter(~pl.col("action").is_in(ACTIONS)).select(ROW_ID, "action").collect()
        if wrong.height:
            raise InputError(ACTIONS_UNKNOWN, **_list_unknown(wrong, path, first_row, prepared.lang))
        by_hand, written = tuple(sent.collect().to_series()), kept.publish({}, complete=True)
    assert written is not None  # noqa: S101 - nothing failed
    alerts = [Notice(SENT_BY_HAND, **_list_rows(by_hand))] if by_hand else []
    alerts += [Notice(problem, **_list_rows(tuple(one + first_row))) for problem, one in noted.items() if len(one)]
    alerts += [*written.alerts, *(kept_alert(*one) for one in written.kept.items())]
    return LettersReport(str(path), prepared.chosen, written, by_hand, (*alerts, *prepared.table.notes, *lacking))


def _without_old_codes(rows: pl.LazyFrame) -> tuple[pl.LazyFrame, dict[Problem, pl.Series]]:
    # without postal codes of other addresses; and the rows that people changed in a way that needs a look
    own = {f"own:{name}": digest for name, digest in row_digests(rows.collect_schema().names()).items()}
    left = rows.select(ROW_ID, "row_note", "grade", "biz_status", *_DECIDED, **own).collect()
    record, _ = find_record(left, None, prefix="own:")
    known = pl.lit(True) if record is None else agreements(record, prefix="own:")[0]
    decided, bare = _find_decided(left, record, []), pl.col("fixed_zipcode").is_null()
    other, none = (decided.filter(which)[ROW_ID].implode() for which in (_IS_TYPED, bare))
    codes = pl.when(~pl.col(ROW_ID).is_in(other)).then(pl.col("^zipcode$"))
    answered = pl.any_horizontal(pl.col("grade", "biz_status").is_not_null())
    return rows.with_columns(codes, pl.when(~pl.col(ROW_ID).is_in(none)).then("fixed_zipcode")), {
        CHANGED_SINCE: left.filter(~known, pl.col("fixed_address").is_not_null(), action="send")[ROW_ID],
        ZIPCODE_LEFT_OUT: decided.filter(_IS_TYPED, bare, action="send")[ROW_ID],
        ACTIONS_BLANK: left.filter(answered, pl.col("action").is_null())[ROW_ID],
    }


def _may_be_ours() -> pl.Expr:
    # whether grade, status and reasons allow the action `send`; a scorecard may not lift these limits
    limited = [pl.col(f"{LEVEL}{feature}").cast(pl.String) == level for feature, level in AT_BEST]
    sure = pl.col("biz_status").is_in(["closed", "unknown"]).not_().fill_null(True)
    return pl.col("grade").is_in(["A", "B"]).fill_null(False) & sure & ~pl.any_horizontal(limited).fill_null(False)
