"""`/runs`: create, control, look at."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse

from app.coordinator import runs, streams, views
from app.coordinator.deps import LARGEST_ID, After, Anyone, Lead, Limit, TheService
from app.coordinator.estimate import estimate
from app.coordinator.problems import not_found
from app.coordinator.runs import row_of
from app.schemas.runs import Drift, Event, Round, Run, RunMetrics, RunSettings, RunSite
from app.schemas.shape import Action, Page, SiteName
from app.schemas.tables import Estimate

router = APIRouter(tags=["runs"])


@router.post("/runs", status_code=HTTPStatus.CREATED)
def create(
    service: TheService,
    who: Lead,
    settings: RunSettings,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> Run:
    """Create a draft; the same `Idempotency-Key` and settings give the same run."""
    return runs.create(service, who, settings, idempotency_key)


@router.post("/runs/estimate")
def what_it_costs(service: TheService, who: Lead, settings: RunSettings) -> Estimate:
    """Time and traffic of a run with these settings, which is not created."""
    return estimate(service, settings)


@router.get("/runs")
def list_runs(service: TheService, who: Anyone, after: str | None = None, limit: Limit = 50) -> Page[Run]:
    """All runs, the newest first."""
    return runs.list_runs(service, who, after, limit)


@router.get("/runs/{run}")
def read(service: TheService, who: Anyone, run: str) -> Run:
    """One run as it stands."""
    return runs.read(service, who, run)


@router.post("/runs/{run}/{action}")
def act(service: TheService, who: Lead, run: str, action: Action) -> Run:
    """Start, pause (after the open round), resume, step (one round, then pause) or stop (at once)."""
    return runs.act(service, who, run, action)


@router.get("/runs/{run}/rounds")
def rounds(
    service: TheService, who: Anyone, run: str, after: After | None = None, limit: Limit = 50
) -> Page[Round]:
    """Committed rounds, the newest first; after a number come those before it."""
    with service.reading() as session:
        return views.rounds(session, who, run, after, limit)


@router.get("/runs/{run}/metrics", response_model=RunMetrics)
def metrics(
    service: TheService,
    who: Anyone,
    run: str,
    request: Request,
    after: After = 0,
    points: Annotated[int, Query(ge=2, le=5000)] = 500,
) -> Response:
    """Curves of the rounds after the given one; made once a round, and 304 to those who have it."""
    with service.reading() as session:
        row = row_of(session, run)
        key = ("curves", run, who.site, after, points, row.round, row.epoch)

        def make() -> bytes:
            return views.metrics(session, who, run, after, points).model_dump_json().encode()

        return service.kept.answer(request, key, make)


@router.get("/runs/{run}/sites")
def sites(service: TheService, who: Anyone, run: str) -> tuple[RunSite, ...]:
    """What is known of the sites' data: counts and histograms, never an image."""
    with service.reading() as session:
        return views.run_sites(session, who, run)


@router.get("/runs/{run}/sites/{site}/gallery", response_class=FileResponse)
def gallery(service: TheService, who: Anyone, run: str, site: SiteName) -> FileResponse:
    """A PNG of synthetic patches, one row a class; there is none of real patches."""
    with service.reading() as session:
        names = [known.site for known in views.run_sites(session, who, run) if known.has_gallery]
    path = service.settings.run_folder(run) / "galleries" / f"{site}.png"
    if site not in names or not path.exists():
        raise not_found(f"gallery of site {site!r}: only synthetic patches are shown here")
    return FileResponse(path, media_type="image/png")


@router.get("/runs/{run}/drift")
def drift(
    service: TheService,
    who: Anyone,
    run: str,
    round: Annotated[int | None, Query(ge=1, le=10**6)] = None,
    points: Annotated[int, Query(ge=2, le=5000)] = 500,
) -> Drift:
    """How far the sites are from the server in each batch-norm layer."""
    with service.reading() as session:
        return views.drift(session, who, run, round, points)


@router.get(
    "/runs/{run}/events",
    response_model=Page[Event],
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
def events(
    service: TheService,
    who: Anyone,
    run: str,
    accept: Annotated[str, Header()] = "application/json",
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    after: After = 0,
    limit: Limit = 200,
) -> Page[Event] | StreamingResponse:
    """What happened to a run: as a page, or live where `Accept: text/event-stream` asks for it."""
    with service.reading() as session:
        if "text/event-stream" not in accept:
            return views.events(session, who, run, after, limit)
        row_of(session, run)
    start = min(int(last_event_id), LARGEST_ID) if last_event_id and last_event_id.isdecimal() else after
    return StreamingResponse(streams.follow(service, who, run, start), media_type="text/event-stream")


@router.get("/events")
def all_events(service: TheService, who: Anyone, after: After = 0, limit: Limit = 200) -> Page[Event]:
    """What happened to all runs and sites."""
    with service.reading() as session:
        return views.events(session, who, None, after, limit)
