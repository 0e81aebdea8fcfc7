"""`/healthz`, `/readyz`, `/metrics`: for those who watch over the service; no sign-in, nothing of the studies."""

from http import HTTPStatus

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from sqlalchemy import func, select

from app.coordinator.db import RunRow, SiteRow
from app.coordinator.deps import TheService
from app.coordinator.service import Service
from app.schemas.tables import Health
from mammofed import __version__

router = APIRouter(tags=["health"])


@router.get("/healthz")
def alive(service: TheService) -> Health:
    """The process answers."""
    return health(service, ())


@router.get("/readyz", responses={503: {"model": Health}})
def ready(service: TheService, response: Response) -> Health:
    """Database and folder can be written to, and workers are looked after."""
    problems = list(service.probe.problems())
    if not service.supervisor.thread.is_alive():
        problems.append("the supervisor of the workers has ended")
    if problems:
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return health(service, tuple(problems))


def health(service: Service, problems: tuple[str, ...]) -> Health:
    """How the service is."""
    return Health(
        status="failing" if problems else "ok",
        version=__version__,
        database=service.engine.dialect.name,
        workers=len(service.supervisor.workers),
        problems=problems,
    )


@router.get("/metrics", response_class=Response)
def prometheus(service: TheService) -> Response:
    """Counts for Prometheus."""
    registry = CollectorRegistry()
    runs = Gauge("mammofed_runs", "Runs by state", ["state"], registry=registry)
    rounds = Gauge("mammofed_rounds", "Committed rounds of unfinished runs", ["run"], registry=registry)
    sites = Gauge("mammofed_sites", "Enrolled sites by condition", ["condition"], registry=registry)
    workers = Gauge("mammofed_workers", "Worker processes", registry=registry)
    workers.set(len(service.supervisor.workers))
    with service.reading() as session:
        for state, count in session.execute(select(RunRow.state, func.count()).group_by(RunRow.state)):
            runs.labels(state).set(count)
        for run, round in session.execute(select(RunRow.id, RunRow.round).where(RunRow.ended_at.is_(None))):
            rounds.labels(run).set(round)
        for condition, count in session.execute(
            select(SiteRow.condition, func.count()).group_by(SiteRow.condition)
        ):
            sites.labels(condition).set(count)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
