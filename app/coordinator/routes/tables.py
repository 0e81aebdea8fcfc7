"""`/algorithms`, `/models`, `/presets`: what there is to choose from."""

from fastapi import APIRouter

from app.coordinator import tables
from app.coordinator.deps import Anyone
from app.schemas.tables import AlgorithmRow, ModelRow, Preset

router = APIRouter(tags=["tables"])


@router.get("/algorithms")
def algorithms(who: Anyone) -> tuple[AlgorithmRow, ...]:
    """The table of algorithms, each explained in two sentences."""
    return tables.algorithms()


@router.get("/models")
def models(who: Anyone) -> tuple[ModelRow, ...]:
    """The networks that can be trained."""
    return tables.models()


@router.get("/presets")
def presets(who: Anyone) -> tuple[Preset, ...]:
    """Settings to begin with."""
    return tables.PRESETS
