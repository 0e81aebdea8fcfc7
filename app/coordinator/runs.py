"""Requests about runs → rows changed and answers shaped; the state machine stands here."""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.coordinator import audit
from app.coordinator.configuration import check_settings
from app.coordinator.db import RoundRow, RunRow, RunSiteRow, SiteRow, now, writing_session
from app.coordinator.problems import Refused, not_found
from app.coordinator.service import Service, tell
from app.coordinator.tokens import Principal
from app.schemas.runs import Headline, Run, RunSettings, SiteProgress
from app.schemas.shape import Action, Page, RunState


def begin(run: RunRow) -> None:
    """To the end, from where it stands."""
    run.until = None


def one_round(run: RunRow) -> None:
    """Exactly one round, then a pause."""
    run.until = run.round + 1


def after_this_round(run: RunRow) -> None:
    """The open round is finished first; without one, the pause comes at once."""
    run.until = run.round


def for_good(run: RunRow) -> None:
    """The last committed round stays, the open one is dropped."""
    run.ended_at, run.until, run.waiting = now(), None, None


@dataclass(frozen=True)
class Transition:
    """From where an action leads to where, and what it changes besides."""

    since: tuple[RunState, ...]
    to: RunState
    change: Callable[[RunRow], None]


TRANSITIONS: dict[Action, Transition] = {
    "start": Transition(("draft",), "running", begin),
    "pause": Transition(("running",), "running", after_this_round),
    "resume": Transition(("paused",), "running", begin),
    "step": Transition(("draft", "paused"), "running", one_round),
    "stop": Transition(("draft", "running", "paused"), "stopped", for_good),
}


def allowed(state: str) -> tuple[Action, ...]:
    """The actions that a run in this state takes."""
    return tuple(name for name, transition in TRANSITIONS.items() if state in transition.since)


def act(service: Service, who: Principal, run: str, action: Action) -> Run:
    """Take an action, or refuse it with those that are allowed."""
    transition = TRANSITIONS[action]
    with service.changing(who, f"run.{action}", run) as session:
        row = session.get(RunRow, run, with_for_update=True)
        if row is None:
            raise not_found(f"run {run!r}")
        if row.state not in transition.since:
            can = allowed(row.state)
            words = f"allowed now: {', '.join(can)}" if can else "nothing can be done with it any more"
            raise Refused(HTTPStatus.CONFLICT, f"a {row.state} run cannot {action}; {words}", can)
        row.state = transition.to
        transition.change(row)
        if transition.to == "running":
            row.started_at = row.started_at or now()
            row.reason = None
        tell(session, action, f"{action} by {who.name}", run)
    service.supervisor.wake()
    return read(service, who, run)


def create(service: Service, who: Principal, settings: RunSettings, key: str | None) -> Run:
    """A new draft; the same idempotency key with the same settings gives the run that it gave before."""
    check_settings(settings)
    asked = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()
    scoped = f"{who.token}:{key}" if key else None
    with writing_session(service.engine) as session:
        audit.hold(session)
        before = session.scalars(select(RunRow).where(RunRow.request_key == scoped)).first() if scoped else None
        if before is not None and before.request_digest != asked:
            raise Refused(
                HTTPStatus.CONFLICT, f"idempotency key {key!r} was used for other settings: take a new one"
            )
        if before is None:
            before = add(session, who, settings, scoped, asked)
            audit.record(
                session, service.key, who.name, "run.create", before.id, settings=settings.model_dump(mode="json")
            )
        run = before.id
    return read(service, who, run)


def add(session: Session, who: Principal, settings: RunSettings, key: str | None, digest: str) -> RunRow:
    """The row of a new draft; for nvflare, all its sites must be enrolled."""
    if settings.engine == "nvflare":
        enrolled = set(session.scalars(select(SiteRow.name).where(SiteRow.condition != "withdrawn")))
        missing = [site for site in settings.sites if site not in enrolled]
        if missing:
            raise Refused(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"not enrolled: {', '.join(missing)}; known: {', '.join(sorted(enrolled)) or 'none'}. "
                f"`mammofed federation add-site {missing[0]}` makes a kit; minutes later the site is known",
            )
    number = (session.scalar(select(func.max(RunRow.number))) or 0) + 1
    row = RunRow(
        id=f"{number:04d}-{secrets.token_hex(4)}",
        number=number,
        name=settings.name or settings.algorithm,
        state="draft",
        settings=settings.model_dump(mode="json"),
        created_at=now(),
        created_by=who.name,
        request_key=key,
        request_digest=digest,
        round=0,
        epoch=0,
    )
    session.add(row)
    session.flush()
    tell(session, "created", f"created by {who.name}", row.id)
    return row


def read(service: Service, who: Principal, run: str) -> Run:
    """One run as it stands."""
    with service.reading() as session:
        return shaped(session, who, row_of(session, run))


def row_of(session: Session, run: str) -> RunRow:
    """The run's row, or 404."""
    row = session.get(RunRow, run)
    if row is None:
        raise not_found(f"run {run!r}")
    return row


def list_runs(service: Service, who: Principal, after: str | None, limit: int) -> Page[Run]:
    """Runs, the newest first; `after` is the id of the last one seen."""
    with service.reading() as session:
        chosen = select(RunRow).order_by(RunRow.number.desc()).limit(limit + 1)
        if after is not None:
            chosen = chosen.where(RunRow.number < row_of(session, after).number)
        rows = list(session.scalars(chosen))
        total = session.scalar(select(func.count()).select_from(RunRow)) or 0
        items = tuple(shaped(session, who, row) for row in rows[:limit])
    return Page(items=items, total=total, next=items[-1].id if len(rows) > limit else None)


def shaped(session: Session, who: Principal, row: RunRow) -> Run:
    """A run as it is answered."""
    settings = RunSettings.model_validate(row.settings)
    return Run(
        id=row.id,
        name=row.name,
        state=row.state,
        settings=settings,
        actions=allowed(row.state) if who.role == "coordinator" else (),
        round=row.round,
        pausing=row.state == "running" and row.until is not None,
        waiting=row.waiting if row.state == "running" else None,
        reason=row.reason,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        created_by=row.created_by,
        seconds_left=seconds_left(session, row),
        best_round=row.best_round,
        best=headline(row.best),
        latest=headline(row.latest),
        data_key=row.data_key,
        progress=tuple(progress_of(session, who, row).values()) if row.state == "running" else (),
    )


def headline(shown: Mapping[str, Any] | None) -> Headline | None:
    """The three metrics of a round that is kept; without its scores, they are the mean of the sites' own."""
    return Headline.model_validate({**shown["headline"], "pooled": "scores" in shown}) if shown else None


def seconds_left(session: Session, row: RunRow) -> float | None:
    """Rounds left, at the pace from the first to the last of the newest ten."""
    if row.state != "running" or row.round < 1:
        return None
    newest = select(RoundRow.committed_at).where(RoundRow.run == row.id).order_by(RoundRow.number.desc()).limit(10)
    times = list(session.scalars(newest))
    first = times[-1] if len(times) > 1 else row.started_at or times[-1]
    rounds = len(times) - 1 if len(times) > 1 else row.round
    left: int = row.settings["rounds"] - row.round
    return left * max(0.0, (times[0] - first).total_seconds() / rounds)


def progress_of(session: Session, who: Principal, row: RunRow) -> dict[str, SiteProgress]:
    """How far the sites are in the open round; an operator sees the own site alone."""
    rows = session.scalars(select(RunSiteRow).where(RunSiteRow.run == row.id).order_by(RunSiteRow.position))
    steps = row.settings["local_steps"]
    return {
        site.site: site_progress(site.site, site.progress, steps)
        for site in rows
        if site.progress and site.progress["round"] == row.round + 1 and who.site in (None, site.site)
    }


def site_progress(site: str, report: Mapping[str, Any], steps: int) -> SiteProgress:
    """A site's last report, with the time that its remaining steps will take."""
    speed = report["steps_per_second"]
    return SiteProgress(
        site=site,
        round=report["round"],
        steps=report["steps"],
        local_steps=steps,
        patches_per_second=report["patches_per_second"],
        seconds_left=(steps - report["steps"]) / speed if speed else None,
        at=report["at"],
    )
