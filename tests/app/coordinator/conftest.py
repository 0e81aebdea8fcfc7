"""One coordinator with one trained run for all tests that only look, on each database."""

from collections.abc import Iterator

import pytest

from app.schemas.runs import Run
from tests.app.coordinator.services import SMALL, Service, running_coordinator, running_postgresql, trained


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def coordinator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A coordinator on a database of each kind."""
    folder = tmp_path_factory.mktemp("coordinator")
    if request.param == "sqlite":
        with running_coordinator(folder / "home") as service:
            yield service
        return
    with (
        running_postgresql() as url,
        running_coordinator(folder / "home", MAMMOFED_DATABASE_URL=url) as service,
    ):
        yield service


@pytest.fixture(scope="session")
def run(coordinator: Service) -> Run:
    """A run of two rounds, trained to its end."""
    with coordinator.client() as lead:
        for site in ("hospital-1", "hospital-2"):
            lead.enrol(site)
        return trained(lead, SMALL)
