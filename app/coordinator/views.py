"""Committed rounds → what is looked at: pages of rounds, curves, drift, sites, events."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from app.coordinator.db import DriftRow, EventRow, RoundRow, RunRow, RunSiteRow
from app.coordinator.problems import not_found
from app.coordinator.runs import progress_of, row_of
from app.coordinator.tokens import Principal
from app.schemas.runs import (
    Curves,
    Drift,
    Event,
    Headline,
    LayerDrift,
    Round,
    RunMetrics,
    RunSite,
    Series,
    SiteCurves,
    SiteRound,
)
from app.schemas.shape import MetricName, Page

HEADLINES: tuple[MetricName, ...] = ("accuracy", "auc_ovo", "auc_ovr")
LOSS = ("loss_low", "loss_high", "loss_n")
NOTHING: dict[str, float | None] = {"value": None, "low": None, "high": None}


def visible(who: Principal, names: Sequence[str]) -> list[str]:
    """The sites whose own numbers the caller may see: a site's operator that site's, others all."""
    return [name for name in names if who.site in (None, name)]


def rounds(session: Session, who: Principal, run: str, after: int | None, limit: int) -> Page[Round]:
    """Rounds, the newest first; `after` a number come those before it."""
    row = row_of(session, run)
    chosen = select(RoundRow).where(RoundRow.run == run).order_by(RoundRow.number.desc()).limit(limit)
    if after is not None:
        chosen = chosen.where(RoundRow.number < after)
    items = tuple(shaped_round(who, row, committed) for committed in session.scalars(chosen))
    more = items and items[-1].number > 1
    return Page(items=items, total=row.round, next=items[-1].number if more else None)


def shaped_round(who: Principal, run: RunRow, row: RoundRow) -> Round:
    """A round as it is answered."""
    record, test = row.record, row.record["test"]
    return Round(
        number=row.number,
        committed_at=row.committed_at,
        seconds=record["seconds"],
        rate=record["rate"],
        loss=record["loss"],
        **loss_bounds(record),
        sites=tuple(site_round(name, record["sites"][name], test) for name in visible(who, list(record["sites"]))),
        test=headline(test),
        pooled=bool(test is None or test.get("pooled", True)),
        best=row.number == run.best_round,
    )


def site_round(name: str, part: Mapping[str, Any], test: Mapping[str, Any] | None) -> SiteRound:
    """One site's part in a round."""
    own = test["sites"].get(name) if test else None
    return SiteRound(
        site=name,
        took_part="away" not in part,
        why_not=part.get("away"),
        loss=part.get("loss"),
        **loss_bounds(part),
        steps=part.get("steps"),
        seconds=part.get("seconds"),
        test=headline(own),
    )


def loss_bounds(part: Mapping[str, Any]) -> dict[str, Any]:
    """The interval and the n of a loss; rounds that were committed before these were kept have none."""
    return {name: part.get(name) for name in LOSS}


def loss_columns(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same as columns over rounds."""
    return {name: tuple(part.get(name) for part in parts) for name in LOSS}


def headline(test: Mapping[str, Any] | None) -> Headline | None:
    """The three metrics of a record."""
    if not test:
        return None
    known = {name: test[name] for name in (*HEADLINES, "n", "pooled") if name in test}
    return Headline.model_validate(known)


def metrics(session: Session, who: Principal, run: str, after: int, points: int) -> RunMetrics:
    """Curves over the rounds after that one, thinned out evenly to so many points."""
    row = row_of(session, run)
    stride = max(1, -(-(row.round - after) // points))
    chosen = select(RoundRow.number, RoundRow.record).where(
        RoundRow.run == run, RoundRow.number > after, (row.round - RoundRow.number) % stride == 0
    )
    found = list(session.execute(chosen.order_by(RoundRow.number)))
    records = [record for _, record in found]
    tests = [record["test"] for record in records]
    known = session.scalars(select(RunSiteRow.site).where(RunSiteRow.run == run).order_by(RunSiteRow.position))
    names = visible(who, list(known))
    return RunMetrics(
        run=run,
        rounds=tuple(number for number, _ in found),
        loss=tuple(record["loss"] for record in records),
        **loss_columns(records),
        rate=tuple(record["rate"] for record in records),
        seconds=tuple(record["seconds"] for record in records),
        test=Curves(**curves(tests), n=sizes(tests)),
        sites={name: site_curves(name, records, tests) for name in names},
        stride=stride,
    )


def curves(tests: Sequence[Mapping[str, Any] | None]) -> dict[MetricName, Series]:
    """The three metrics as columns."""
    return {name: series([test[name] if test else NOTHING for test in tests]) for name in HEADLINES}


def sizes(tests: Sequence[Mapping[str, Any] | None]) -> tuple[int | None, ...]:
    """How many test patches are behind each round's metrics."""
    return tuple(test.get("n") if test else None for test in tests)


def series(values: Sequence[Mapping[str, float | None]]) -> Series:
    """A metric's values and bounds as columns."""
    return Series(**{part: tuple(value[part] for value in values) for part in ("value", "low", "high")})


def site_curves(
    name: str, records: Sequence[Mapping[str, Any]], tests: Sequence[Mapping[str, Any] | None]
) -> SiteCurves:
    """A site's own columns."""
    parts = [record["sites"].get(name, {"away": "not in the run"}) for record in records]
    own = [test["sites"].get(name) if test else None for test in tests]
    return SiteCurves(
        **curves(own),
        n=sizes(own),
        loss=tuple(part.get("loss") for part in parts),
        **loss_columns(parts),
        took_part=tuple("away" not in part for part in parts),
    )


def run_sites(session: Session, who: Principal, run: str) -> tuple[RunSite, ...]:
    """What the run knows of its sites' data."""
    row = row_of(session, run)
    rows = session.scalars(select(RunSiteRow).where(RunSiteRow.run == run).order_by(RunSiteRow.position))
    progress = progress_of(session, who, row) if row.state == "running" else {}
    latest = (row.latest or {}).get("sites", {})
    return tuple(
        RunSite(
            site=site.site,
            progress=progress.get(site.site),
            latest=headline(latest.get(site.site)),
            **site.facts,
        )
        for site in rows
        if who.site in (None, site.site)
    )


def drift(session: Session, who: Principal, run: str, number: int | None, points: int) -> Drift:
    """The drift of one round by layer (the last one, by default), and its mean over all rounds."""
    row = row_of(session, run)
    stride = max(1, -(-row.round // points))
    chosen = select(RoundRow.number, RoundRow.drift).where(
        RoundRow.run == run, (row.round - RoundRow.number) % stride == 0
    )
    found = list(session.execute(chosen.order_by(RoundRow.number)))
    wanted = number if number is not None else row.round or None
    layers = session.get(DriftRow, (run, wanted)) if wanted is not None else None
    if number is not None and layers is None:
        raise not_found(f"drift of round {number} of run {run!r}")
    means = {kind: over_rounds(who, [means[kind] for _, means in found]) for kind in ("statistics", "gradient")}
    return Drift(
        run=run,
        round=layers.number if layers else None,
        rounds=tuple(number for number, _ in found),
        layers=by_layer(who, layers.layers) if layers else (),
        mean_statistics=means["statistics"],
        mean_gradient=means["gradient"],
    )


def over_rounds(
    who: Principal, means: Sequence[Mapping[str, float | None]]
) -> dict[str, tuple[float | None, ...]]:
    """By site, one mean a round."""
    names = list(dict.fromkeys(name for by_site in means for name in by_site))
    return {name: tuple(by_site.get(name) for by_site in means) for name in visible(who, names)}


def by_layer(who: Principal, found: Mapping[str, Any]) -> tuple[LayerDrift, ...]:
    """The kept columns as one row a layer."""
    names = visible(who, list(found["statistics"]))
    return tuple(
        LayerDrift(
            layer=layer,
            statistics={name: found["statistics"][name][index] for name in names},
            gradient={name: found["gradient"][name][index] for name in names},
        )
        for index, layer in enumerate(found["layers"])
    )


def events(session: Session, who: Principal, run: str | None, after: int, limit: int) -> Page[Event]:
    """Events after that id, the oldest first, and how many there are in all."""
    if run is not None:
        row_of(session, run)
    items = events_after(session, who, run, after, limit + 1)
    total = session.scalar(select(func.count()).select_from(EventRow).where(*seen_by(who, run))) or 0
    shown = items[:limit]
    return Page(items=shown, total=total, next=shown[-1].id if len(items) > limit else None)


def events_after(session: Session, who: Principal, run: str | None, after: int, limit: int) -> tuple[Event, ...]:
    """Events after that id, the oldest first."""
    chosen = select(EventRow).where(*seen_by(who, run), EventRow.id > after).order_by(EventRow.id).limit(limit)
    return tuple(Event.model_validate(row, from_attributes=True) for row in session.scalars(chosen))


def seen_by(who: Principal, run: str | None) -> list[ColumnElement[bool]]:
    """Of a run, or of all; an operator sees the events of the own site and of no site."""
    seen: list[ColumnElement[bool]] = [EventRow.run == run] if run is not None else []
    if who.site is not None:
        seen.append(or_(EventRow.site.is_(None), EventRow.site == who.site))
    return seen
