"""Figures of a page, changes since the previous run, and masking of people's data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from pathlib import Path
from typing import Any, Final

import polars as pl

from bansong.base import business_number
from bansong.base.errors import BansongError
from bansong.base.files import private_folder
from bansong.base.publish import same_file
from bansong.base.schema import ACTIONS, BIZ_STATUSES, FILE, GRADES, ROW_STATUSES, WAITING
from bansong.engine.address.judge_regions import region_level
from bansong.engine.address.region_split import names_region
from bansong.engine.address.words import PROVINCES
from bansong.engine.overlays import address_key
from bansong.run import changes
from bansong.run.manifest import Enrichment, last_runs, open_mailing


class Markup(str):
    """HTML that is inserted into a page without escaping."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str) -> Markup:
    """Return an HTML element; text and attributes are escaped, :class:`Markup` is not; ``class_`` means ``class``."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Join parts of a page; text is escaped, :class:`Markup` is not."""
    return Markup("".join(child if isinstance(child, Markup) else escape(str(child)) for child in children))


_COMPANY = r"^(?:\s*(?:주식회사|유한회사|㈜|\((?:주|유|재|사)\)))*\s*"
_UNSPACED_REGION = f"^(?:{PROVINCES})[가-힣]*[시군구]"
# enough for 전북특별자치도; longer words are cut, since a whole address may be written as one word
_MAX_WORD_CHARACTERS = 7


def mask_number(number: pl.Expr) -> pl.Expr:
    """Mask ten digits as ``124-**-*****``."""
    return pl.concat_str(number.str.slice(0, 3), pl.lit("-**-*****"))


def mask_name(name: pl.Expr) -> pl.Expr:
    """Mask a name as ``삼○○``; a leading word for a company is dropped."""
    return pl.concat_str(name.str.replace(_COMPANY, "").str.slice(0, 1), pl.lit("○○"))


def mask_digits(text: pl.Expr) -> pl.Expr:
    """Mask each digit, as in ``지번 범어동 ***-*``."""
    return text.str.replace_all(r"\p{N}", "*")


def mask_address(address: pl.Expr) -> pl.Expr:
    """Mask an address: keep three words from the region on, with masked digits, and drop a name before it."""
    known = _masked_words(address).list.drop_nulls().list.join(" ")
    return pl.concat_str(known, pl.lit(" …")).str.strip_chars_start(" ")


def _words(address: pl.Expr) -> pl.Expr:
    return address.str.strip_chars().str.replace_all(r"\s+", " ").str.split(" ")


def _masked_words(address: pl.Expr) -> pl.Expr:
    # null for a word that is hidden
    word = pl.element()
    begins = names_region(word) | word.str.contains(_UNSPACED_REGION)
    place = begins.cast(pl.Int32).cum_max().cum_sum()  # 1 for the region's word, 0 before it
    shown = mask_digits(word).str.slice(0, _MAX_WORD_CHARACTERS)
    return _words(address).list.eval(pl.when(place.is_between(1, 3)).then(shown))


SHOWN: Final = 20  # rows in each list of a page

COLUMNS: Final = (  # columns that a page needs; missing ones are null
    *(FILE, "row", "row_id", "b_no", "name", "address", "biz_status", "bounce_prob", "grade", "action"),
    *("fixed_address", "reasons", "row_status"),
)
_COUNTED: Final = {"row_status": ROW_STATUSES, "biz_status": BIZ_STATUSES, "grade": GRADES, "action": ACTIONS}
_REASON: Final = r"^\[[^\]]+\] ([^(:→|]*\p{L}[^(:→|]*)"  # the first, up to a date in brackets, an address after a colon
_LABEL: Final = r"^\[(\S+)"  # of a reason that has no words so far: the rest may be private
_CHANGE: Final = r"\[address [+-][0-9]+\] [^|:]*: ([^|]*?) \(juso\)"  # difference between an address and its correction
_DAY: Final = r"\((?:registry|nts), ([0-9]{4}-[0-9]{2}-[0-9]{2})\)"
_MAX_REASON_CHARACTERS: Final = 60
_BATCH: Final = 100_000  # rows that are counted together
DIFFERENCES: Final = ("before", "after")  # of a correction: lists of texts, each with whether it changed
Words = list[str | None]
_HIDDEN: Final = "○○"
_EXPECTED: Final = pl.col("bounce_prob").sum()
_GROUP: Final = {
    "rows": pl.len().cast(pl.Int64),
    "expected": _EXPECTED,
    "send": (pl.col("action") == "send").sum().cast(pl.Int64),
    "waiting": pl.col("action").is_in(WAITING).sum().cast(pl.Int64),
    "do_not_send": (pl.col("action") == "do_not_send").sum().cast(pl.Int64),
}
_GROUPED: Final = ("reason", "region", FILE)
_TOTALS: Final = {  # aggregations over all rows; those of batches can be merged
    "rows": pl.len().cast(pl.Int64),
    "expected": _EXPECTED,
    "expected_sent": pl.col("bounce_prob").filter(pl.col("action") == "send").sum(),
    "dated": pl.col("day").count().cast(pl.Int64),
    "oldest": pl.col("day").min(),
    "newest": pl.col("day").max(),
    "corrected": pl.col("corrected").sum().cast(pl.Int64),
}


@dataclass(frozen=True, slots=True)
class PageFigures:
    """Counts, groups and lists of answered rows for a page."""

    rows: int
    counts: Mapping[str, Mapping[str, int]]
    expected: float  # letters expected back if every row were mailed
    expected_sent: float  # letters expected back if the rows with `send` were mailed
    dated: int  # rows whose status has a day
    oldest: str | None  # first of these days (ISO)
    newest: str | None
    corrected: int
    reasons: pl.DataFrame
    regions: pl.DataFrame
    files: pl.DataFrame  # counts of each input of a run over several
    worst: pl.DataFrame
    corrections: pl.DataFrame
    masked: bool  # whether the last two lists are masked


def collect_figures(answers: pl.LazyFrame, *, unmask: bool = False, first_row: int = 1) -> PageFigures:
    """Count and list answered rows in one streaming pass; the first row is shown with the number ``first_row``."""
    # Rows of several inputs have the columns ``file`` and ``row``, the number to show.
    # By batches, since one query with several counts would keep all rows in memory
    rows = _readable(answers, first_row)
    found = _tally(rows.clear().collect())
    for batch in rows.collect_batches(chunk_size=_BATCH, engine="streaming"):
        found = _merge(found, _tally(batch))
    by = {name: _in_order(found[name], known) for name, known in _COUNTED.items()}
    return PageFigures(
        **found["totals"].row(0, named=True),
        counts=by,
        reasons=found["reason"].drop_nulls("reason").sort("rows", "reason", descending=[True, False]).head(10),
        regions=found["region"].select("region", "rows", "expected"),
        files=found[FILE].drop_nulls(FILE).sort(FILE).with_columns(bounce_prob=pl.col("expected") / pl.col("rows")),
        worst=_list_rows(found["worst"], unmask),
        corrections=_list_rows(found["corrections"], unmask),
        masked=not unmask,
    )


def _readable(answers: pl.LazyFrame, first_row: int) -> pl.LazyFrame:
    names = answers.collect_schema().names()
    numbers = [] if "row" in names else [(pl.col("row_id").cast(pl.Int64) + first_row).alias("row")]
    missing = [pl.lit(None, pl.String).alias(name) for name in COLUMNS if name not in (*names, "row")]
    rows = answers.with_columns(*missing, *numbers).select(COLUMNS)
    texts = [name for name in COLUMNS if name not in ("row", "row_id", "bounce_prob")]
    return rows.with_columns(pl.col("bounce_prob").cast(pl.Float64), pl.col(texts).cast(pl.String))


def _tally(batch: pl.DataFrame) -> dict[str, pl.DataFrame]:
    rows = batch.with_columns(
        _is_corrected().alias("corrected"),
        _first_reason().alias("reason"),
        region_level(pl.col("address")).alias("region"),
        pl.col("reasons").str.extract(_DAY).alias("day"),
    )
    return {
        "totals": rows.select(**_TOTALS),
        **{name: rows.group_by(name).agg(pl.len().cast(pl.Int64).alias("rows")) for name in _COUNTED},
        **{name: rows.group_by(name).agg(**_GROUP) for name in _GROUPED},
        "worst": _pick_worst(rows.drop_nulls("bounce_prob").select(COLUMNS)),
        "corrections": rows.filter("corrected").select(COLUMNS).bottom_k(SHOWN, by="row_id"),
    }


def _merge(*tallies: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    found = {name: pl.concat([tally[name] for tally in tallies]) for name in tallies[0]}
    ends = {"oldest": pl.col("oldest").min(), "newest": pl.col("newest").max()}
    return {
        "totals": found["totals"].select(ends.get(name, pl.col(name).sum()) for name in _TOTALS),
        **{name: found[name].group_by(name).agg(pl.all().sum()) for name in (*_COUNTED, *_GROUPED)},
        "worst": _pick_worst(found["worst"]),
        "corrections": found["corrections"].bottom_k(SHOWN, by="row_id"),
    }


def _pick_worst(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.top_k(SHOWN, by=["bounce_prob", "row_id"], reverse=[False, True])


def _is_corrected() -> pl.Expr:
    fixed = pl.col("fixed_address").str.replace(r"\s*\([^()]*\)$", "")
    written = pl.col("address").str.replace(r"\s*\([^()]*\)$", "")
    return (address_key(fixed) != address_key(written)).fill_null(False)


def _first_reason() -> pl.Expr:
    reasons = pl.col("reasons").str
    said = pl.coalesce(reasons.extract(_REASON), reasons.extract(_LABEL)).str.replace_all(r"\p{N}{5,}", "…")
    return said.str.strip_chars().str.slice(0, _MAX_REASON_CHARACTERS)


def _in_order(table: pl.DataFrame, known: tuple[str, ...]) -> dict[str, int]:
    name, count = table.columns
    found: dict[str, int] = dict(table.drop_nulls(name).sort(name).select(name, count).iter_rows())
    return {word: found.pop(word, 0) for word in known} | found


def _list_rows(rows: pl.DataFrame, unmask: bool) -> pl.DataFrame:
    number = business_number.compact_expr(pl.col("b_no"))
    masked: dict[str, Any] = {
        "b_no": mask_number(number),
        "name": mask_name(pl.col("name")),
        "address": mask_address(pl.col("address")),
        "fixed_address": mask_address(pl.col("fixed_address")),
    }
    reason = pl.col("reasons").str.split(" | ").list.first() if unmask else _first_reason()
    change = pl.col("reasons").str.extract(_CHANGE)
    rows = rows.sort("bounce_prob", "row_id", descending=[True, False], nulls_last=True)
    return _with_differences(rows, unmask).with_columns(
        reason.alias("reason"),
        (change if unmask else mask_digits(change)).alias("change"),
        *([] if unmask else [value.alias(name) for name, value in masked.items()]),
    )


def _with_differences(rows: pl.DataFrame, unmask: bool) -> pl.DataFrame:
    # a hidden word is compared, too: a mask shows that it changed, and not to what
    sides = ("address", "fixed_address")
    words = rows.select(_words(pl.col(*sides)))
    shown = words if unmask else rows.select(_masked_words(pl.col(*sides)))
    pairs = zip(words.iter_rows(), shown.iter_rows(), strict=True)
    found = [_difference(*raw, *masked) if all(raw) else ([], []) for raw, masked in pairs]
    dtype = pl.List(pl.Struct({"text": pl.String, "changed": pl.Boolean}))
    return rows.with_columns(pl.Series(name, [one[at] for one in found], dtype) for at, name in enumerate(DIFFERENCES))


def _difference(before: Words, after: Words, shown_before: Words, shown_after: Words) -> tuple[list[Any], list[Any]]:
    keys, other_keys = ([str(word).strip(",()") for word in words] for words in (before, after))
    runs: tuple[list[Any], list[Any]] = ([], [])
    for kind, *ends in SequenceMatcher(None, keys, other_keys, autojunk=False).get_opcodes():
        changed = kind != "equal"
        for run, shown, (first, end) in zip(runs, (shown_before, shown_after), (ends[:2], ends[2:]), strict=True):
            texts = [word or (_HIDDEN if changed else "…") for word in shown[first:end]]
            text = " ".join(texts) if changed else re.sub("…( …)+", "…", " ".join(texts))
            run += [{"text": text, "changed": changed}] if text else []
    return runs


BESIDES: Final = ("name", "biz_status", "row_status", "fixed_zipcode")  # missing in letters, needed to compare
_SEEN, _KEY_HASH, _PART = "seen", "key_hash", "part"
_MAX_ROWS_COMPARED: Final = 250_000  # differing rows in memory at a time
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class RunChanges:
    """Changes of a run's answers since an earlier run."""

    file: Path  # output of the earlier run
    run: Enrichment | None
    counts: Mapping[str, int]  # rows by kind of change
    rows: pl.DataFrame  # some changed rows: `b_no`, `name`, `changes`, status and action before and now


def find_changes(
    after: pl.LazyFrame,
    source: str,
    run_id: str | None,
    *,
    earlier: Path | None = None,
    besides: Path | None = None,
    unmask: bool = False,
) -> RunChanges | None:
    """Compare a run's rows with those of an earlier run; ``None`` without an earlier run."""
    # ``earlier``: an enriched file, by default the output of the last run before ``run_id`` over the input ``source``,
    # if that file still exists and is not ``besides``.
    run, file = None, earlier
    if file is None:
        runs = last_runs(source, before=run_id)
        run = next((one for one in runs if besides is None or not same_file(Path(one.output), besides)), None)
        if run is None:
            return None
        file = Path(run.output)
    try:
        with open_mailing(run.id if run else None, file, besides=BESIDES) as mailing:
            counts, worst = _compare(_snapshot(mailing.letters), _snapshot(after))
            if not unmask:
                worst = worst.with_columns(b_no=mask_number(pl.col("b_no")), name=mask_name(pl.col("name")))
            return RunChanges(file, run or mailing.by, counts, worst)
    except BansongError:  # it is no enriched file, or was edited
        return None


def _snapshot(rows: pl.LazyFrame) -> pl.LazyFrame:
    # ``input`` is the row's number, zero-padded so that texts sort like numbers
    there = rows.collect_schema().names()
    texts = [name for name in (*changes.RECORD, *changes.ANSWER, "row_status") if name != "b_no"]
    cells = [pl.col(name).cast(pl.String) if name in there else pl.lit(None, pl.String).alias(name) for name in texts]
    number = business_number.compact_expr(pl.col("b_no").cast(pl.String)).alias("b_no")
    place = pl.col("row_id").cast(pl.String).str.zfill(_DIGITS).alias("input")
    record = rows.select(number, *cells, pl.col("bounce_prob").cast(pl.Float64), place)
    codes = changes.status_code_expr(pl.col("biz_status")).alias("biz_status")
    gone = pl.lit(None, pl.Date).alias(changes.GONE)
    key = changes.key_expr(changes.RECORD).alias(changes.KEY)
    return record.with_columns(key, codes, gone).select(changes.SNAPSHOT.names())


def _compare(before: pl.LazyFrame, after: pl.LazyFrame) -> tuple[Mapping[str, int], pl.DataFrame]:
    seen = pl.struct(changes.KEY, *changes.ANSWER, "row_status").hash().alias(_SEEN)
    hashes = [rows.select(pl.struct(changes.KEY).hash().alias(_KEY_HASH), seen) for rows in (before, after)]
    old, new = pl.collect_all(hashes, engine="streaming")
    moved = new.filter(~pl.col(_SEEN).is_in(old[_SEEN].implode()))[_KEY_HASH]
    gone = old.filter(~pl.col(_KEY_HASH).is_in(new[_KEY_HASH].implode()))[_KEY_HASH]
    keys = pl.concat([moved, gone]).unique()
    touched = pl.col(changes.KEY).pipe(lambda key: pl.struct(key).hash()).is_in(keys.implode())
    del old, new, moved, gone
    counts: dict[str, int] = dict.fromkeys(changes.CHANGES, 0)
    worst = pl.DataFrame(schema=changes.CHANGE_SCHEMA)
    with private_folder() as folder:
        sides = [rows.filter(touched) for rows in (before, after)]
        for was, now in _parts(sides, 1 + len(keys) // _MAX_ROWS_COMPARED, folder):
            known = changes.recognize(was, now)
            changed = changes.compare(known, changes.settle(now, known)).filter(pl.col(changes.CHANGE).list.len() > 0)
            counts = {kind: counts[kind] + count for kind, count in changes.count_kinds(changed).items()}
            worst = _first(pl.concat([worst, changed]))
    return counts, worst


def _parts(sides: list[pl.LazyFrame], parts: int, folder: Path) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    # all rows of a business are in one part, since edited rows are matched by the number
    if parts == 1:
        was, now = pl.collect_all(sides, engine="streaming")
        yield was, now
        return
    places = [folder / "before", folder / "after"]
    for rows, place in zip(sides, places, strict=True):
        to = pl.PartitionBy(place, key={_PART: pl.col("b_no").hash() % parts}, include_key=False)
        rows.sink_ipc(to, compression="lz4", mkdir=True, engine="streaming")
    for part in range(parts):
        was, now = (_read_part(place / f"{_PART}={part}") for place in places)
        yield was, now


def _read_part(folder: Path) -> pl.DataFrame:
    files = sorted(folder.glob("*")) if folder.is_dir() else []
    empty = pl.DataFrame(schema=changes.SNAPSHOT)
    return pl.concat([empty, *(pl.read_ipc(file) for file in files)]).sort("input")


def _first(changed: pl.DataFrame) -> pl.DataFrame:
    kinds, first = changes.CHANGES, pl.col(changes.CHANGE).list.first()
    order = first.replace_strict(kinds, range(len(kinds)), return_dtype=pl.Int8)
    return changed.sort(order, "input", maintain_order=True).head(SHOWN)
