"""A run's kept scores → predictions, and everything that they tell of the model."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.coordinator.db import RunRow, RunSiteRow
from app.coordinator.problems import Refused
from app.coordinator.runs import headline, row_of
from app.coordinator.service import Service
from app.coordinator.tokens import Principal
from app.coordinator.views import visible
from app.schemas.results import CalibrationBin, ClassResult, Curve, Predictions, Results
from app.schemas.runs import Headline, Metric
from app.schemas.shape import Which
from fl_core.checkpoint import DamagedCheckpoint, read_object
from fl_core.class_intervals import Areas, class_areas, rates, wilson
from fl_core.curves import Bin, RocCurve, calibration_bins, roc_curves
from fl_core.intervals import Interval
from fl_core.metrics import point_metrics

Found = TypeVar("Found")
DIGITS = 6  # of a point on a curve that is drawn


@dataclass(frozen=True)
class Shown:
    """A run's best or last evaluated round: its numbers, and the names of its states and scores."""

    run: RunRow
    which: Which
    classes: tuple[str, ...]
    kept: dict[str, Any]

    @property
    def round(self) -> int:
        """The round's number."""
        return int(self.kept["round"])


@dataclass(frozen=True)
class Scores:
    """Test patches: true classes and probabilities, in an order that runs on the same data share."""

    labels: NDArray[np.int64]  # (n,)
    scores: NDArray[np.float64]  # (n, C)


def shown_of(session: Session, run: str, which: Which) -> Shown:
    """The best or the last evaluated round, or 404 where there is none yet."""
    row = row_of(session, run)
    kept = row.best if which == "best" else row.latest
    if kept is None:
        raise Refused(HTTPStatus.NOT_FOUND, f"run {run!r} ({row.state}) has no evaluated round yet: wait for one")
    return Shown(row, which, classes_of(session, run), kept)


def classes_of(session: Session, run: str) -> tuple[str, ...]:
    """The names of the classes, by number."""
    facts = select(RunSiteRow.facts).where(RunSiteRow.run == run).order_by(RunSiteRow.position)
    named = (tuple(known["test"]) for known in session.scalars(facts))
    return next((names for names in named if names), ())  # a site that has not answered yet names none


def while_kept(service: Service, run: str, which: Which, use: Callable[[Shown], Found]) -> Found:
    """What is made of a round's files; a round that is replaced meanwhile is left for its successor."""
    with service.reading() as session:
        shown = shown_of(session, run, which)
    try:
        return use(shown)
    except DamagedCheckpoint:
        with service.reading() as session:
            now = shown_of(session, run, which)
        if now.kept == shown.kept:
            raise
        return use(now)


def scores_of(service: Service, shown: Shown) -> Scores:
    """The kept scores, every byte checked."""
    name = shown.kept.get("scores")
    if name is None:
        raise Refused(
            HTTPStatus.NOT_FOUND,
            f"run {shown.run.id!r} has no scores here: they stay at its sites, as the patches do",
        )
    return read_scores(service.settings.run_folder(shown.run.id), name)


def read_scores(folder: Path, name: str) -> Scores:
    """The scores of that name, every byte checked."""
    found = safetensors.torch.load(read_object(folder, name))
    return Scores(found["labels"].numpy().astype(np.int64), found["scores"].double().numpy())


@lru_cache(maxsize=64)
def areas_of(folder: Path, name: str) -> Areas:
    """The classes' areas with their intervals; the name is the scores' digest, so they are computed once."""
    found = read_scores(folder, name)
    return class_areas(found.scores, found.labels)


def predictions(service: Service, run: str, which: Which) -> Predictions:
    """Labels and scores, shuffled: in the order of the sites they would say whose patches they are."""

    def make(shown: Shown) -> Predictions:
        found = scores_of(service, shown)
        order = shuffled(service.key, str(shown.run.data_key), len(found.labels))
        return Predictions(
            run=run,
            round=shown.round,
            classes=shown.classes,
            labels=tuple(found.labels[order].tolist()),
            scores=tuple(map(tuple, found.scores[order].tolist())),
        )

    return while_kept(service, run, which, make)


def shuffled(key: bytes, data_key: str, n: int) -> NDArray[np.int64]:
    """An order that only the coordinator knows, the same for all runs on the same data: they stay comparable."""
    seed = hashlib.blake2b(data_key.encode(), key=key[:64], digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(seed)).permutation(n)


def results(service: Service, who: Principal, shown: Shown, threshold: float | None) -> Results:
    """The headlines of all and of the sites and, where the scores are here, all metrics and curves of them."""
    whole = headline(shown.kept)
    assert whole is not None
    own = shown.kept["sites"]
    bare = Results(
        run=shown.run.id,
        round=shown.round,
        which=shown.which,
        headline=whole,
        n=whole.n,
        threshold=threshold,
        classes=(),
        confusion=(),
        calibration_error=None,
        calibration=(),
        one_vs_rest=(),
        one_vs_one=(),
        sites={name: Headline.model_validate(own[name]) for name in visible(who, list(own))},
    )
    return bare.model_copy(update=by_scores(service, shown, threshold)) if whole.pooled else bare


def by_scores(service: Service, shown: Shown, threshold: float | None) -> dict[str, Any]:
    """What only the scores tell: classes, confusion, calibration, curves."""
    found = scores_of(service, shown)
    metrics = point_metrics(found.scores, found.labels)
    areas = areas_of(service.settings.run_folder(shown.run.id), shown.kept["scores"])
    rest, pairs = roc_curves(found.scores, found.labels)
    bins = calibration_bins(found.scores, found.labels)
    return {
        "n": metrics.n,
        "classes": class_results(shown.classes, found, areas, threshold),
        "confusion": metrics.confusion,
        "calibration_error": metrics.calibration_error,
        "calibration": tuple(map(calibration_bin, bins)),
        "one_vs_rest": tuple(drawn(curve, shown.classes, areas) for curve in rest),
        "one_vs_one": tuple(drawn(curve, shown.classes, areas) for curve in pairs),
    }


def class_results(
    names: tuple[str, ...], found: Scores, areas: Areas, threshold: float | None
) -> tuple[ClassResult, ...]:
    """Each class against the rest: called by the highest score, or by a score that reaches the threshold."""
    highest = found.scores.argmax(axis=1)
    shown = []
    for number, name in enumerate(names):
        mine = found.labels == number
        called = highest == number if threshold is None else found.scores[:, number] >= threshold
        sensitivity, specificity = rates(called, mine)
        shown.append(
            ClassResult(
                name=name,
                n=int(mine.sum()),
                auc=metric(areas.rest[number]),
                pr_auc=metric(areas.precision[number]),
                sensitivity=metric(sensitivity),
                specificity=metric(specificity),
            )
        )
    return tuple(shown)


def metric(found: Interval) -> Metric:
    """A value with its bounds, as it is answered."""
    return Metric(value=found.value, low=found.low, high=found.high)


def calibration_bin(found: Bin) -> CalibrationBin:
    """A bin as it is answered."""
    right = wilson(round((found.accuracy or 0.0) * found.n), found.n)
    return CalibrationBin(n=found.n, confidence=found.confidence, accuracy=metric(right))


def drawn(curve: RocCurve, names: tuple[str, ...], areas: Areas) -> Curve:
    """A curve as it is answered: its points rounded, its AUC not."""
    against = "the rest" if curve.negative is None else names[curve.negative]
    i, j = curve.positive, curve.negative
    return Curve(
        name=f"{names[i]} against {against}",
        positives=curve.positives,
        negatives=curve.negatives,
        auc=metric(areas.rest[i] if j is None else areas.pairs[i][j]),
        false_positive_rate=tuple(curve.false_positive_rate.round(DIGITS).tolist()),
        true_positive_rate=tuple(curve.true_positive_rate.round(DIGITS).tolist()),
    )
