"""The terms of a mailing: when and to whom it went, and whether silence means delivery."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

import msgspec
import polars as pl

from bansong.column_words import KOREAN_WORDS
from bansong.errors import LabelError, Problem
from bansong.labels.outcomes import SAYS_NOTHING
from bansong.translation import Option, Phrase, current_language

DATE_IN_FUTURE: Final = Problem(
    "mailings.date_in_future", "{parameter}: is in the future, so nothing of it can have come back yet"
)
DATE_TOO_EARLY: Final = Problem(
    "mailings.date_too_early", "{parameter}: is before {first_year}; give the day as 2026-10-05"
)
RETURNS_NOT_DECLARED: Final = Problem(
    "mailings.returns_not_declared",
    "say whether undeliverable letters were to come back: `returns_requested=True` (marked 반환, or "
    "registered mail) or `returns_requested=False`; it decides whether silence means delivered",
)
ACTIONS_MISSING: Final = Problem(
    "mailings.actions_missing", "{parameter}: names no action; give all, or actions as in send,confirm"
)
ACTIONS_CONTRADICTORY: Final = Problem(
    "mailings.actions_contradictory", "{parameter}: is either all, or a list of actions"
)
MAILING_DECLARED_OTHERWISE: Final = Problem(
    "mailings.mailing_declared_otherwise",
    "the mailing of {mailed} was declared before with {name} {before}, now with "
    "{now}; say the same, or give `replace=True` if the earlier was wrong",
)

ALL: Final = "all"
_KOREAN_ACTIONS: Final = {"전체": ALL} | {word: action for action, word in KOREAN_WORDS["action"].items()}
_FIRST_YEAR: Final = 2000


class MailingTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The terms of one mailing, as the user declares them.

    ``returns_requested``: undeliverable letters were to come back (bulk letters in Korea only if marked so).
    ``complete``: all returns are recorded. ``mail_class``: a word of the user's (``ordinary``, ``registered``,
    ``bulk``). ``sent``: the actions whose rows were mailed, or ``("all",)``; ``None`` if not said.
    """

    mailed: date
    returns_requested: bool
    complete: bool = False
    mail_class: str | None = None
    sent: tuple[str, ...] | None = None

    @property
    def silence_is_delivery(self) -> bool:
        """Whether a letter without an outcome has arrived."""
        return self.returns_requested and self.complete

    @property
    def tells_who_was_sent(self) -> bool:
        """Whether each row is known to be mailed or not, so that an outcome may contradict that."""
        return self.silence_is_delivery and self.sent is not None and ALL not in self.sent

    def certain_outcome(self) -> pl.Expr:
        """Return the certain outcome (Boolean, else null), from ``said`` and ``reason_code``.

        True: the letter came back, and the addressee did not refuse it. False: it did not, by an outcome or by silence,
        and it would have.
        """
        came = pl.col("said").fill_null(False)
        silent = pl.col("reason_code").is_in(SAYS_NOTHING).fill_null(False)
        return pl.when(came & ~silent).then(True).when(~came & pl.lit(self.silence_is_delivery)).then(False)

    def was_sent(self) -> pl.Expr:
        """Whether a row was mailed, by its ``action`` (Boolean)."""
        if self.sent is None:
            return pl.lit(False)
        return pl.lit(True) if ALL in self.sent else pl.col("action").is_in(self.sent).fill_null(False)

    def merge(self, later: MailingTerms, *, replace: bool) -> MailingTerms:
        """Merge with later terms of the same mailing: gaps are filled, complete stays complete.

        Raises :class:`LabelError` for a contradiction; with ``replace`` the later terms win.
        """
        if replace:
            return msgspec.structs.replace(
                later, mail_class=later.mail_class or self.mail_class, sent=later.sent or self.sent
            )
        for name, before, now in (
            (Phrase("returns requested"), self.returns_requested, later.returns_requested),
            (Phrase("mail class"), self.mail_class, later.mail_class),
            (Phrase("sent"), self.sent, later.sent),
        ):
            if before is not None and now is not None and before != now:
                raise LabelError(
                    MAILING_DECLARED_OTHERWISE,
                    mailed=self.mailed,
                    name=name,
                    before=_format_value(before),
                    now=_format_value(now),
                )
        return msgspec.structs.replace(
            self,
            complete=self.complete or later.complete,
            mail_class=self.mail_class or later.mail_class,
            sent=self.sent or later.sent,
        )


def parse_terms(
    mailed: date,
    returns_requested: bool | None,
    complete: bool,
    mail_class: str | None,
    sent: str | Sequence[str] | None,
    today: date,
) -> MailingTerms:
    """Return the checked terms of a mailing; raise :class:`LabelError`."""
    if mailed > today:
        raise LabelError(DATE_IN_FUTURE, parameter=Option("mailed", str(mailed)))
    if mailed.year < _FIRST_YEAR:
        raise LabelError(DATE_TOO_EARLY, parameter=Option("mailed", str(mailed)), first_year=_FIRST_YEAR)
    if returns_requested is None:
        raise LabelError(RETURNS_NOT_DECLARED)
    words = (mail_class or "").strip() or None
    return MailingTerms(mailed, returns_requested, complete, words, _parse_actions(sent))


def _parse_actions(sent: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if sent is None:
        return None
    items = sent.split(",") if isinstance(sent, str) else list(sent)
    actions = tuple(sorted({_KOREAN_ACTIONS.get(item.strip(), item.strip()) for item in items} - {""}))
    if not actions:
        raise LabelError(ACTIONS_MISSING, parameter=Option("sent", sent))
    if ALL in actions and len(actions) > 1:
        raise LabelError(ACTIONS_CONTRADICTORY, parameter=Option("sent", ",".join(actions)))
    return actions


def name_actions(actions: Sequence[str]) -> str:
    """Return actions, or :data:`ALL`, in the words of the current language."""
    korean = current_language() == "ko"
    words = {action: word for word, action in _KOREAN_ACTIONS.items()} if korean else {}
    return ", ".join(words.get(action, action) for action in actions)


def _format_value(value: object) -> object:
    if isinstance(value, tuple):
        return name_actions(value)
    if isinstance(value, bool):
        return Phrase("yes") if value else Phrase("no")
    return repr(value)
