"""Orders of the coordinator → training and scoring at the site; only updates, metrics and counts go back.

Training and scoring run in a thread: their order, and `wait` after it, are answered when they end, or after so
many seconds with how far they are. Each order may be given twice without harm, since an answer may be lost on the
way. What goes wrong is answered in words that hold nothing of the site's data; the site's own log says more.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from app.site.data import SiteSettings, augmentation_of, introduce, open_site
from app.site.parts import Blocks, digest_of, joined, memory_of, receive
from app.site.state import Base, Refusal, RunState, run_folder
from fl_core.data import SiteData
from fl_core.evaluate import Scored, headline, score
from fl_core.exchange import Exchange
from fl_core.local import Workplace, train_round, workplace
from fl_core.metrics import withhold
from fl_core.models import build_model
from fl_core.plan import plan_from_json
from fl_core.state import ServerState
from fl_core.wire import packed_parts, tensor_parts, unpack_in_place
from mammofed import __version__
from mammofed.errors import MammofedError, TrainingFailed

log = logging.getLogger(__name__)
Order = dict[str, Any]
Fetch = Callable[[str, int, int], Blocks]  # (digest, offset, size) → a part of the model on offer
Meet = Callable[[str, bytes, str, int], tuple[bytes, int]]  # (key, values, dtype, weight) → mean, Σ weights


class Abandoned(MammofedError):
    """The order no longer counts: another has come."""


@dataclass
class Job:
    """An order under way, and what came of it."""

    key: str
    of: int  # steps in all
    steps: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    result: Order | None = None
    error: str | None = None

    def moved(self, steps: int) -> None:
        """So many steps are done; the next does not begin where the order no longer counts."""
        self.steps = steps
        if self.stopped.is_set():
            raise Abandoned(f"order {self.key} no longer counts")

    def told(self) -> Order:
        """How far it is: progress, apart from the fact that the site answers."""
        state = "working" if not self.ended.is_set() else "failed" if self.error else "done"
        return {"state": state, "steps": self.steps, "of": self.of, "error": self.error, **(self.result or {})}


class SiteWork:
    """One run at one site, from the first order to the end of the process."""

    def __init__(self, home: Path, settings: SiteSettings, fetch: Fetch, meet: Meet) -> None:
        self.home, self.settings = home, settings
        self.fetch, self.meet = fetch, meet
        self.orders: Mapping[str, Callable[[Order], memoryview | Order]] = {
            "hello": self.hello,
            "train": self.train,
            "evaluate": self.evaluate,
            "wait": self.wait,
            "send": self.send,
            "commit": self.commit,
        }
        self.job: Job | None = None
        self.worker: threading.Thread | None = None
        self.ordering, self.filing = threading.Lock(), threading.Lock()
        self.model: tuple[str, ServerState] | None = None  # the last one fetched, by its digest
        self.left: dict[str, memoryview] = {}  # by the last order, for `send`: an update, or scores
        self.places: dict[str, Workplace] = {}

    def take(self, name: str, text: str) -> bytes | memoryview:
        """Carry out one order; the answer is JSON, or raw bytes of an update."""
        try:
            (self.home / "contact").touch()
            if name not in self.orders:
                raise Refusal(f"order {name!r} is not known here: this site has mammofed {__version__}")
            answer = self.orders[name](json.loads(text))
        except Exception as error:
            answer = {"error": told_outside(error)}
        return answer if isinstance(answer, memoryview) else json.dumps(answer).encode()

    # orders

    def hello(self, order: Order) -> Order:
        """Who this is, and how much data it trains on."""
        about = {"site": self.settings.name, "version": __version__, "paused": self.is_paused}
        return {**about, **introduce(self.settings, self.data(0))}

    def train(self, order: Order) -> Order:
        """Begin a round from the state that the server names."""
        if self.is_paused:
            raise Refusal("paused by its operator")
        return self.begin(order, order["plan"]["local_steps"], lambda job: self.train_now(order, job))

    def evaluate(self, order: Order) -> Order:
        """Begin to score the test patches with the model on offer."""
        return self.begin(order, 0, lambda job: self.evaluate_now(order, job))

    def wait(self, order: Order) -> Order:
        """How far the order of that key is, at the latest after so many seconds."""
        job = self.job
        if job is None or job.key != order["key"]:
            return {"state": "unknown"}
        job.ended.wait(order["seconds"])
        return job.told()

    def send(self, order: Order) -> memoryview:
        """A part of the update, or of the scores, that the last order left."""
        return self.left[order["what"]][order["offset"] : order["offset"] + order["size"]]

    def commit(self, order: Order) -> Order:
        """The round is committed with this site in it: its proposed state is now the state."""
        with self.state(order["run"]) as state:
            state.settle(Base(**order["base"]), keep_newer=True)
        return {}

    # what they start

    def begin(self, order: Order, steps: int, work: Callable[[Job], Order]) -> Order:
        """Start the work in a thread, unless it is under way, and wait; what was under way before is given up."""
        with self.ordering:
            before = self.job
            if before is None or before.key != order["key"]:
                if before is not None:
                    before.stopped.set()
                self.job = job = Job(order["key"], steps)
                self.worker = threading.Thread(target=self.run, args=(job, work, self.worker), daemon=True)
                self.worker.start()
        return self.wait(order)

    def run(self, job: Job, work: Callable[[Job], Order], before: threading.Thread | None) -> None:
        """In the thread: wait for the end of what was given up, work, keep the outcome."""
        if before is not None:
            before.join()
        self.left = {}
        try:
            job.moved(0)
            job.result = work(job)
        except Exception as error:
            job.error = told_outside(error)
        finally:
            job.ended.set()

    def train_now(self, order: Order, job: Job) -> Order:
        """Settle, fetch, train, propose."""
        with self.state(order["run"]) as state:
            own = state.settle(Base(**order["base"]))
        server = self.fetched(order["model"])
        place, data = self.place(order["plan"]), self.data(order["seed"])
        exchange = exchange_by(self.meet, order["key"]) if order["meets"] else None
        update, proposed = train_round(
            place, data, server, own, exchange, progress=lambda steps, loss: job.moved(steps)
        )
        found = self.leave("update", packed_parts(update))
        with self.state(order["run"]) as state:
            state.propose(Base(update.round, found["digest"]), proposed)
        return found

    def evaluate_now(self, order: Order, job: Job) -> Order:
        """Metrics of the site's test patches by the model that serves it; the scores, if the site shares them.

        Of a class with fewer patches than the site's floor neither metrics nor scores leave it.
        """
        server = self.fetched(order["model"])
        place, data = self.place(order["plan"]), self.data(order["seed"])
        with self.state(order["run"]) as state:
            private = state.read(Base(**order["base"])).private
        found = score(place, {**server.model, **private}, data.test)
        floor = self.settings.floor
        shown = Scored(*withhold(found.scores, found.labels, floor))
        metrics = headline(shown, order["resamples"], place.plan.seed)
        answer: Order = {"metrics": metrics, "n": len(shown.labels), "scores": None}
        if self.settings.share_scores:
            tensors = {"scores": torch.from_numpy(shown.scores), "labels": torch.from_numpy(shown.labels)}
            answer["scores"] = self.leave("scores", tensor_parts(tensors, {}))
        return answer

    # what they need

    @property
    def is_paused(self) -> bool:
        """Whether `mammofed site pause` was the operator's last word."""
        return (self.home / "paused").exists()

    @cached_property
    def opened(self) -> SiteData:
        """The site's patches, opened once."""
        return open_site(self.settings, 0)

    def data(self, seed: int) -> SiteData:
        """The site's patches, in the order of that seed."""
        found = self.opened
        return SiteData(found.name, found.train, found.test, seed)

    @contextmanager
    def state(self, run: str) -> Iterator[RunState]:
        """Where the site keeps what it has of the run: for one order at a time, as late news come beside work."""
        with self.filing:
            yield RunState(run_folder(self.home, run))

    def place(self, plan: Order) -> Workplace:
        """Where to train that plan."""
        key = json.dumps(plan, sort_keys=True)
        if key not in self.places:
            about = introduce(self.settings, self.opened)
            wanted = plan_from_json(plan)
            model = build_model(wanted.model, about["shape"][0], len(about["classes"]), wanted.seed)
            self.places = {key: workplace(wanted, model, augmentation_of(self.settings))}
        return self.places[key]

    def leave(self, what: str, parts: list[bytes | memoryview]) -> Order:
        """Keep bytes where `send` finds them; their digest and size. After a crash the round is trained again."""
        self.left[what] = found = memoryview(joined(parts))
        return {"digest": digest_of(found), "bytes": len(found)}

    def fetched(self, offer: Order) -> ServerState:
        """The model on offer, fetched part by part unless it is here already, and its digest verified."""
        if self.model is not None and self.model[0] == offer["digest"]:
            return self.model[1]
        self.model = None
        memory = memory_of(offer["bytes"])
        if receive(partial(self.fetch, offer["digest"]), offer["bytes"], memory.write) != offer:
            raise Refusal("the model that arrived is not the one on offer")
        self.model = offer["digest"], unpack_in_place(ServerState, memory)
        return self.model[1]


def exchange_by(meet: Meet, key: str) -> Exchange:
    """This site's end of the layer-wise exchange, from tensor to tensor."""

    def exchange(values: Tensor, weight: int) -> tuple[Tensor, int]:
        array = values.detach().cpu().numpy()
        try:
            mean, total = meet(key, array.tobytes(), str(array.dtype), weight)
        except Exception as error:  # whatever the engine raises, there is no mean
            raise TrainingFailed("another site left the layer-wise exchange of this round") from error
        found = torch.frombuffer(bytearray(mean), dtype=values.dtype).reshape(values.shape)
        return found.to(values.device), total

    return exchange


def told_outside(error: Exception) -> str:
    """What may be said of an error beyond the site: refusals and failed training, which speak of no data."""
    log.error("order failed", exc_info=error)
    if isinstance(error, Refusal | TrainingFailed | Abandoned):
        return str(error)
    return f"{type(error).__name__}: the site's own log says more"
