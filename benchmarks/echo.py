"""A site that trains nothing: the model it fetched goes back as its update, the whole way of a real one."""

from app.site.agent import Agent
from app.site.state import Base
from app.site.work import Job, Order, SiteWork
from fl_core.state import SiteState, Update
from fl_core.wire import packed_parts


class EchoWork(SiteWork):
    """Fetches, sends back, and proposes as ever."""

    def train_now(self, order: Order, job: Job) -> Order:
        """A round without local work."""
        with self.state(order["run"]) as state:
            state.settle(Base(**order["base"]))
        server = self.fetched(order["model"])
        patches = self.data(0).patches
        update = Update(self.settings.name, server.round + 1, patches, 1, 0.0, server.model, {}, {})
        found = self.leave("update", packed_parts(update))
        with self.state(order["run"]) as state:
            state.propose(Base(update.round, found["digest"]), SiteState())
        return found


class EchoAgent(Agent):
    """What NVFlare loads instead of the real agent."""

    kind = EchoWork
