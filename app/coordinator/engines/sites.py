"""A run and its ledger → rounds trained at hospitals, reached through NVFlare."""

from collections.abc import Mapping
from typing import Any

from app.coordinator import audit
from app.coordinator.configuration import plan_of, quorum_of
from app.coordinator.db import RunSiteRow, writing_session
from app.coordinator.engines.local import measure_of_model
from app.coordinator.engines.nvflare import Admin, NVFlare
from app.coordinator.ledger import RunLedger
from app.federation.conduct import Conductor
from app.federation.terms import Terms
from app.schemas.runs import RunSettings
from app.settings import Settings
from fl_core.checkpoint import Checkpoint
from fl_core.models import build_model
from fl_core.rounds import Moment
from mammofed.errors import BadSetting

UNKNOWN = {"style": "not known yet", "train": {}, "test": {}, "vendors": {}}
UNSEEN = {"histogram": None, "histogram_before": None, "has_gallery": False}  # pixels, even counted, stay


def train_over_sites(ledger: RunLedger, asked: RunSettings, settings: Settings) -> None:
    """Train what is left of the run; leaves by `Interrupted` when the run is paused, stopped or taken over."""
    if settings.federation is None:
        raise BadSetting("engine 'nvflare' needs a federation: set MAMMOFED_FEDERATION to its folder")
    terms = Terms(
        ledger.run,
        plan_of(asked),
        asked.sites,
        quorum=quorum_of(asked),
        deadline=asked.deadline,
        silence=settings.silence,
        norm_factor=settings.norm_factor,
        resamples=asked.resamples,
    )
    admin = Admin(settings.federation)
    folder = ledger.folder / "engine"
    try:
        told = SiteLedger(ledger, terms, audit.audit_key(settings.home))
        Conductor(terms, told, NVFlare(admin, ledger.run, folder), folder).run()
    finally:
        admin.close()
    if ledger.round < terms.plan.rounds:
        ledger.obey()


class SiteLedger:
    """The run's ledger as rounds over sites need it."""

    def __init__(self, ledger: RunLedger, terms: Terms, key: bytes) -> None:
        self.ledger, self.terms, self.key = ledger, terms, key

    def latest(self) -> Checkpoint | None:
        """The last committed round."""
        return self.ledger.latest()

    def committed(self) -> int:
        """Its number, by the database."""
        return self.ledger.committed()

    def commit(self, checkpoint: Checkpoint, moment: Moment) -> None:
        """Keep a round, with who was away and why."""
        self.ledger.away = {site: why["text"] for site, why in checkpoint.record["left_out"].items()}
        self.ledger.commit(checkpoint, moment)

    def order(self) -> str:
        """What to do next."""
        return self.ledger.order()

    def present(self) -> frozenset[str]:
        """The run's sites that are neither paused nor withdrawn."""
        conditions = self.ledger.conditions()
        return frozenset(site for site in self.terms.sites if conditions.get(site, "active") == "active")

    def describe(self, said: Mapping[str, Any]) -> None:
        """Keep what sites told of their data, and measure drift from now on."""
        first, plan = next(iter(said.values())), self.terms.plan
        self.ledger.measure = measure_of_model(
            build_model(plan.model, first["shape"][0], len(first["classes"]), plan.seed)
        )
        with writing_session(self.ledger.engine) as session:
            rows = {site: session.get(RunSiteRow, (self.ledger.run, site)) for site in self.terms.sites}
            before = {site: row.facts for site, row in rows.items() if row is not None}
        self.ledger.describe(
            {
                site: facts_of(said[site]) if site in said else before.get(site, {**UNKNOWN, **UNSEEN})
                for site in self.terms.sites
            }
        )

    def event(self, kind: str, text: str, site: str | None = None) -> None:
        """Tell what happened; what a site was refused for is audited."""
        if kind == "waiting":
            self.ledger.wait_for(text)
            return
        if kind == "segment":
            self.ledger.wait_for(None)
        self.ledger.event(kind, text, round=self.ledger.round, site=site)
        if kind == "site-refused" and site is not None:
            with writing_session(self.ledger.engine) as session:
                audit.record(session, self.key, "engine", "update.refuse", site, run=self.ledger.run, why=text)

    def progress(self, site: str, told: Mapping[str, Any]) -> None:
        """How far a site is in the open round."""
        if told["steps"]:
            self.ledger.progress(site, told["steps"], self.terms.plan.batch)


def facts_of(hello: Mapping[str, Any]) -> dict[str, Any]:
    """A site's words in the shape of the ledger; a small count looks like none."""
    counts = {
        part: {name: number or None for name, number in zip(hello["classes"], hello[part], strict=True)}
        for part in ("train", "test")
    }
    return {"style": hello["style"], **counts, "vendors": hello["vendors"], **UNSEEN}
