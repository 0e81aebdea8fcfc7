"""`/runs/{run}/model`, `/runs/{run}/model-card`: a trained model to take along, and what must be known of it."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from app.coordinator.cards import model_card
from app.coordinator.deps import Anyone, TheService
from app.coordinator.exports import Wish, kept_file, made_file
from app.schemas.shape import ModelFormat, Which

router = APIRouter(tags=["models"])


@router.get(
    "/runs/{run}/model",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}, "application/zip": {}}}},
)
async def model(
    service: TheService,
    who: Anyone,
    run: str,
    which: Which = "best",
    form: Annotated[ModelFormat, Query(alias="format")] = "safetensors",
    site: Annotated[
        str | None, Query(max_length=200, description="where each site has a model of its own")
    ] = None,
) -> Response:
    """The model as a file that gives the trained model's scores: this has been checked."""
    wish = Wish(run, which, form, site)
    found = await run_in_threadpool(kept_file, service, who, wish)
    if found is None:
        found = await asyncio.wrap_future(service.exporter.pool.submit(made_file, service, who, wish))
    headers = {"Content-Disposition": f'attachment; filename="{found.name}"'}
    return Response(found.data, media_type=found.media_type, headers=headers)


@router.get(
    "/runs/{run}/model-card",
    response_class=Response,
    responses={200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}},
)
def card(service: TheService, who: Anyone, run: str) -> Response:
    """What the best model is, what it may be used for, and how well it does; Markdown, filled from the run."""
    return Response(model_card(service, who, run), media_type="text/markdown; charset=utf-8")
