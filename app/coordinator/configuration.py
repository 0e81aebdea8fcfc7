"""A run's settings, as asked for over REST → the plan and the data that the core trains with."""

import re

from app.schemas.runs import RunSettings
from app.schemas.shape import SITE_NAME
from app.sources import DataChoice, parse_site
from fl_core.family import algorithm_named
from fl_core.models import MODELS
from fl_core.plan import Plan
from fl_core.schedule import parse_schedule
from mammofed.errors import BadSetting


def plan_of(settings: RunSettings) -> Plan:
    """The plan; what the table or the schedule refuses is refused here already."""
    if settings.model not in MODELS:
        raise BadSetting(f"model {settings.model!r}: choose one of {', '.join(MODELS)}")
    return Plan(
        algorithm=settings.algorithm,
        model=settings.model,
        schedule=parse_schedule(settings.schedule, settings.rate, settings.warmup),
        rounds=settings.rounds,
        local_steps=settings.local_steps,
        batch=settings.batch,
        momentum=settings.momentum,
        variance_floor=settings.variance_floor,
        freeze_from=settings.freeze_from,
        evaluate_every=settings.evaluate_every,
        seed=settings.seed,
        device=settings.device,
        precision=settings.precision,
        threads=settings.threads,
    )


def data_of(settings: RunSettings) -> DataChoice:
    """The data of a run on one machine."""
    data = settings.data
    return DataChoice(
        data.data,
        data.folder,
        data.sites,
        data.skew,
        data.image_size,
        data.patches,
        settings.seed,
        data.site,
        data.test,
    )


def check_settings(settings: RunSettings) -> None:
    """Refuse what cannot train, before anyone waits for it."""
    plan_of(settings)
    for words in settings.data.site:
        check_site_name(parse_site(words)[0])
    sites = site_count(settings)
    if settings.quorum is not None and settings.quorum > sites:
        raise BadSetting(f"quorum {settings.quorum}: the run has {sites} sites")
    if settings.engine == "nvflare":
        if not settings.sites:
            raise BadSetting("engine 'nvflare' needs `sites`: the names of the enrolled sites that take part")
        if len(set(settings.sites)) < len(settings.sites):
            raise BadSetting(f"sites {list(settings.sites)}: name each site once")
        if algorithm_named(settings.algorithm).pooled:
            raise BadSetting(
                f"{settings.algorithm!r} pools the data, and across hospitals data stay: use another row"
            )


def check_site_name(name: str) -> None:
    """Refuse names that files, addresses and certificates could not tell apart."""
    if not re.fullmatch(SITE_NAME, name):
        raise BadSetting(f"site {name!r}: use small letters, digits and hyphens, at most 63, as hospital-1")


def site_count(settings: RunSettings) -> int:
    """How many sites the run has."""
    if settings.engine == "nvflare":
        return len(settings.sites)
    return len(settings.data.site) or settings.data.sites


def quorum_of(settings: RunSettings) -> int:
    """How many sites a round needs."""
    return settings.quorum or site_count(settings)
