"""A run of 500 rounds at ten sites → how soon its page is drawn, and how 50 open pages load the API."""

import asyncio
import json
import math
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import httpx
from playwright.sync_api import Browser, sync_playwright

from app.client import API
from app.coordinator.db import DriftRow, RoundRow, RunRow, RunSiteRow, now, writing_session
from app.schemas.runs import DataSettings, RunSettings
from benchmarks.ratio import Ratio
from dashboard.api import POLL
from tests.app.coordinator.services import Service, running_coordinator
from tests.dashboard.browser import FLAGS, SKIPPED, installed
from tests.dashboard.screens import running_dashboard, screen

ROUNDS, SITES, LAYERS = 500, 10, 121
DASHBOARDS, LOOKS = 50, 10
PAINT, ANSWER = 2.0, 0.150  # seconds that a first paint and the 95th percentile of answers may take
DRAWN = """() => ["metric", "loss", "timeline"].every(key =>
    document.querySelector(`.st-key-chart-${key} .js-plotly-plot .main-svg`))"""
NUMBERS = """() => document.querySelectorAll('[data-testid="stMetricValue"]').length >= 3"""
NAMES = [f"hospital-{number}" for number in range(1, SITES + 1)]


def measured(value: float) -> dict[str, float]:
    """A metric with its interval."""
    return {"value": value, "low": value - 0.02, "high": value + 0.02}


def headline(number: int, shift: float = 0.0) -> dict[str, dict[str, float]]:
    """Three metrics that rise over the rounds."""
    value = 0.5 + 0.37 * (1 - math.exp(-number / 90)) + 0.01 * math.sin(number) + shift
    return {name: measured(value) for name in ("accuracy", "auc_ovo", "auc_ovr")}


def record(number: int) -> dict[str, object]:
    """A round as a worker writes it down."""
    loss = 0.4 + 1.2 * math.exp(-number / 100)
    bounds = {"loss_low": loss - 0.05, "loss_high": loss + 0.05}
    part = {"loss": loss, **bounds, "loss_n": 320, "steps": 10, "seconds": 3.0}
    sites = dict.fromkeys(NAMES[: SITES - (number % 7 == 0)], part)
    away = {NAMES[-1]: {"away": "late: no answer within 60 s"}} if number % 7 == 0 else {}
    own = {name: headline(number, 0.004 * index) for index, name in enumerate(NAMES)}
    test = {**headline(number), "sites": own, "pooled": True}
    mean = {"loss": loss, **bounds, "loss_n": 320 * len(sites)}
    return {"seconds": 4.0, "rate": 0.05, **mean, "sites": {**sites, **away}, "test": test}


def drifted(number: int) -> dict[str, object]:
    """A round's drift by layer."""
    column = [0.1 + 0.002 * layer for layer in range(LAYERS)]
    layers = [f"features.norm{layer}" for layer in range(LAYERS)]
    by_site = {name: [value + 0.01 * index for value in column] for index, name in enumerate(NAMES)}
    return {"layers": layers, "statistics": by_site, "gradient": by_site}


def seed(service: Service) -> str:
    """Put a paused run of 500 rounds into the coordinator's database, as its workers would have."""
    settings = RunSettings(name="ten hospitals", rounds=ROUNDS + 1, data=DataSettings(sites=SITES))
    with service.client() as lead:
        run = lead.create(settings).id
    means = {kind: dict.fromkeys(NAMES, 0.2) for kind in ("statistics", "gradient")}
    facts = {"style": "as acquired", "train": {"mass": 100}, "test": {"mass": 100}, "histogram": None,
             "histogram_before": None, "has_gallery": False}  # fmt: skip
    with service.database() as engine, writing_session(engine) as session:
        row = session.get_one(RunRow, run)
        row.state, row.round, row.best_round, row.data_key = "paused", ROUNDS, ROUNDS, "seeded"
        row.best = row.latest = {"round": ROUNDS, "headline": headline(ROUNDS), "sites": {}}
        for position, name in enumerate(NAMES):
            session.add(RunSiteRow(run=run, site=name, position=position, facts=facts, progress=None))
        for number in range(1, ROUNDS + 1):
            session.add(
                RoundRow(run=run, number=number, committed_at=now(), record=record(number), states={}, drift=means)
            )
        session.add(DriftRow(run=run, number=ROUNDS, layers=drifted(ROUNDS)))
    return run


def first_paint(browser: Browser, address: str, token: str, run: str) -> tuple[float, float, float]:
    """Seconds until the run's numbers are there in a fresh browser, then its charts; and from another page."""
    with screen(browser, address) as tab:
        start = time.perf_counter()
        tab.page.goto(f"{address}/run?run={run}&token={token}")
        tab.page.wait_for_function(NUMBERS, polling="raf")
        painted = time.perf_counter() - start
        tab.page.wait_for_function(DRAWN, polling="raf")
        drawn = time.perf_counter() - start
        tab.open("Overview")
        start = time.perf_counter()
        tab.page.locator(f".st-key-run-{run}").get_by_role("link").click()
        tab.page.wait_for_function(DRAWN, polling="raf")
        return painted, drawn, time.perf_counter() - start


async def one_dashboard(url: str, secret: str, run: str, number: int) -> list[float]:
    """Seconds of each answer to one open page of a run that commits a round between any two looks."""
    first = [f"/runs/{run}/metrics", f"/runs/{run}/rounds?limit=50", "/runs"]
    again = ["/me", f"/runs/{run}", f"/runs/{run}/metrics?after={ROUNDS - 1}", f"/runs/{run}/rounds?limit=1"]
    times = []
    await asyncio.sleep(POLL * number / DASHBOARDS)  # people do not look at the same moment
    async with httpx.AsyncClient(
        base_url=url + API, headers={"Authorization": f"Bearer {secret}"}, trust_env=False, timeout=30.0
    ) as client:
        for turn in range(LOOKS):
            began = time.perf_counter()
            for path in (first if turn == 0 else []) + again:
                start = time.perf_counter()
                (await client.get(path)).raise_for_status()
                times.append(time.perf_counter() - start)
            await asyncio.sleep(max(0.0, POLL - (time.perf_counter() - began)))
    return times


async def all_dashboards(url: str, secrets: list[str], run: str) -> list[float]:
    """All pages at once."""
    pages = (one_dashboard(url, secret, run, number) for number, secret in enumerate(secrets))
    return sorted(seconds for times in await asyncio.gather(*pages) for seconds in times)


def load(url: str, secrets: list[str], run: str) -> list[float]:
    """The same, for a process of its own."""
    return asyncio.run(all_dashboards(url, secrets, run))


def fifty_dashboards(service: Service, run: str) -> list[float]:
    """Seconds of every answer while 50 people, each with a token of their own, look at the run."""
    secrets = [service.token("viewer") for _ in range(DASHBOARDS)]
    with get_context("spawn").Pool(1) as pool:
        found: list[float] = pool.apply(load, (service.url, secrets, run))
    return found


def measure() -> list[Ratio]:
    """First paint against two seconds, and the API's 95th percentile against 150 ms."""
    path = installed()
    if path is None:
        raise SystemExit(SKIPPED)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_coordinator(Path(folder) / "home") as service,
        running_dashboard(service.url, Path(folder) / "log") as address,
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=list(FLAGS)) as browser,
    ):
        run = seed(service)
        paints = [first_paint(browser, address, service.secret(), run) for _ in range(4)][1:]  # the first warms up
        painted, drawn, moved = (min(times) for times in zip(*paints, strict=True))
        browser.close()
        times = fifty_dashboards(service, run)
    p95 = times[int(0.95 * len(times))]
    what = json.dumps({"rounds": ROUNDS, "sites": SITES})
    return [
        Ratio(
            "first paint of a run's page / 2 s", painted / PAINT, 1.0, detail=f"{painted:.2f} s, new tab, {what}"
        ),
        Ratio(
            "all its charts drawn in a new tab / 2 s", drawn / PAINT, 1.0, detail=f"{drawn:.2f} s, nothing cached"
        ),
        Ratio("all drawn, from another page / 2 s", moved / PAINT, 1.0, detail=f"{moved:.2f} s"),
        Ratio(
            "p95 of the API with 50 dashboards / 150 ms",
            p95 / ANSWER,
            1.0,
            detail=f"{1000 * p95:.0f} ms over {len(times)} answers; median {1000 * times[len(times) // 2]:.0f} ms",
        ),
    ]
