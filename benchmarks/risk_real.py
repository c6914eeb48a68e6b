"""Real outcomes as a stand-in for bounced letters: which animal hospitals of a public register closed afterwards.

    pip install scikit-learn lightgbm
    python benchmarks/risk_real.py [--years 3 1] [--all-before] [--draws 1000]

Needs the shared evaluation data. Nobody publishes which letters came back, but a letter to a business that has closed
mostly does. For a day T and a horizon of H years, the rows are the hospitals open on T; *bounced* are those that
closed in the H years after. A model is fitted to what had happened by T (the hospitals open on T - H, and which of
them closed by T; with ``--all-before`` also the windows before), and then ranks those open on T. Nothing that happened
after T is an input.

Of what the scorecard looks at, the register knows three things as of T: how long the licence had been held, the
province, and whether another hospital had been licensed at the same lot by then (here two are a crowd: one trade only).

The rate of closing within H years is not a bounce rate, so the intercept is freed (`FREE`) in every use of the
scorecard, and the rate of false bounces e0 is held at 0; all else stays as bansong has it. Addresses are read, never
printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import risk_baselines

from bansong.engine.address import parse
from bansong.engine.risk.features import levels
from bansong.engine.risk.reasons import FEATURES, LEVEL, LEVEL_DTYPES
from bansong.engine.risk.scorecard import Scorecard
from bansong.learning.fit import Priors, count_patterns, design, expert_points, fit_points
from bansong.learning.report import Calibration, calibration

Array = np.ndarray[Any, np.dtype[Any]]
Model = Callable[[pl.DataFrame, pl.DataFrame, Scorecard], Array]
"""(evidence to learn from, evidence to judge, the expert's scorecard) → probabilities."""

REGISTER = Path(__file__).parents[2] / "shared" / "data" / "address" / "localdata_vet_half.csv"
LAST = date(2022, 2, 28)
"""The register's last day: nothing later is known of any row."""
FIRST = date(2004, 2, 28)
"""The first T - H: few closures before 2003 are in the register, so earlier windows would lack them."""

FREE = {"shift": 5.0, "false_bounces": (1.0, 1e6)}
"""How the priors differ from bansong's: any intercept, and closures that the register tells are no false bounces."""
EXPERT_ONLY = {"slope": 1e-4, "others": 1e-4, "delta": {}, "ceiling": 1e-4}
"""With these the expert's points stay as they are."""

PROVINCES = (
    "서울특별시 부산광역시 대구광역시 인천광역시 대전광역시 울산광역시 세종특별자치시 경기도 강원특별자치도 "
    "충청북도 충청남도 전북특별자치도 전남광주통합특별시 경상북도 경상남도 제주특별자치도"
)
REGIONS = dict(zip(PROVINCES.split(), FEATURES["region"], strict=True))
"""A province by the name that the grammar gives it → its level."""

LEAKS = {
    "road address missing": pl.col("도로명전체주소") == "",
    "lot address missing": pl.col("소재지전체주소") == "",
    "postal code not of five digits": pl.col("도로명우편번호").str.len_chars() != 5,
    "lot written without the word 번지": ~pl.col("소재지전체주소").str.contains("번지"),
    "year of the last change of the row": pl.col("최종수정시점").str.slice(0, 4).cast(pl.Int32),
}
"""Columns that were written after T, and partly because of the closure. Shown as a warning, used by no model."""


@dataclass(frozen=True)
class Window:
    """One T: the evidence to learn from, the evidence to be judged by, and what leaks into either."""

    cut: date
    train: pl.DataFrame
    test: pl.DataFrame


# --- what the register says --------------------------------------------------------------------------------------


def raw() -> pl.DataFrame:
    """The register as it stands, every cell a text."""
    if not REGISTER.is_file():
        sys.exit(f"skipped: the shared evaluation data is not at {REGISTER.parent}")
    return pl.read_csv(REGISTER, infer_schema=False).fill_null("")


def register(rows: pl.DataFrame) -> pl.DataFrame:
    """Per hospital: ``hospital`` (its line), ``opened``, ``closed`` (Date), ``region``, ``place`` (String), `LEAKS`.

    Hospitals that ended on a day that nobody wrote down are left out. The province is the one of the lot address, or of
    the road address where there is none: it is the same in both, so it does not tell which of them is missing. The
    district is no part of ``place``: addresses written long ago name districts that have other names today, and
    whether an address was written again depends on whether the business lived.
    """
    dated = rows.with_row_index("hospital").with_columns(
        opened=pl.col("인허가일자").str.to_date("%Y%m%d"),
        closed=pl.col("폐업일자").str.to_date("%Y%m%d", strict=False),
    )
    lot = parsed(rows["소재지전체주소"])
    road = parsed(rows["도로명전체주소"]).select(road_sido="sido")
    place = pl.concat_str(
        "sido", *(pl.col(part).fill_null("") for part in ("emd", "lot_dong")), "san", "lot_main", "lot_sub",
        separator="|",
    )  # fmt: skip
    known = pl.concat([dated, lot.select("sido", place=place), road], how="horizontal")
    known = known.filter(pl.col("closed").is_not_null() | pl.col("영업상태구분코드").is_in(["01", "02"]))
    region = pl.coalesce("sido", "road_sido").replace_strict(REGIONS, default=None)
    return known.select("hospital", "opened", "closed", "place", region=region, **LEAKS)


def parsed(addresses: pl.Series) -> pl.DataFrame:
    frame = pl.LazyFrame({"address": addresses}).with_columns(zipcode=pl.lit(None, pl.String))
    return parse.parse(frame).collect()


def evidence(known: pl.DataFrame, cut: date, years: int, card: Scorecard) -> pl.DataFrame:
    """The hospitals open on ``cut`` as evidence: what was known of each then, and whether it closed in the years after.

    The columns of :data:`~bansong.engine.risk.reasons.LEVEL_DTYPES`, ``score`` (Int32), ``bounced`` (Boolean),
    ``hospital``, and `LEAKS`. Of the rows only what is dated up to ``cut`` is read, but for ``bounced``.
    """
    until = after(cut, years)
    if until > LAST:
        raise ValueError(f"the register ends on {LAST}: what closed by {until} is not known")
    licensed = known.filter(pl.col("opened") <= cut).with_columns(at_place=pl.len().over("place"))
    still_open = licensed.filter(pl.col("closed").is_null() | (pl.col("closed") > cut))
    possible = levels(cut, registry=True, gazetteer=False)["age"]
    held = {
        "status": pl.lit("active"),
        "age": pl.coalesce(pl.when(holds).then(pl.lit(level)) for level, holds in possible.items()),
        "form": pl.lit("lot_number"),
        "place": pl.when(pl.col("place").is_not_null() & (pl.col("at_place") > 1)).then(pl.lit("crowded")),
        "region": pl.col("region"),
    }
    found = still_open.select(
        "hospital",
        (pl.col("closed") <= until).fill_null(False).alias("bounced"),
        *LEAKS,
        *(
            held.get(name.removeprefix(LEVEL), pl.lit(None)).cast(dtype).alias(name)
            for name, dtype in LEVEL_DTYPES.items()
        ),
    )
    score = card.base.points + design(found) @ np.array(expert_points(card))
    return found.with_columns(score=pl.Series(score, dtype=pl.Int32))


def after(day: date, years: int) -> date:
    return day.replace(year=day.year + years)


def windows(known: pl.DataFrame, years: int, card: Scorecard, *, all_before: bool = False) -> list[Window]:
    """Every T that has a horizon before and after it, in order; ``all_before``: learn from all windows before."""
    first = LAST.year - (LAST.year - FIRST.year) // years * years
    cuts = [date(year, FIRST.month, FIRST.day) for year in range(first, LAST.year, years)]
    found = [evidence(known, cut, years, card) for cut in cuts]
    return [
        Window(cuts[place], pl.concat(found[0 if all_before else place - 1 : place]), found[place])
        for place in range(1, len(cuts))
    ]


# --- models ------------------------------------------------------------------------------------------------------


def base_rate(train: pl.DataFrame, test: pl.DataFrame, _: Scorecard) -> Array:
    """The share that closed in the window before, for all."""
    return np.full(test.height, train["bounced"].mean())


def scorecard(**other: Any) -> Model:
    """The fit of bansong, its priors changed by `FREE` and these, its points rounded as a scorecard has them."""
    priors = Priors(**FREE | other)

    def model(train: pl.DataFrame, test: pl.DataFrame, card: Scorecard) -> Array:
        fit = fit_points(count_patterns(train.lazy()), card, priors)
        score = np.rint(fit.base) + design(test) @ np.rint(list(fit.points().values()))
        return np.asarray(fit.ceiling / (1 + 2 ** (-score / card.points_to_double)))

    return model


def compared(build: risk_baselines.Model, *more: str) -> Model:
    """A comparison model on the same levels; ``more``: columns of `LEAKS` that it is given besides."""

    def model(train: pl.DataFrame, test: pl.DataFrame, _: Scorecard) -> Array:
        def inputs(frame: pl.DataFrame) -> Array:
            return np.column_stack([design(frame).matrix(), *(leaked(frame[name], train[name]) for name in more)])

        return build(inputs(train), train["bounced"].to_numpy())(inputs(test))

    return model


def leaked(values: pl.Series, trained: pl.Series) -> Array:
    """A column of `LEAKS` as one column for each value that occurs in training."""
    return np.column_stack([(values == value).cast(pl.Float64).to_numpy() for value in trained.unique().sort()])


MODELS: dict[str, Model] = {
    "base rate": base_rate,
    "expert's points": scorecard(**EXPERT_ONLY),
    "learned scorecard": scorecard(),
    "learned, e0 as usual": scorecard(false_bounces=Priors().false_bounces),
    **{name: compared(build) for name, build in risk_baselines.MODELS.items()},
}


# --- figures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A model's probabilities in each window, with what happened."""

    frames: list[pl.DataFrame]
    """Per window: ``hospital``, ``bounced``, ``p``."""

    @property
    def together(self) -> Calibration:
        return calibration(pl.concat(self.frames), probability="p", by=())

    def interval(self, draws: int, against: Judged | None = None) -> tuple[float, float, float]:
        """The AUC within windows and its 95 % interval; ``against`` another model: the difference of the two."""
        mine, theirs = aucs(self.frames, draws), aucs(against.frames, draws) if against else np.zeros(draws + 1)
        low, high = np.quantile((mine - theirs)[1:], [0.025, 0.975])
        return float(mine[0] - theirs[0]), float(low), float(high)


def judged(model: Model, chosen: list[Window], card: Scorecard) -> Judged:
    def frame(window: Window) -> pl.DataFrame:
        p = model(window.train, window.test, card)
        return window.test.select("hospital", "bounced", p=pl.Series(p, dtype=pl.Float64))

    return Judged([frame(window) for window in chosen])


def aucs(frames: list[pl.DataFrame], draws: int) -> Array:
    """The AUC within windows, first as it is, then of ``draws`` seeded bootstrap draws of hospitals.

    Pairs are made within a window only, so that a model that sees rates rise and fall gains nothing by it. A hospital
    is drawn with all its windows, because they are not independent.
    """
    most = max(frame["hospital"].max() for frame in frames) + 1  # type: ignore[operator, type-var]
    generator = np.random.default_rng(1)
    columns = [
        (frame["hospital"].to_numpy(), frame["bounced"].to_numpy(), frame["p"].rank("dense").to_numpy() - 1)
        for frame in frames
    ]
    found = []
    for draw in range(draws + 1):
        weights = generator.poisson(1.0, most) if draw else np.ones(most)
        won = pairs = 0.0
        for hospital, bounced, place in columns:
            weight = weights[hospital]
            size = int(place.max()) + 1
            closed = np.bincount(place, weight * bounced, size)
            lived = np.bincount(place, weight * ~bounced, size)
            won += closed @ (lived.cumsum() - lived / 2)
            pairs += closed.sum() * lived.sum()
        found.append(won / pairs)
    return np.array(found)


def table(chosen: list[Window], card: Scorecard, draws: int) -> Iterator[str]:
    """All models over all windows, as Markdown."""
    yield "| model | AUC within windows (95 %) | minus expert's points | closed / expected | ECE | log loss |"
    yield "| --- | --- | --- | --- | --- | --- |"
    found = {name: judged(model, chosen, card) for name, model in MODELS.items()}
    for name, model in found.items():
        whole = model.together
        gained = "–" if name == "expert's points" else spread(model.interval(draws, found["expert's points"]), "+.3f")
        auc = spread(model.interval(draws), ".3f")
        yield f"| {name} | {auc} | {gained} | {whole.ratio:.2f} | {whole.ece:.3f} | {whole.log_loss:.4f} |"


def table_of_windows(chosen: list[Window], card: Scorecard, draws: int) -> Iterator[str]:
    """The learned scorecard in each window, as Markdown."""
    yield "| T | open | closed after | AUC, expert's points | AUC, learned (95 %) | closed / expected (95 %) | ECE |"
    yield "| --- | ---: | ---: | --- | --- | --- | --- |"
    for window in chosen:
        learned, expert = (judged(MODELS[name], [window], card) for name in ("learned scorecard", "expert's points"))
        whole = learned.together
        yield (
            f"| {window.cut} | {whole.n:,} | {whole.bounced} | {expert.together.auc:.3f} | "
            f"{spread(learned.interval(draws), '.3f')} | {whole.ratio:.2f} ({whole.low:.2f} to {whole.high:.2f}) | "
            f"{whole.ece:.3f} |"
        )


def table_of_leaks(chosen: list[Window], card: Scorecard) -> Iterator[str]:
    """What the AUC would be with columns that were written later, as Markdown."""
    yield f"| known at T, and besides | {' | '.join(str(window.cut) for window in chosen)} |"
    yield f"| --- |{' --- |' * len(chosen)}"
    logistic, boosting = risk_baselines.logistic, risk_baselines.boosted_tuned
    cases = {"nothing: logistic": compared(logistic)}
    cases |= {f"{name}: logistic": compared(logistic, name) for name in LEAKS}
    cases["all of these: boosting, tuned"] = compared(boosting, *LEAKS)
    for name, model in cases.items():
        found = [judged(model, [window], card).together.auc for window in chosen]
        yield f"| {name} | {' | '.join(f'{auc:.3f}' for auc in found)} |"


def spread(found: tuple[float, float, float], form: str) -> str:
    value, low, high = found
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--years", type=int, nargs="+", default=[3, 1], help="horizons, in years")
    options.add_argument("--all-before", action="store_true", help="learn from all windows before T, not from the last")
    options.add_argument("--draws", type=int, default=1000, help="bootstrap draws")
    given = options.parse_args()
    rows, card = raw(), Scorecard.load()
    known = register(rows)
    print(f"{rows.height:,} rows, {rows.height - known.height} left out: ended on a day that is not written down")
    for years in given.years:
        chosen = windows(known, years, card, all_before=given.all_before)
        bounced = pl.concat([window.test["bounced"] for window in chosen])
        counts = f"{len(chosen)} windows, {len(bounced):,} rows, {bounced.sum():,} closed"
        print(f"\n## Closed within {years} year(s): {counts}\n")
        print(*table(chosen, card, given.draws), "", sep="\n")
        print(*table_of_windows(chosen, card, given.draws), "", sep="\n")
        if years == given.years[0]:
            print(*table_of_leaks(chosen, card), sep="\n")


if __name__ == "__main__":
    main()
