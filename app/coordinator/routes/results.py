"""`/runs/{run}/predictions`, `/runs/{run}/results`, `/compare`, `/studies`: what the models are worth."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import func, select

from app.coordinator import results
from app.coordinator.comparison import compare
from app.coordinator.db import RunRow
from app.coordinator.deps import Anyone, TheService
from app.coordinator.runs import row_of
from app.coordinator.studies import studies
from app.schemas.results import Comparison, Predictions, Results, Study
from app.schemas.shape import Which

router = APIRouter(tags=["results"])
Threshold = Annotated[float | None, Query(ge=0, le=1, allow_inf_nan=False)]


@router.get("/runs/{run}/predictions")
def predictions(service: TheService, who: Anyone, run: str, which: Which = "best") -> Predictions:
    """Scores and labels of the test patches, in an order that does not tell whose they are."""
    return results.predictions(service, run, which)


@router.get("/runs/{run}/results", response_model=Results)
def what_it_is_worth(
    service: TheService,
    who: Anyone,
    run: str,
    request: Request,
    which: Which = "best",
    threshold: Threshold = None,
) -> Response:
    """Curves, confusion, calibration and per-class figures; made once, and 304 to those who have them."""

    def answer(shown: results.Shown) -> Response:
        key = ("results", run, which, who.site, threshold, shown.round, shown.kept.get("scores"))
        return service.kept.answer(
            request, key, lambda: results.results(service, who, shown, threshold).model_dump_json().encode()
        )

    return results.while_kept(service, run, which, answer)


@router.get("/compare", response_model=Comparison)
def side_by_side(
    service: TheService,
    who: Anyone,
    request: Request,
    runs: Annotated[str, Query(min_length=1, max_length=2000, description="ids, with commas between them")],
    reference: Annotated[str | None, Query(description="the first one, if not given")] = None,
) -> Response:
    """Runs side by side, with paired p-values against the reference and the gap that each recovers."""
    names = tuple(dict.fromkeys(name.strip() for name in runs.split(",")))
    with service.reading() as session:
        stand = tuple((row.state, row.best_round) for row in (row_of(session, name) for name in names))
        finished = session.scalar(select(func.count()).where(RunRow.state == "completed"))

    def make() -> bytes:
        return compare(service, names, reference or names[0]).model_dump_json().encode()

    return service.kept.answer(request, ("compare", names, reference, stand, finished), make)


@router.get("/studies")
def list_studies(service: TheService, who: Anyone) -> tuple[Study, ...]:
    """Metrics against heterogeneity: studies that `mammofed study` wrote, and own finished runs."""
    with service.reading() as session:
        return studies(session, service.settings.studies)
