"""Models to hold the learned scorecard against: logistic regression and LightGBM, on the same levels and labels.

Needs two packages that bansong itself does not: ``pip install scikit-learn lightgbm``.

Each comes twice: as its authors ship it, and tuned by cross-validation on the training labels, so that neither is held
back by settings. None of them knows the expert's points; that is the difference to be measured.

- ``logistic``: scikit-learn's default, L2 with C = 1.
- ``logistic, tuned``: C out of seven from 0.001 to 10 by log loss in 5 folds.
- ``boosting``: LightGBM's defaults (100 trees, rate 0.1, 31 leaves, at least 20 rows a leaf).
- ``boosting, tuned``: trees of 2 leaves with at least 5 or 20 rows each, of 4 with 20, of 8 with 20 or 50, or of 31
  with 100; L2 1; up to 400 trees, as many as have the least log loss in 5 folds.

From 5,000 rows on there are 3 folds; in small data as many as the rarer class has rows, and below 2 the untuned model
is taken. Of one class only, the share of it is all that can be said: (bounced + 1) / (rows + 2), so that the log loss
stays finite.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

try:
    import lightgbm
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
    from sklearn.model_selection import StratifiedKFold
except ImportError as error:
    sys.exit(f"{error}: the comparison models need two packages: pip install scikit-learn lightgbm")

Array = np.ndarray[Any, np.dtype[Any]]
Predict = Callable[[Array], Array]
Model = Callable[..., Predict]

FOLDS, MANY, FOLDS_OF_MANY = 5, 5000, 3
SEED = 1
LBFGS_STEPS = 2000
TREES = 400
PATIENCE = 20
COMMON = {"objective": "binary", "verbosity": -1, "seed": SEED, "deterministic": True, "num_threads": 1}
SHAPES = ((2, 5), (2, 20), (4, 20), (8, 20), (8, 50), (31, 100))
"""Leaves of a tree, rows that a leaf has at least."""
STRENGTHS = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0)


def logistic(X: Array, y: Array, counts: Array | None = None) -> Predict:
    """L2 logistic regression as scikit-learn ships it. For the arguments see :func:`counted`."""
    X, y = counted(X, y, counts)
    if one_class(y):
        return share_of(y)
    return positive(LogisticRegression(max_iter=LBFGS_STEPS).fit(X, y))


def logistic_tuned(X: Array, y: Array, counts: Array | None = None) -> Predict:
    """L2 logistic regression, its strength chosen by cross-validated log loss."""
    X, y = counted(X, y, counts)
    if (folds := folds_of(y)) < 2:
        return logistic(X, y)
    model = LogisticRegressionCV(
        Cs=STRENGTHS, l1_ratios=(0,), cv=parts(folds), scoring="neg_log_loss", max_iter=LBFGS_STEPS,
        use_legacy_attributes=False,
    )  # fmt: skip
    return positive(model.fit(X, y))


def boosted(X: Array, y: Array, counts: Array | None = None) -> Predict:
    """Gradient boosting as LightGBM ships it."""
    X, y = counted(X, y, counts)
    return share_of(y) if one_class(y) else grown(X, y, {}, 100)


def boosted_tuned(X: Array, y: Array, counts: Array | None = None) -> Predict:
    """Gradient boosting, its size and number of trees chosen by cross-validated log loss."""
    X, y = counted(X, y, counts)
    if (folds := folds_of(y)) < 2:
        return boosted(X, y)
    tried = [tried_out(X, y, folds, leaves, rows) for leaves, rows in SHAPES]
    _, trees, settings = min(tried, key=lambda each: each[0])
    return grown(X, y, settings, trees)


MODELS: dict[str, Model] = {
    "logistic": logistic,
    "logistic, tuned": logistic_tuned,
    "boosting": boosted,
    "boosting, tuned": boosted_tuned,
}
"""Name → model: given rows × levels (0 or 1), outcomes and counts it returns what gives probabilities of other rows."""


def counted(X: Array, y: Array, counts: Array | None) -> tuple[Array, Array]:
    """One row a letter: row i stands for ``counts[i]`` letters, for one each without ``counts``.

    Counts are not given on as weights, because to trees a leaf of one heavy row is a leaf of one row.
    """
    y = np.asarray(y).astype(np.int8)
    if counts is None:
        return X, y
    return np.repeat(X, counts, axis=0), np.repeat(y, counts)


def one_class(y: Array) -> bool:
    return len(np.unique(y)) < 2


def folds_of(y: Array) -> int:
    rarer = int(min(y.sum(), len(y) - y.sum())) if len(y) else 0
    return min(FOLDS if len(y) < MANY else FOLDS_OF_MANY, rarer)


def share_of(y: Array) -> Predict:
    share = (float(y.sum()) + 1) / (len(y) + 2)
    return lambda X: np.full(len(X), share)


def positive(model: Any) -> Predict:
    return lambda X: model.predict_proba(X)[:, 1]


def parts(folds: int) -> Any:
    return StratifiedKFold(folds, shuffle=True, random_state=SEED)


def tried_out(X: Array, y: Array, folds: int, leaves: int, rows: int) -> tuple[float, int, dict[str, float]]:
    """(log loss in the folds, trees at which it is least, settings)."""
    settings = {"lambda_l2": 1.0, "num_leaves": leaves, "min_data_in_leaf": rows}
    with calm():
        found = lightgbm.cv(
            COMMON | settings | {"metric": "binary_logloss"},
            lightgbm.Dataset(X, y, params={"verbosity": -1, "min_data_in_leaf": rows}),
            num_boost_round=TREES,
            folds=parts(folds),
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
        )
    losses = found["valid binary_logloss-mean"]
    return losses[-1], len(losses), settings


def grown(X: Array, y: Array, settings: dict[str, float], trees: int) -> Predict:
    with calm():
        model = lightgbm.train(COMMON | settings, lightgbm.Dataset(X, y, params={"verbosity": -1}), trees)
    return lambda X: np.asarray(model.predict(X))


@contextmanager
def calm() -> Iterator[None]:
    """LightGBM warns of data too small to split, which is one of the cases here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
