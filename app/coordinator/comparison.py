"""Runs side by side → p-values against a reference, and the share of the gap that each recovers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.coordinator.db import RunRow
from app.coordinator.problems import Refused
from app.coordinator.results import Scores, scores_of, while_kept
from app.coordinator.runs import headline, row_of
from app.coordinator.service import Service
from app.coordinator.views import HEADLINES
from app.schemas.results import ComparedRun, Comparison
from app.schemas.shape import MetricName
from fl_core.intervals import paired_p_value, resampled_headlines
from fl_core.metrics import missing_classes, rank

Figures = dict[MetricName, float | None]
Known = Mapping[str, Scores | None]  # by run


@dataclass(frozen=True)
class Ends:
    """A fedavg and a centralized run on the same data: between them lies what heterogeneity costs."""

    floor: RunRow
    roof: RunRow


def compare(service: Service, runs: Sequence[str], reference: str) -> Comparison:
    """The best round of each run beside that of the reference."""
    if reference not in runs:
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"reference {reference!r}: name one of {', '.join(runs)}")
    with service.reading() as session:
        rows = [row_of(session, run) for run in runs]
        ends = {row.id: ends_for(session, rows, row) for row in rows}
    others = [run for pair in ends.values() if pair for run in (pair.floor, pair.roof)]
    scores = {row.id: scores_if_any(service, row) for row in {row.id: row for row in [*rows, *others]}.values()}
    first = next(row for row in rows if row.id == reference)
    return Comparison(
        reference=reference,
        same_data=all(on_same_data(first, row, scores) for row in rows),
        runs=tuple(
            ComparedRun(
                run=row.id,
                name=row.name,
                algorithm=row.settings["algorithm"],
                state=row.state,
                round=row.best_round,
                headline=headline(row.best),
                p_value=p_values(first, row, scores),
                gap_recovered=gap_recovered(row, ends[row.id], scores),
            )
            for row in rows
        ),
    )


def scores_if_any(service: Service, row: RunRow) -> Scores | None:
    """The scores of a run's best round; None before the first, or where they stay at the sites."""
    if row.best is None or "scores" not in row.best:
        return None
    return while_kept(service, row.id, "best", lambda shown: scores_of(service, shown))


def on_same_data(one: RunRow, other: RunRow, scores: Known) -> bool:
    """Whether two runs have trained on the same data and, if both scores are here, have the same test patches."""
    a, b = scores[one.id], scores[other.id]
    same = one.data_key is not None and one.data_key == other.data_key
    return same and (a is None or b is None or np.array_equal(a.labels, b.labels))


def on_same_patches(one: RunRow, other: RunRow, scores: Known) -> bool:
    """Whether two runs have trained on the same data and are scored on the same patches, patch by patch."""
    return None not in (scores[one.id], scores[other.id]) and on_same_data(one, other, scores)


def p_values(first: RunRow, row: RunRow, scores: Known) -> Figures:
    """Two-sided p of no difference from the reference, paired on the same patches; null where there is no pair."""
    found: Figures = dict.fromkeys(HEADLINES)
    ours, theirs = scores[row.id], scores[first.id]
    if row is first or ours is None or theirs is None or not on_same_patches(first, row, scores):
        return found
    for name in defined(ours):
        found[name] = paired_p_value(ours.scores, theirs.scores, ours.labels, name)
    return found


def defined(scores: Scores) -> tuple[MetricName, ...]:
    """The metrics that these patches have: without a class, accuracy alone."""
    return HEADLINES if not missing_classes(scores.labels, scores.scores.shape[1]) else ("accuracy",)


def ends_for(session: Session, compared: Sequence[RunRow], row: RunRow) -> Ends | None:
    """The ends of the gap with the run's data and network: among the compared runs, or the finished ones."""
    if row.data_key is None:
        return None
    finished = select(RunRow).where(RunRow.data_key == row.data_key, RunRow.state == "completed")
    known = [*compared, *session.scalars(finished.order_by(RunRow.number.desc()))]
    alike = [one for one in known if one.best and one.data_key == row.data_key and same_setting("model", one, row)]
    floor, roof = (nearest(row, alike, algorithm) for algorithm in ("fedavg", "centralized"))
    return Ends(floor, roof) if floor and roof else None


def nearest(row: RunRow, candidates: Sequence[RunRow], algorithm: str) -> RunRow | None:
    """The first run of that algorithm with as many local steps; else the first one."""
    found = [one for one in candidates if one.settings["algorithm"] == algorithm]
    return next((one for one in found if same_setting("local_steps", one, row)), found[0] if found else None)


def same_setting(name: str, one: RunRow, other: RunRow) -> bool:
    """Whether two runs agree in a setting."""
    return bool(one.settings[name] == other.settings[name])


def gap_recovered(row: RunRow, ends: Ends | None, scores: Known) -> Figures:
    """(this − fedavg) / (centralized − fedavg); null where the gap may as well be none, or is not known."""
    found: Figures = dict.fromkeys(HEADLINES)
    if ends is None or not all(on_same_patches(row, end, scores) for end in (ends.floor, ends.roof)):
        return found
    for name in sure_gaps(ends, scores):
        this, floor, roof = (value_of(run, name) for run in (row, ends.floor, ends.roof))
        found[name] = (this - floor) / (roof - floor)
    return found


def sure_gaps(ends: Ends, scores: Known) -> list[MetricName]:
    """The metrics in which centralized is better than fedavg in 97.5 % of the resamples or more."""
    floor, roof = scores[ends.floor.id], scores[ends.roof.id]
    assert floor is not None
    assert roof is not None
    rankings = [rank(one.scores, one.labels) for one in (floor, roof)]
    low, high = resampled_headlines(rankings, floor.labels, resamples=2000, seed=0)
    sure = np.quantile(high - low, 0.025, axis=1) > 0
    return [name for name, there in zip(HEADLINES, sure, strict=True) if there]


def value_of(run: RunRow, name: MetricName) -> float:
    """A metric of the run's best round, where it is defined."""
    assert run.best is not None
    return float(run.best["headline"][name]["value"])
