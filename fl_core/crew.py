"""How the sites of one machine train a round: in a fixed order, in threads that meet, or in worker processes.

All three give equal results: a site's round depends on what it receives alone, and the updates come back in the
order of the sites.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from fl_core.data import Augment, SiteData
from fl_core.device import release_memory
from fl_core.exchange import Meeting, MeetingManager, exchange_at
from fl_core.local import Progress, Workplace, train_round, workplace
from fl_core.plan import Plan
from fl_core.state import ServerState, SiteState, Update
from fl_core.wire import pack, unpack
from mammofed.errors import BadSetting
from mammofed.processes import leave_with_parent

Result = TypeVar("Result")
Trained = tuple[Update, SiteState]
Crew = Callable[[ServerState, Mapping[str, SiteState], Sequence[SiteData]], Iterator[Trained]]  # of these sites
SiteProgress = Callable[[str, int], None]  # (site, steps done in this round)


@dataclass(frozen=True)
class Task:
    """All that a process needs to train: the plan, the network, the sites' data."""

    plan: Plan
    build: Callable[[], nn.Module]
    sites: tuple[SiteData, ...]  # in the order of the sums
    augment: Augment | None = None

    def workplace(self) -> Workplace:
        """A place to train at, in this process."""
        return workplace(self.plan, self.build(), self.augment)


@contextmanager
def crew_of(task: Task, place: Workplace, workers: int, progress: SiteProgress) -> Iterator[Crew]:
    """The crew that fits: `workers` processes, or this process where 0 is asked for."""
    meets = task.plan.row.meets_layerwise
    if workers < 0 or (workers and meets and workers < len(task.sites)):
        raise BadSetting(f"workers {workers}: 0 or more, and for {task.plan.algorithm!r} one for each site")
    if meets and not workers and place.bench.device.type != "cpu":
        raise BadSetting(
            f"{task.plan.algorithm!r} on a GPU needs a process a site: use --workers {len(task.sites)}"
        )
    if workers:
        with processes(task, workers, meets) as crew:
            yield crew
    elif task.plan.row.meets_layerwise:
        yield in_threads(task, progress)
    else:
        yield in_turn(place, progress)


def in_turn(place: Workplace, progress: SiteProgress) -> Crew:
    """One site after the other at one place; each update can be summed before the next is trained."""

    def crew(
        server: ServerState, states: Mapping[str, SiteState], present: Sequence[SiteData]
    ) -> Iterator[Trained]:
        for data in present:
            yield train_round(place, data, server, states[data.name], progress=told(progress, data.name))
            release_memory(place.bench.device)

    return crew


def told(progress: SiteProgress, site: str) -> Progress:
    """A site's own end of the progress report."""
    return lambda steps, loss: progress(site, steps)


def in_threads(task: Task, progress: SiteProgress) -> Crew:
    """All sites at once, each at its own place, meeting layer by layer."""
    places = [task.workplace() for _ in task.sites]

    def crew(
        server: ServerState, states: Mapping[str, SiteState], present: Sequence[SiteData]
    ) -> Iterator[Trained]:
        meeting = Meeting(len(present))

        def train(index: int) -> Trained:
            data = present[index]
            exchange = exchange_at(meeting, index)
            tell = told(progress, data.name)
            return train_round(places[index], data, server, states[data.name], exchange, tell)

        with ThreadPoolExecutor(len(present)) as pool:
            yield from gathered([pool.submit(train, index) for index in range(len(present))], meeting)

    return crew


def gathered(futures: Sequence[Future[Result]], meeting: Meeting | None) -> Iterator[Result]:
    """Results in the order of the sites; where one fails, nobody waits for it, and its error is the one raised."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    failed = [future for future in done if future.exception() is not None]
    if failed and meeting is not None:
        meeting.leave()
    for future in failed or futures:
        yield future.result()


_worker: tuple[Task, Workplace] | None = None  # of a worker process, which exists for one task


def _start(task: Task) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word: the run's own process speaks
    leave_with_parent()
    _worker = task, task.workplace()


def _train(index: int, server: bytes, state: bytes, meeting: Meeting | None, seat: int) -> tuple[bytes, bytes]:
    assert _worker is not None  # `_start` has run in this process
    task, place = _worker
    exchange = exchange_at(meeting, seat) if meeting is not None else None
    received, own = unpack(ServerState, server), unpack(SiteState, state)
    update, proposed = train_round(place, task.sites[index], received, own, exchange)
    return pack(update), pack(proposed)


@contextmanager
def processes(task: Task, workers: int, meets: bool) -> Iterator[Crew]:
    """Worker processes that live as long as the run; states travel as safetensors."""
    context = multiprocessing.get_context("spawn")
    manager = MeetingManager(ctx=context)
    if meets:
        manager.start(leave_with_parent)
    try:
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(task,)) as pool:
            yield over_processes(task, pool, manager if meets else None)
    finally:
        if meets:
            manager.shutdown()


def over_processes(task: Task, pool: Executor, manager: MeetingManager | None) -> Crew:
    """A round spread over the pool."""
    numbers = {data.name: number for number, data in enumerate(task.sites)}

    def crew(
        server: ServerState, states: Mapping[str, SiteState], present: Sequence[SiteData]
    ) -> Iterator[Trained]:
        sent = pack(server)
        meeting: Meeting | None = manager.Meeting(len(present)) if manager else None  # type: ignore[attr-defined]
        futures = [
            pool.submit(_train, numbers[data.name], sent, pack(states[data.name]), meeting, seat)
            for seat, data in enumerate(present)
        ]
        for update, state in gathered(futures, meeting):
            yield unpack(Update, update), unpack(SiteState, state)

    return crew
