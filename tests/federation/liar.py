"""An agent that NVFlare loads at a site instead of the honest one: which lie it tells, the run's name says."""

from app.site.agent import Agent
from app.site.work import Job, Order, SiteWork
from fl_core.state import Update
from fl_core.wire import packed_parts, unpack
from tests.federation.lies import LIES

AGENT = "tests.federation.liar.LyingAgent"
LIAR = "hospital-5"  # alone; the others that load it are honest
NAMES = {kind: f"lie-{number}" for number, kind in enumerate(LIES)}  # of runs


class LyingWork(SiteWork):
    """Trains as ever, and sends something else."""

    def train_now(self, order: Order, job: Job) -> Order:
        """A round, and the lie."""
        found = super().train_now(order, job)
        [(change, _)] = [LIES[kind] for kind, run in NAMES.items() if run == order["run"]]
        if self.settings.name != LIAR:
            return found
        return self.leave("update", packed_parts(change(unpack(Update, bytes(self.left["update"])))))


class LyingAgent(Agent):
    """What NVFlare loads."""

    kind = LyingWork
