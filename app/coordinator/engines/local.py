"""A run and its ledger → rounds trained on this machine, in the worker process itself."""

import time
from collections.abc import Callable
from functools import partial

from torch import nn

from app.coordinator.configuration import data_of, plan_of, quorum_of
from app.coordinator.facts import facts_of, write_galleries
from app.coordinator.ledger import RunLedger
from app.schemas.runs import RunSettings
from app.simulation import federation_of
from app.sources import sites_from
from fl_core.drift import Drift, drift
from fl_core.evaluate import above_floor, report
from fl_core.roles import roles
from fl_core.rounds import Federation, Moment, run_rounds
from mammofed.files import writing

LOOK_AGAIN = 0.5  # seconds between two looks for a missing site


def train_locally(ledger: RunLedger, settings: RunSettings) -> None:
    """Train what is left of the run; leaves by `Interrupted` when the run is paused, stopped or taken over."""
    choice = data_of(settings)
    sites = sites_from(choice)
    federation = federation_of(plan_of(settings), choice, sites)
    ledger.describe(facts_of(choice, sites))
    with writing(ledger.folder):
        write_galleries(ledger.folder, choice, sites)
    ledger.measure = measure_of(federation)
    scored = partial(report, resamples=settings.resamples, seed=settings.seed)
    presence = partial(await_sites, ledger, settings, tuple(site.name for site in sites))

    def progress(site: str, steps: int) -> None:
        ledger.progress(site, steps, settings.batch)

    for _ in run_rounds(federation, scored, ledger, progress=progress, present=presence, shown=above_floor):
        pass


def measure_of(federation: Federation) -> Callable[[Moment], Drift]:
    """How the drift of a round is measured for this federation's model."""
    return measure_of_model(federation.build())


def measure_of_model(model: nn.Module) -> Callable[[Moment], Drift]:
    """The same from the model itself."""
    parts = roles(model)

    def measure(moment: Moment) -> Drift:
        return drift(parts, moment.server, moment.states, moment.updates)

    return measure


def await_sites(ledger: RunLedger, settings: RunSettings, names: tuple[str, ...]) -> frozenset[str]:
    """The sites of the next round, as soon as they are a quorum."""
    needed = quorum_of(settings)
    while True:
        ledger.obey()
        away = {name: why for name, why in ledger.conditions().items() if name in names and why != "active"}
        here = frozenset(names) - away.keys()
        if len(here) >= needed:
            ledger.wait_for(None)
            ledger.away = away
            return here
        ledger.wait_for(f"{len(here)} of {needed} sites are here; away: {', '.join(sorted(away))}")
        time.sleep(LOOK_AGAIN)
