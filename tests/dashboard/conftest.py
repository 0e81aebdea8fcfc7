"""One coordinator with trained runs, one dashboard and one browser for all tests of the dashboard."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, sync_playwright

from app.client import Coordinator
from app.schemas.runs import DataSettings, Run, RunSettings
from app.schemas.shape import Role
from tests.app.coordinator.services import SMALL, Service, running_coordinator, trained
from tests.dashboard.browser import FLAGS, SKIPPED, installed
from tests.dashboard.screens import Screen, running_dashboard, screen

SETTINGS = SMALL.model_copy(update={"rounds": 3, "name": "small run", "algorithm": "bn-scaffold-std"})


@dataclass(frozen=True)
class Study:
    """A coordinator, its dashboard, a token of each role, and runs."""

    service: Service
    address: str
    tokens: dict[Role, str]
    run: Run
    rival: Run
    failed: Run


@dataclass(frozen=True)
class Reader:
    """Someone in a browser tab, and what the API says to the same token."""

    tab: Screen
    client: Coordinator


@pytest.fixture(scope="package")  # not longer: the browser's event loop would be in the way of others
def browser() -> Iterator[Browser]:
    """The installed Chromium; without one, tests are skipped, and in CI they fail."""
    path = installed()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(SKIPPED)
        pytest.skip(SKIPPED)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def study(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Study]:
    """Two runs on the same data, one that failed, and two enrolled sites."""
    folder = tmp_path_factory.mktemp("dashboard")
    with (
        running_coordinator(folder / "home") as service,
        running_dashboard(service.url, folder / "log") as address,
    ):
        with service.client() as lead:
            for site in ("hospital-1", "hospital-2"):
                lead.enrol(site)
            run = trained(lead, SETTINGS)
            rival = trained(lead, SETTINGS.model_copy(update={"name": "rival run", "algorithm": "fedavg"}))
            failed = trained(lead, unreadable(SETTINGS))
        tokens: dict[Role, str] = {
            "coordinator": service.secret(),
            "site": service.token("site", "hospital-1"),
            "viewer": service.token("viewer"),
        }
        yield Study(service, address, tokens, run, rival, failed)
        assert not any(token in (folder / "log").read_text() for token in tokens.values())


def unreadable(settings: RunSettings) -> RunSettings:
    """Settings that look right, of data that are not there."""
    nowhere = DataSettings(site=("a=/nowhere/a", "b=/nowhere/b"), test="/nowhere/test")
    return settings.model_copy(update={"name": "failed run", "data": nowhere})


@pytest.fixture
def lead(browser: Browser, study: Study) -> Iterator[Screen]:
    """A tab in which the study's coordinator is signed in; nothing may have gone wrong in it."""
    with screen(browser, study.address) as tab:
        yield tab.sign_in(study.tokens["coordinator"])
        tab.healthy()


@pytest.fixture(params=["coordinator", "site", "viewer"])
def reader(request: pytest.FixtureRequest, browser: Browser, study: Study) -> Iterator[Reader]:
    """Each role in turn, signed in; nothing may have gone wrong in the tab."""
    secret = study.tokens[request.param]
    with screen(browser, study.address) as tab, study.service.client(secret) as client:
        yield Reader(tab.sign_in(secret), client)
        tab.healthy()
