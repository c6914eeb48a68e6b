"""The command ``bansong label``: record which letters of a mailing came back, and report what was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from dataclasses import replace as replaced
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack, cast

import msgspec
import polars as pl

from bansong.base import business_number
from bansong.base.after_fork import refuse_after_fork
from bansong.base.display import Shown, listed_counts
from bansong.base.errors import BansongError, LabelError, Problem, UsageError
from bansong.base.files import as_path, is_remote, variable
from bansong.base.messages import Listed, Option, Phrase, count_rows, current_language, gettext, gettext_of, ngettext
from bansong.base.option import take_options
from bansong.base.options import (
    ReadOptions,
    ServiceKeywords,
    ServiceOptions,
    check_keywords,
    service_options,
    shows_keywords,
)
from bansong.base.schema import Choice, CodeWord, role_code, role_word, seoul_day
from bansong.engine.risk.reasons import KNOWN_DTYPES
from bansong.engine.risk.reasons import parse_reasons as known_from
from bansong.engine.risk.scorecard import Scorecard
from bansong.engine.text import day_given
from bansong.history.labels import LabelStore, RecordResult
from bansong.history.letters import NAMING, locate, place_key
from bansong.history.mailings import (
    KINDS,
    OTHER_MAILING,
    LabelBatch,
    MailingMetadata,
    MailingTerms,
    MatchResult,
    OutcomeSource,
    UnusedOutcome,
    address_keys,
    find_candidates,
    letter_expr,
    match,
    name_actions,
    parse_terms,
    unused_outcomes,
    write_unused,
)
from bansong.history.outcomes import Outcomes, mailing_date, read_outcomes, refuse_future
from bansong.history.scorecards import candidate_scorecards
from bansong.labels.options import LabelKeywords, LabelOptions
from bansong.run.columns import keep_apart, label_target, write_labels
from bansong.run.manifest import LETTER_SCHEMA, OpenMailing, open_mailing

if TYPE_CHECKING:
    from bansong.labels.sender import SendReport

OUTCOMES_NOT_MATCHED: Final = Problem(
    "labels.outcomes_not_matched",
    "{name}: of {outcomes} none is of {mailing}; read were the columns {used}; its numbers are "
    "{numbers}, those of the mailed file {mailed_numbers}; {remedy}",
)
ACTION_NOT_FOUND: Final = Problem(
    "mailings.action_not_found", "{parameter}: {name} has no row with the action {strange!r}; it has {names}"
)
MAILING_DATE_NOT_FOUND: Final = Problem(
    "mailings.mailing_date_not_found", "{name}: none of its outcomes is of that day; its mailing dates are {days}"
)
OPTION_WITHOUT_SENDING: Final = Problem(
    "labels.option_without_sending", "{parameter} is for outcomes that are sent: give `send=True`"
)
OUTPUT_IN_STORE: Final = Problem(
    "labels.output_in_store", "{path}: is of the label store itself, which only `label` writes; give another file"
)
OUTPUT_IS_ENRICHED: Final = Problem(
    "labels.output_is_enriched", "{path}: is the enriched file itself; give another output"
)

# columns of the label store → columns of a labelled file
_LABELLED: Final = (
    pl.col("row_id"),
    pl.coalesce("said", "bounced").alias("bounced"),
    pl.coalesce("reason", "reason_code").alias("bounce_reason"),
    pl.col("returned").alias("bounced_at"),
)


@shows_keywords(LabelKeywords, (LabelOptions, ServiceOptions))
def label(outcomes: str | Path, **options: Unpack[LabelKeywords]) -> LabelReport:
    """Record the outcomes of one mailing: which letters came back, why and when.

    ``outcomes``: any table that :func:`bansong.enrich` reads. Its columns are found from the headers (roles ``b_no``,
    ``address``, ``bounced``, ``reason``, ``returned``, ``mailed``, ``row_id``, ``letter_id``, ``registered``, ``key``,
    ``recipient``, ``zipcode``; ``columns`` overrides). Without ``bounced``, each row means a returned letter.

    The mailing is named by ``run`` (the id of a run, or its manifest) or ``file`` (the enriched file, or its list of
    letters). ``sheet``, ``encoding``, ``json_path`` and ``delimiter`` are for reading ``outcomes``; those with
    ``file_`` in front are for reading ``file``. ``mailed``: the day of mailing (a date, or text as 2026-10-05), if
    ``outcomes`` have none. ``returns_requested``: whether undeliverable letters were to come back; required.
    ``complete``: all returns are in. ``sent``: the actions whose rows were mailed, or ``all``; with ``complete`` and
    ``returns_requested``, mailed rows without an outcome count as delivered.

    Outcomes are matched by ``row_id`` (from 0), letter_id, registered number, number and address, a number with one
    letter, the customer's key, or recipient and address; nothing is guessed. They are merged into the ``book`` (a
    folder, by default in the state directory); contradictions are listed and left out, unless ``replace``.
    ``output``: where the file is written with the columns ``bounced``, ``bounce_reason``, ``bounced_at`` (CSV in
    ``output_encoding``, by default the encoding of the file). ``unmatched``: a CSV of unusable outcomes.

    ``send``: also send each outcome once to the hosted service, to the job in which its row was bought; by default
    for engines ``batch`` and ``hybrid`` if the service's address is known. ``resend``: send refused and doubtful
    outcomes again; ``first_row``: number of a job's first row, if the service does not say. Other keywords: as for
    :func:`bansong.enrich`.

    Raises :class:`bansong.errors.LabelError`, :class:`bansong.errors.InputError`, :class:`bansong.errors.UsageError`:
    nothing was recorded. Raises :class:`bansong.errors.OutputError` for an output that cannot be written, perhaps
    after recording; the same call continues.
    """
    keywords = check_keywords(label, options)
    refuse_after_fork()
    asked = take_options(LabelOptions, keywords)
    return _record(as_path(outcomes), asked, cast(ServiceKeywords, keywords))


def _record(path: Path, asked: LabelOptions, service: ServiceKeywords) -> LabelReport:
    labelled, unmatched = (None if one is None else as_path(one) for one in (asked.output, asked.unmatched))
    outputs = _Outputs(labelled, unmatched, asked.output_encoding)
    book = asked.book
    store = book if isinstance(book, LabelStore) else LabelStore(None if book is None else Path(book))
    labelled_as = ReadOptions(
        None, asked.file_sheet, asked.file_encoding, asked.file_json_path, delimiter=asked.file_delimiter
    )
    key = {role_code(role): header for role, header in (asked.columns or {}).items()}.get("key")
    with open_mailing(asked.run, asked.file, labelled_as, besides=NAMING, key=key) as mailing:
        service_terms, notes = _service_terms(asked.send, mailing, service)
        outputs.check(path, mailing, store)
        read, terms = _read(path, asked, mailing.key.header if mailing.key else None)
        _check_actions(terms, mailing)
        outcomes = locate(read.frame, mailing.letters)
        matched = match(outcomes, find_candidates(mailing.letters, outcomes), pl.lit(terms.mailed))
        if matched.labels.is_empty():
            raise _no_match_error(read, mailing, matched)
        batch = _label_batch(read, mailing, matched, terms)
        recorded = store.record(batch, replace=asked.replace, dry_run=asked.dry_run)
        matched = _add_clashes(matched, recorded)
        report = _report(read, mailing, matched, recorded, notes, asked.dry_run)
        if asked.dry_run:
            return report
        try:  # before the output replaces the file that holds the lookups
            lookups = None if service_terms is None else _labels_with_lookups(mailing, recorded)
        except BansongError:  # sending is impossible, but the labels are recorded
            outputs.write(report, mailing, matched, recorded)
            raise
        report = outputs.write(report, mailing, matched, recorded)
    if service_terms is None or lookups is None:
        return report
    from bansong.labels.sender import send_labels

    sent = send_labels(
        lookups,
        mailing.path,
        terms=service_terms,
        mailed=recorded.declaration.mailed,
        resend=asked.resend,
        first_row=asked.first_row,
    )
    return replaced(report, sent=sent)


def _read(path: Path, asked: LabelOptions, key: str | None) -> tuple[Outcomes, MailingTerms]:
    today, mailed = day_given("today", asked.today) or seoul_day(), day_given("mailed", asked.mailed)
    read_as = ReadOptions(None, asked.sheet, asked.encoding, asked.json_path, delimiter=asked.delimiter)
    read = read_outcomes(path, read_as, asked.columns, mailed=mailed, key=key)
    day = mailing_date(read, mailed)
    terms = parse_terms(day, asked.returns_requested, asked.complete, asked.mail_class, asked.sent, today)
    refuse_future(read, today)
    return read, terms


def _labels_with_lookups(mailing: OpenMailing, recorded: RecordResult) -> pl.DataFrame:
    from bansong.labels.sender import labels_with_lookups

    certain = pl.col("said") | ~pl.col("bounced")  # a row without an outcome is never sent as arrived
    labels = recorded.frame.filter(certain, pl.col("said").is_not_null()).select(_LABELLED)
    return labels_with_lookups(labels, mailing.table, mailing.columns, mailing.prefix)


@dataclass(frozen=True, slots=True)
class _Outputs:
    labelled: Path | None
    unmatched: Path | None
    encoding: str | None

    def check(self, outcomes: Path, mailing: OpenMailing, store: LabelStore) -> None:
        """Refuse outputs that would replace an input other than the enriched file."""
        for path in (outcomes, mailing.path, self.labelled, self.unmatched):
            if path is not None and store.is_own(path):
                raise UsageError(OUTPUT_IN_STORE, path=path)
        keep_apart({"outcomes": outcomes}, {"output": self.labelled}, False)
        read = {"outcomes": outcomes, gettext("enriched file"): mailing.path, gettext("labelled file"): self.labelled}
        keep_apart(read, {"output": None, gettext("list (`unmatched=`)"): self.unmatched}, False)
        if self.labelled is not None:
            if is_remote(self.labelled) and self.labelled == mailing.path:  # no copy of the old object would be kept
                raise UsageError(OUTPUT_IS_ENRICHED, path=self.labelled)
            label_target(mailing.table, self.labelled, self.encoding)

    def write(
        self, report: LabelReport, mailing: OpenMailing, matched: MatchResult, recorded: RecordResult
    ) -> LabelReport:
        if self.unmatched is not None:
            write_unused(matched.listed, self.unmatched)
            report = replaced(report, unmatched=str(self.unmatched))
        if self.labelled is None:
            return report
        warnings = list(report.warnings)
        write_labels(
            mailing.table,
            self.labelled,
            recorded.frame.select(_LABELLED).filter(pl.col("bounced").is_not_null()),
            output_encoding=self.encoding,
            prefix=mailing.prefix,
            warned=warnings.append,
        )
        return replaced(report, output=str(self.labelled), warnings=tuple(warnings))


def _service_terms(
    send: bool | None, mailing: OpenMailing, service: ServiceKeywords
) -> tuple[ServiceOptions | None, tuple[str, ...]]:
    if send is False or (send is None and not mailing.has_jobs):
        if service:
            raise UsageError(OPTION_WITHOUT_SENDING, parameter=Option(next(iter(service))))
        return None, ()
    from bansong.client.address import ENV_BASE_URL, BaseUrl

    terms = service_options("batch", service)
    if send is None and not (terms.base_url or variable(ENV_BASE_URL)):
        note = Phrase(
            "the outcomes are not sent to the service: give `base_url=`, or set {env_base_url}",
            env_base_url=ENV_BASE_URL,
        )
        return None, (note,)
    # raises for a wrong address before anything is recorded
    BaseUrl.parse(terms.base_url, allow_http=terms.allow_http, known_as=terms.known_as)
    return terms, ()


def _check_actions(terms: MailingTerms, mailing: OpenMailing) -> None:
    if terms.sent is None or terms.sent == ("all",):
        return
    found = mailing.letters.select(pl.col("action").unique()).collect(engine="streaming")
    actions = found["action"].drop_nulls().sort()
    if strange := [action for action in terms.sent if action not in actions]:
        given, names = Option("sent", ",".join(terms.sent)), Listed(map(CodeWord, actions), ", ")
        wrong = CodeWord(strange[0])
        raise LabelError(ACTION_NOT_FOUND, parameter=given, name=mailing.name, strange=wrong, names=names)


def _no_match_error(read: Outcomes, mailing: OpenMailing, matched: MatchResult) -> LabelError:
    others = matched.listed.filter(pl.col("problem") == "other_mailing").height
    if others == matched.listed.height:
        days = ", ".join(map(str, read.frame["mailed_on"].drop_nulls().unique().sort().head(3)))
        return LabelError(MAILING_DATE_NOT_FOUND, name=read.name, days=days)
    lang = current_language()
    used = ", ".join(f"{choice.header!r} ({role_word(role, lang)})" for role, choice in read.columns.items())
    theirs = mailing.letters.select(pl.col("b_no").drop_nulls().head(3)).collect(engine="streaming")["b_no"]
    remedy = (
        Phrase("is it the right file (`file=`, `run=`), are these the right columns (`columns={'b_no': 'HEADER'}`)?")
        if "b_no" in mailing.columns
        else Phrase(
            "is it the right file (`file=`)? it has no business numbers, so its letters are found by letter_id, "
            "customer key, recipient and address, or row_id; if the outcomes have numbers alone, give the enriched file"
        )
    )
    return LabelError(
        OUTCOMES_NOT_MATCHED,
        name=read.name,
        outcomes=Phrase("{count:,} outcome", "{count:,} outcomes", count=read.frame.height),
        mailing=mailing.name,
        used=used,
        numbers=_first_numbers(read.frame["digits"]),
        mailed_numbers=_first_numbers(theirs),
        remedy=remedy,
    )


def _first_numbers(numbers: pl.Series) -> str:
    few = numbers.drop_nulls().unique(maintain_order=True).head(3)
    shown = few.to_frame("digits").select(business_number.format_expr(pl.col("digits")).alias("shown"))["shown"]
    return " ".join(shown) if few.len() else gettext("none")


def _label_batch(read: Outcomes, mailing: OpenMailing, matched: MatchResult, terms: MailingTerms) -> LabelBatch:
    now = datetime.now(UTC)
    source = OutcomeSource(read.sha256, read.path.name, now)
    metadata = MailingMetadata(
        id=f"{mailing.id}-{terms.mailed:%Y%m%d}",
        file=str(mailing.path),
        run_id=mailing.run_id,
        engine=mailing.engine,
        model=mailing.model,
        declaration=terms,
        sources=(source,),
        recorded_at=now,
    )
    cards = candidate_scorecards(mailing.model)

    def read_known(rows: pl.Series) -> pl.DataFrame:
        wanted = mailing.letters.join(rows.alias("row_id").to_frame().lazy(), on="row_id", how="semi")
        return _evidence_of(wanted, mailing, cards).collect(engine="streaming").with_columns(address_keys())

    def list_sent(terms: MailingTerms) -> pl.DataFrame:
        if not (terms.silence_is_delivery and terms.sent):
            return pl.DataFrame(schema={"row_id": pl.UInt32, "letter": pl.UInt32})
        place = place_key(pl.col("address"), pl.col("fixed_address")).hash().alias("place")
        rows = mailing.letters.select("row_id", "b_no", place, terms.was_sent().alias("sent"))
        # only a row with a number, or of an address list, could have been named by an outcome
        can_be_named = pl.col("b_no").is_not_null() | pl.lit(mailing.is_address_list)
        every = rows.filter(can_be_named).collect(engine="streaming").with_columns(letter_expr())
        return every.filter("sent").group_by("letter").agg(pl.col("row_id").min()).select("row_id", "letter")

    unplaced = _count_unplaced(mailing, matched) > 0
    return LabelBatch(metadata, matched.labels, matched.doubtful, read_known, list_sent, now, unplaced=unplaced)


def _count_unplaced(mailing: OpenMailing, matched: MatchResult) -> int:
    unplaced = matched.listed.filter(pl.col("target").is_null(), pl.col("problem") != "other_mailing")
    mistyped = unplaced.filter(pl.col("problem") == "letter_id_wrong")  # of a letter, but nobody knows which
    return unplaced.height if mailing.is_address_list else mistyped.height


def _evidence_of(letters: pl.LazyFrame, mailing: OpenMailing, cards: Sequence[Scorecard]) -> pl.LazyFrame:
    if mailing.is_bought:  # reasons of the service are not those of a scorecard
        nothing = [pl.lit(None, dtype).alias(name) for name, dtype in KNOWN_DTYPES.items() if name not in LETTER_SCHEMA]
        return letters.with_columns(*nothing, unread=pl.lit(True))
    versioned = letters.with_columns(pl.lit(mailing.model, pl.String).alias("model"))
    return known_from(versioned, "reasons", address="address", cards=cards)


def _add_clashes(matched: MatchResult, recorded: RecordResult) -> MatchResult:
    target = pl.col("target").is_in(recorded.clashing.implode())
    clashing = matched.matches.filter(target).with_columns(pl.lit("known_otherwise").alias("problem"))
    if clashing.is_empty():
        return matched
    others = matched.listed.join(clashing, on="place", how="anti")
    matches = matched.matches.filter(~target)
    labels = matched.labels.filter(~pl.col("row_id").is_in(recorded.clashing.implode()))
    return replaced(matched, matches=matches, labels=labels, listed=pl.concat([others, clashing]))


def _report(
    read: Outcomes,
    mailing: OpenMailing,
    matched: MatchResult,
    recorded: RecordResult,
    notes: tuple[str, ...],
    dry_run: bool,
) -> LabelReport:
    came = matched.labels.filter(pl.col("said"))
    codes = came["reason_code"].fill_null("none").value_counts(sort=True)
    others = came.filter(pl.col("reason_code") == "other")["reason"]
    frame = recorded.frame
    usable = pl.col("bounced").is_not_null() & pl.col("bounce_prob").is_not_null() & ~pl.col("unread")
    return LabelReport(
        outcomes=read.name,
        rows=read.rows,
        blank=read.blank,
        only_returns=read.only_returns,
        columns=read.columns,
        mailing=recorded.id,
        file=str(mailing.path),
        mailed_rows=mailing.rows,
        run_id=mailing.run_id,
        engine=mailing.engine,
        model=mailing.model,
        declaration=recorded.declaration,
        ways=matched.ways,
        repeated=matched.repeated,
        bounced=came.height,
        not_bounced=matched.labels.height - came.height,
        by_reason=dict(codes.iter_rows()),
        other_reasons=dict(others.drop_nulls().value_counts(sort=True).iter_rows()),
        new=recorded.new,
        known=recorded.known,
        replaced=recorded.replaced,
        silent=recorded.silent,
        unmailed=recorded.unmailed,
        unread=frame.filter("unread").height,
        usable=frame.filter(usable).height,
        book=str(recorded.path),
        listed=unused_outcomes(matched.listed),
        problems=dict(matched.listed.group_by("problem").len().sort("problem").iter_rows()),
        dry_run=dry_run,
        warnings=(*read.notes, *mailing.notes, *_warnings(read, mailing, matched, recorded), *notes),
    )


def _warnings(read: Outcomes, mailing: OpenMailing, matched: MatchResult, recorded: RecordResult) -> Iterator[str]:
    terms = recorded.declaration
    if read.only_returns:
        yield gettext_of(
            read, "{name} has no column that says whether a letter came back: each of its rows is one that did"
        )
    enriched = seoul_day(mailing.by.started.timestamp()) if mailing.by is not None else None
    if enriched is not None and enriched > terms.mailed:
        yield Phrase(
            "the file was enriched on {started:%Y-%m-%d}, after the mailing of {mailed}: what it says may "
            "not be what was known when the letters went out",
            started=enriched,
            mailed=terms.mailed,
        )
    if not terms.silence_is_delivery:
        incomplete = Phrase("the outcomes are not complete")
        yield Phrase(
            "{why}: that a letter did not come back does not mean that it arrived, so only returns are learned from",
            why=incomplete if terms.returns_requested else Phrase("returns were not requested"),
        )
    elif terms.sent is None:
        yield Phrase("rows without an outcome are not counted as delivered: say with `sent=` which rows were mailed")
    elif unplaced := _count_unplaced(mailing, matched):
        yield Phrase(
            "{count:,} outcome may be of any letter of the mailed file, so no row without an outcome counts as "
            "delivered: correct its letter_id, or name its row, from 0, in a column row_id",
            "{count:,} outcomes may be of any letter of the mailed file, so no row without an outcome counts as "
            "delivered: correct their letter_id, or name their rows, from 0, in a column row_id",
            count=unplaced,
        )


SHOWN: Final = 20
_REASONS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, repr=False)
class LabelReport(Shown):
    """The report of recording a table of outcomes. Displays as a table in a notebook and as text elsewhere.

    ``ways``: outcomes by the way they were matched to rows. ``bounced``, ``not_bounced``: labelled rows. ``by_reason``:
    returns by reason code (``none`` without one); ``other_reasons``: those of ``other`` by text. ``new``, ``known``,
    ``replaced``: labelled rows, compared with the store before. ``silent``: rows without an outcome, recorded as
    delivered. Learning leaves out ``unmailed`` (declared as not mailed) and ``unread`` (reasons of no known scorecard).
    ``listed``: unusable outcomes; ``problems``: their counts, with those of other mailings. ``usable``: rows of the
    mailing that learning can use now.
    """

    WIDTH: ClassVar[int] = 18

    outcomes: str
    rows: int
    blank: int
    only_returns: bool
    columns: Mapping[str, Choice]
    mailing: str
    file: str
    mailed_rows: int
    run_id: str | None
    engine: str | None
    model: str | None
    declaration: MailingTerms
    ways: Mapping[str, int]
    repeated: int
    bounced: int
    not_bounced: int
    by_reason: Mapping[str, int]
    other_reasons: Mapping[str, int]
    new: int
    known: int
    replaced: int
    silent: int
    unmailed: int
    unread: int
    usable: int
    book: str
    listed: tuple[UnusedOutcome, ...] = ()
    problems: Mapping[str, int] = field(default_factory=dict)
    unmatched: str | None = None
    output: str | None = None
    sent: SendReport | None = None
    dry_run: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """3 if outcomes could not be used, 5 if labels are still to be sent, else 0."""
        sending: int = self.sent.exit_code if self.sent is not None else 0
        return sending or (3 if self.listed else 0)

    def as_dict(self) -> dict[str, object]:
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        return values | {
            "columns": {role: asdict(choice) for role, choice in self.columns.items()},
            "declaration": msgspec.to_builtins(self.declaration),
            "listed": [asdict(one) for one in self.listed],
            "sent": self.sent.as_dict() if self.sent is not None else None,
            "warnings": list(map(str, self.warnings)),
        }

    def _describe(self) -> Iterator[tuple[str, str]]:
        yield from self._outcome_lines()
        yield from self._unused_lines()
        yield from self._book_lines()

    def _outcome_lines(self) -> Iterator[tuple[str, str]]:
        blank = gettext_of(self, ", {blank:,} blank") if self.blank else ""
        yield gettext("outcomes"), f"{self.outcomes}: {count_rows(self.rows)}{blank}"
        terms = _describe_terms(self.declaration)
        rows = count_rows(self.mailed_rows)
        yield gettext("mailing"), gettext_of(self, "{file}: {rows}, {terms}", rows=rows, terms=terms)
        ways = {gettext("by {way}", way=gettext(way)): count for way, count in self.ways.items()}
        yield gettext("matched"), listed_counts(ways)
        reasons = listed_counts({gettext(code): count for code, count in self.by_reason.items()})
        yield gettext("bounced"), f"{self.bounced:,} ({reasons})" if self.by_reason else f"{self.bounced:,}"
        if self.other_reasons:
            yield gettext("other reasons"), listed_counts(dict([*self.other_reasons.items()][:_REASONS_SHOWN]))
        yield gettext("not bounced"), f"{self.not_bounced:,}"
        if self.repeated:
            outcomes = ngettext("{count:,} outcome", "{count:,} outcomes", self.repeated)
            yield gettext("said again"), gettext("{outcomes} of a row that another one is of", outcomes=outcomes)

    def _unused_lines(self) -> Iterator[tuple[str, str]]:
        for kind, codes in KINDS.items():
            if count := sum(self.problems.get(code, 0) for code in codes):
                yield gettext(kind.replace("_", " ")), f"{count:,}"
        yield from (("", str(one)) for one in self.listed[:SHOWN])
        if len(self.listed) > SHOWN:
            rest = gettext("{count:,} more", count=len(self.listed) - SHOWN)
            yield "", rest if self.unmatched else gettext("{rest}; `unmatched='PATH'` writes them all", rest=rest)
        if others := self.problems.get(OTHER_MAILING):
            yield gettext("other mailings"), count_rows(others)

    def _book_lines(self) -> Iterator[tuple[str, str]]:
        kept = {gettext("new"): self.new, gettext("known before"): self.known, gettext("replaced"): self.replaced}
        yield gettext("would record") if self.dry_run else gettext("recorded"), listed_counts(kept)
        if self.silent:
            silent = ngettext("{count:,} mailed row", "{count:,} mailed rows", self.silent)
            yield gettext("silent"), gettext("{mailed_rows} without an outcome, taken as delivered", mailed_rows=silent)
        if self.unmailed:
            unmailed = ngettext("{count:,} outcome", "{count:,} outcomes", self.unmailed)
            left_out = gettext("{outcomes} of rows that `sent=` leaves out: not learned from", outcomes=unmailed)
            yield gettext("not mailed"), left_out
        if self.unread:
            rows = count_rows(self.unread)
            unread = gettext("{rows} of which no scorecard gave the reasons: not learned from", rows=rows)
            yield gettext("unread"), unread
        yield gettext("to learn from"), gettext("{rows} of this mailing", rows=count_rows(self.usable))
        if self.sent is not None:
            yield from ((gettext("service"), line) for line in self.sent.lines())
        paths = {gettext("unmatched in"): self.unmatched, gettext("output"): self.output, gettext("book"): self.book}
        yield from ((what, path) for what, path in paths.items() if path)

    def __repr__(self) -> str:
        return f"<bansong.LabelReport {self.mailing}: {self.bounced:,} bounced, {self.not_bounced:,} not>"


def _describe_terms(declaration: MailingTerms) -> str:
    actions = name_actions(declaration.sent or ())
    words = [
        gettext("mailed {mailed}", mailed=declaration.mailed),
        declaration.mail_class or "",
        gettext("returns requested") if declaration.returns_requested else gettext("returns not requested"),
        gettext("complete") if declaration.complete else gettext("partial"),
        gettext("sent: {actions}", actions=actions) if actions else "",
    ]
    return ", ".join(filter(None, words))
