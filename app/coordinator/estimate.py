"""A run's settings → what it will cost: bytes over the wire, and time by what comparable runs took."""

import statistics
from functools import lru_cache

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.coordinator.configuration import check_settings, site_count
from app.coordinator.db import RoundRow, RunRow
from app.coordinator.service import Service
from app.schemas.runs import RunSettings
from app.schemas.tables import Estimate
from fl_core.family import algorithm_named
from fl_core.models import build_model
from fl_core.traffic import Traffic, traffic

ALIKE = ("engine", "algorithm", "model", "local_steps", "batch", "device", "precision", "threads")


@lru_cache(maxsize=64)
def cost(algorithm: str, model: str) -> tuple[Traffic, int]:
    """What a site sends in a round, and the number of the model's weights."""
    network = build_model(model, channels=1, classes=5, seed=0)
    return traffic(algorithm_named(algorithm), network), sum(weight.numel() for weight in network.parameters())


def estimate(service: Service, settings: RunSettings) -> Estimate:
    """The cost of a run that does not exist yet."""
    check_settings(settings)
    sent, parameters = cost(settings.algorithm, settings.model)
    pooled = algorithm_named(settings.algorithm).pooled
    with service.reading() as session:
        seconds = seconds_a_round(session, settings)
    return Estimate(
        traffic_bytes=None if pooled else 2 * sent.bytes * site_count(settings) * settings.rounds,
        traffic=sent.formula,
        seconds=None if seconds is None else seconds * settings.rounds,
        parameters=parameters,
    )


def seconds_a_round(session: Session, settings: RunSettings) -> float | None:
    """The median of the newest rounds of the newest run alike in all that takes time; None without one."""
    for run in session.scalars(select(RunRow).where(RunRow.round > 0).order_by(RunRow.number.desc()).limit(50)):
        if work_of(RunSettings.model_validate(run.settings)) == work_of(settings):
            newest = select(RoundRow.record).where(RoundRow.run == run.id).order_by(RoundRow.number.desc())
            return float(statistics.median(record["seconds"] for record in session.scalars(newest.limit(9))))
    return None


def work_of(settings: RunSettings) -> tuple[object, ...]:
    """What decides how long a round takes."""
    named = (getattr(settings, name) for name in ALIKE)
    return (*named, settings.data.data, settings.data.image_size, site_count(settings))
