"""A coordinator without runs, then away, then back: the dashboard says so plainly and recovers by itself."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, expect

from tests.app.coordinator.services import SMALL, Service
from tests.dashboard.screens import PATIENCE, Screen, running_dashboard, screen

pytestmark = pytest.mark.xdist_group("dashboard")
GONE = "The coordinator does not answer"


@dataclass(frozen=True)
class Place:
    """A coordinator that can go and come back, and its dashboard."""

    service: Service
    address: str


@pytest.fixture(scope="module")
def place(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A coordinator without runs, always on the same port."""
    folder = tmp_path_factory.mktemp("outage")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    service = Service(folder / "home", {}, wanted_port=port).start()
    try:
        with running_dashboard(service.url, folder / "log") as address:
            yield Place(service, address)
    finally:
        service.stop()


def test_without_runs_every_page_says_what_comes_here(browser: Browser, place: Place) -> None:
    with screen(browser, place.address) as tab:
        tab.sign_in(place.service.secret())
        tab.see("All is well")
        for title, words in {
            "Overview": "No run yet",
            "Run": "There is no run yet",
            "Results": "No run has been evaluated yet",
            "Compare": "Two evaluated runs are needed",
            "Drift": "There is no run yet",
            "Data": "There is no run yet",
        }.items():
            tab.open(title)
            tab.see(words)
            tab.healthy()


def test_a_lost_coordinator_is_said_plainly_and_comes_back_by_itself(browser: Browser, place: Place) -> None:
    with place.service.client() as client:
        run = client.create(SMALL.model_copy(update={"name": "waiting run"}))
    with screen(browser, place.address) as tab:
        tab.sign_in(place.service.secret())
        tab.open_run(run.id)
        expect(tab.page.get_by_role("button", name="Start", exact=True)).to_be_enabled()
        place.service.stop()
        tab.see(GONE)
        tab.see("Round 0 of 2")
        expect(tab.page.get_by_role("button", name="Start", exact=True)).to_be_disabled(timeout=PATIENCE)
        tab.open("Overview")
        tab.see("Off now: the coordinator does not answer")
        unknown_page_waits(tab)
        place.service.start()
        expect(tab.page.get_by_text(GONE)).to_have_count(0, timeout=PATIENCE)
        tab.open("Run")
        expect(tab.page.get_by_role("button", name="Start", exact=True)).to_be_enabled(timeout=PATIENCE)
        tab.healthy()


def unknown_page_waits(tab: Screen) -> None:
    """A page of which nothing is known yet says that it will appear."""
    tab.open("Audit")
    tab.see("as soon as the coordinator answers again")
