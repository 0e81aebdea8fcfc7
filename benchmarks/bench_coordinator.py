"""200 clients that poll a run while it trains → how soon they are answered, and what it costs the training."""

import asyncio
import statistics
import tempfile
import time
from datetime import datetime, timedelta
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import urlsplit

from app.client import API, Coordinator
from app.coordinator.db import RoundRow, RunRow, now, writing_session
from app.schemas.runs import DataSettings, RunSettings
from benchmarks.ratio import Ratio, best_times
from tests.app.coordinator.services import Service, running_coordinator, wait_until

CLIENTS = 200
EVERY = 2.5  # seconds between two questions of a client, as an open dashboard asks
WINDOW = 20.0  # seconds with and without clients, in turns
TURNS = 4
LONG = 10_000  # rounds of a run that is only listed
TRAINED = RunSettings(
    name="under load",
    model="densenet-small",
    rounds=100_000,
    local_steps=10,
    batch=32,
    resamples=500,
    data=DataSettings(image_size=48, patches=600),
)


def measure() -> list[Ratio]:
    """Answers under load, the training's pace with and without it, and pages of a very long run."""
    with tempfile.TemporaryDirectory() as folder, running_coordinator(Path(folder) / "home") as service:
        listing = long_run(service)
        with service.client() as lead:
            run = lead.create(TRAINED).id
            lead.act(run, "start")
            wait_until(lambda: lead.run(run).round >= 3, "the first rounds")
            times, loaded, quiet = in_turns(service, lead, run)
            lead.act(run, "stop")
    p95 = 1000 * statistics.quantiles(times, n=20)[-1]
    slowed = statistics.median(loaded) / statistics.median(quiet)
    asked = f"{len(times)} answers to {CLIENTS} clients, no error; median {1000 * statistics.median(times):.1f} ms"
    return [
        Ratio("95th percentile of answers while it trains, ms", p95, at_most=100, detail=asked),
        Ratio(
            "a round with 200 clients against one without",
            slowed,
            at_most=1.05,
            detail=f"{len(loaded)} rounds of {statistics.median(loaded):.3f} s, {len(quiet)} without",
        ),
        *listing,
    ]


def in_turns(service: Service, lead: Coordinator, run: str) -> tuple[list[float], list[float], list[float]]:
    """Latencies, and seconds of the rounds inside the windows with clients and of those inside the others."""
    times: list[float] = []
    windows: dict[bool, list[tuple[datetime, datetime]]] = {True: [], False: []}
    for turn in range(2 * TURNS):
        busy = turn % 2 == 1
        began = now()
        if busy:
            times += polled(service, run)
        else:
            time.sleep(WINDOW)
        windows[busy].append((began + timedelta(seconds=1), now()))
    return times, paces(lead, run, windows[True]), paces(lead, run, windows[False])


def paces(lead: Coordinator, run: str, windows: list[tuple[datetime, datetime]]) -> list[float]:
    """Seconds from commit to commit, of the rounds that lie inside a window."""
    newest = lead.rounds(run, limit=500).items
    stamps = [(after.committed_at, before.committed_at) for before, after in pairwise(newest)]
    inside = [(a, b) for a, b in stamps for low, high in windows if low <= a and b <= high]
    return [(b - a).total_seconds() for a, b in inside]


def polled(service: Service, run: str) -> list[float]:
    """The load, from a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        found: list[float] = pool.apply(load, (service.url, service.secret(), run))
    return found


def load(url: str, secret: str, run: str) -> list[float]:
    """Seconds that each answer took."""
    return asyncio.run(all_clients(url, secret, run))


async def all_clients(url: str, secret: str, run: str) -> list[float]:
    """All clients at once, their questions spread over time."""
    clients = (client(url, secret, run, EVERY * number / CLIENTS) for number in range(CLIENTS))
    return [seconds for times in await asyncio.gather(*clients) for seconds in times]


async def client(url: str, secret: str, run: str, first: float) -> list[float]:
    """One client: it keeps its connection, asks again and again, and wants 200 each time."""
    await asyncio.sleep(first)
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    question = (
        f"GET {API}/runs/{run}/metrics?points=100 HTTP/1.1\r\nHost: {place.netloc}\r\n"
        f"Authorization: Bearer {secret}\r\n\r\n"
    ).encode()
    times = []
    for _ in range(int(WINDOW / EVERY)):
        began = time.perf_counter()
        writer.write(question)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        times.append(time.perf_counter() - began)
        await asyncio.sleep(max(0.0, EVERY - times[-1]))
    writer.close()
    return times


def long_run(service: Service) -> list[Ratio]:
    """Pages of a run with 10,000 rounds: its newest, one in the middle, and its curves."""
    with service.client() as lead:
        run = lead.create(TRAINED).id
        seed(service, run)

        def pages() -> None:
            lead.rounds(run, limit=50)

        def middle() -> None:
            lead.rounds(run, after=LONG // 2, limit=50)

        def runs() -> None:
            lead.runs(limit=50)

        taken = [1000 * seconds for seconds in best_times(pages, middle, runs, repeats=9)]
    names = ("newest 50", "50 in the middle")
    rows = [
        Ratio(f"{name} of {LONG:,} rounds, ms", value, at_most=50)
        for name, value in zip(names, taken[:2], strict=True)
    ]
    return [*rows, Ratio("the list of runs with it, ms", taken[2], at_most=50)]


def seed(service: Service, run: str) -> None:
    """Write the rounds as a worker would, without training them."""
    metric = {"value": 0.8, "low": 0.78, "high": 0.82}
    headline = dict.fromkeys(("accuracy", "auc_ovo", "auc_ovr"), metric)
    test = {**headline, "sites": {"hospital-1": headline, "hospital-2": headline}}
    part = {"loss": 1.0, "steps": 10, "seconds": 1.0}
    record = {"loss": 1.0, "rate": 0.1, "seconds": 2.0, "test": test}
    record["sites"] = {"hospital-1": part, "hospital-2": part}
    with service.database() as engine, writing_session(engine) as session:
        session.get_one(RunRow, run).round = LONG
        session.add_all(
            RoundRow(run=run, number=number, committed_at=now(), record=record, states={}, drift={})
            for number in range(1, LONG + 1)
        )
