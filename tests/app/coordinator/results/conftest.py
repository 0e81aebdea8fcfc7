"""One coordinator with a trained run of each kind, for all that is read of finished runs."""

import json
from collections.abc import Iterator

import pytest

from app.client import Coordinator
from app.schemas.runs import Run
from tests.app.coordinator.services import SMALL, Service, running_coordinator, trained

STUDY = {
    "study": {"name": "small", "model": "densenet-small", "sites": 2, "data": "synthetic"},
    "versions": {"commit": "abc"},
    "lines": [
        {
            "label": "fedavg",
            "skew": 1.0,
            "local_steps": 10,
            "metric": metric,
            "runs": 3,
            "value": v,
            "low": v,
            "high": v,
        }
        for metric, v in (("accuracy", 0.4), ("auc_ovo", 0.8), ("auc_ovr", 0.7))
    ],
}


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A coordinator with one study on disk, and one that is broken."""
    folder = tmp_path_factory.mktemp("results")
    studies = folder / "studies"
    (studies / "deep" / "er").mkdir(parents=True)
    (studies / "broken").mkdir()
    (studies / "deep" / "er" / "study.json").write_text(json.dumps(STUDY))
    (studies / "broken" / "study.json").write_text("{}")
    with running_coordinator(folder / "home", MAMMOFED_STUDIES=str(studies)) as found:
        yield found


@pytest.fixture(scope="session")
def lead(service: Service) -> Iterator[Coordinator]:
    """The study lead's connection."""
    with service.client() as client:
        yield client


@pytest.fixture(scope="session")
def run(lead: Coordinator) -> Run:
    """Two rounds of bn-scaffold-std."""
    return trained(lead, SMALL)


@pytest.fixture(scope="session")
def fedavg(lead: Coordinator) -> Run:
    """Another algorithm on the same data."""
    return trained(lead, SMALL.model_copy(update={"algorithm": "fedavg", "rounds": 1}))


@pytest.fixture(scope="session")
def another_seed(lead: Coordinator) -> Run:
    """The same on other data."""
    return trained(lead, SMALL.model_copy(update={"seed": 5}))


@pytest.fixture(scope="session")
def few(lead: Coordinator) -> Run:
    """Six test patches of each class at each site: fewer than any site shows."""
    data = SMALL.data.model_copy(update={"patches": 60})
    return trained(lead, SMALL.model_copy(update={"algorithm": "scaffold", "rounds": 1, "data": data}))


@pytest.fixture(scope="session")
def private(lead: Coordinator) -> Run:
    """One model a site."""
    return trained(lead, SMALL.model_copy(update={"algorithm": "fedbn", "rounds": 1}))
