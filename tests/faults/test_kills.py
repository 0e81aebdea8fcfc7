"""A few kills in the test suite; `python -m tests.faults.coordinator --kills 100` does as many as asked for."""

import json
from pathlib import Path

import pytest

from tests.app.coordinator.services import SMALL, ended, running_coordinator, running_postgresql, wait_until
from tests.faults.coordinator import keep, survive


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_killed_runs_end_bit_identical(tmp_path: Path, database: str) -> None:
    if database == "sqlite":
        with running_coordinator(tmp_path / "home") as service:
            assert survive(service, kills=4, seed=1).kills.total() == 4
        return
    with (
        running_postgresql() as url,
        running_coordinator(tmp_path / "home", MAMMOFED_DATABASE_URL=url) as service,
    ):
        assert survive(service, kills=3, seed=2).kills.total() == 3


def test_a_running_run_goes_on_when_the_coordinator_is_started_again(tmp_path: Path) -> None:
    with running_coordinator(tmp_path / "home") as service:
        with service.client() as lead:
            run = lead.create(SMALL.model_copy(update={"rounds": 6})).id
            lead.act(run, "start")
            wait_until(lambda: lead.run(run).round, "the first round")
        service.stop()
        service.start()
        with service.client() as lead:
            assert ended(lead, run).state == "completed"


def test_what_was_survived_is_kept_for_each_database(tmp_path: Path) -> None:
    path = tmp_path / "results" / "faults.json"
    for database, kills in (("sqlite", 1), ("postgresql", 2), ("sqlite", 3)):
        keep(path, database, {"kills": kills})
    assert json.loads(path.read_text()) == {"sqlite": {"kills": 3}, "postgresql": {"kills": 2}}
