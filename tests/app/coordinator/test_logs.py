"""The log over the life of runs: one JSON object a line, with run and round, and no name of a patient's file."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from app.coordinator.logs import JsonLines
from app.schemas.runs import DataSettings, Run
from tests.app.coordinator.services import SMALL, Service, running_coordinator, trained

pytestmark = pytest.mark.xdist_group("logs")
PATIENT = "MUELLER-1957"
CRASH = """
import sys
from multiprocessing import Pipe
from app.coordinator import worker
from app.settings import Settings

def crash(ledger, asked, settings):
    raise RuntimeError("cannot read MUELLER-1957.png")

worker.ENGINES["local"] = crash
ours, theirs = Pipe()
worker.work(Settings(home=sys.argv[1]), sys.argv[2], 1, theirs)
"""


def patches(folder: Path, each: int) -> Path:
    """Pictures of two classes, named after a patient."""
    luck = np.random.default_rng(0)
    for kind in ("benign", "malignant"):
        (folder / kind).mkdir(parents=True)
        for number in range(each):
            picture = Image.fromarray(luck.integers(0, 255, (32, 32), dtype=np.uint8))
            picture.save(folder / kind / f"{PATIENT}-{number}.png")
    return folder


def data(folder: Path) -> DataSettings:
    return DataSettings(site=(f"a={folder / 'a'}", f"b={folder / 'b'}"), test=str(folder / "test"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Patches of two sites, and shared ones to test on."""
    folder = tmp_path_factory.mktemp("patients")
    for name, each in (("a", 16), ("b", 16), ("test", 12)):
        patches(folder / name, each)
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """A coordinator whose log is read."""
    with running_coordinator(folder / "home") as running:
        yield running


def runs(service: Service, folder: Path) -> tuple[Run, Run]:
    """One that ends well, and one whose pictures cannot be read."""
    settings = SMALL.model_copy(update={"data": data(folder)})
    with service.client() as lead:
        good = trained(lead, settings)
        (folder / "b" / "malignant" / f"{PATIENT}-7.png").write_bytes(b"no picture")
        return good, trained(lead, settings)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_line_is_json_with_run_and_round_and_without_patients(service: Service, folder: Path) -> None:
    good, bad = runs(service, folder)
    assert (good.state, bad.state) == ("completed", "failed")
    assert PATIENT in str(bad.reason)
    found = lines(service.log())
    committed = [(line["run"], line["round"]) for line in found if line["message"] == "round committed"]
    assert committed == [(good.id, 1), (good.id, 2)]
    of_workers = [line for line in found if "worker" in line]
    assert {line["run"] for line in of_workers} == {good.id, bad.id}
    assert all(isinstance(line["round"], int) for line in of_workers)
    assert any("run failed" in line["message"] for line in of_workers)
    assert PATIENT not in service.log()


def test_an_error_is_told_by_its_kind_and_place_alone() -> None:
    try:
        raise ValueError(f"cannot read {PATIENT}.png")
    except ValueError:
        record = logging.LogRecord("service", logging.ERROR, __file__, 1, "unexpected", (), sys.exc_info())
    told = JsonLines(dict).format(record)
    assert json.loads(told)["error"] == "ValueError"
    assert "in test_an_error_is_told" in json.loads(told)["trace"]
    assert PATIENT not in told


def test_a_worker_that_crashes_says_where_as_json_and_not_over_what(service: Service, folder: Path) -> None:
    with service.client() as lead:
        run = lead.create(SMALL).id
    words = [sys.executable, "-c", CRASH, str(service.home), run]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = lines(done.stderr)
    assert (line["run"], line["worker"], line["round"], line["level"]) == (run, 1, 1, "critical")
    assert line["error"] == "RuntimeError"
    assert "in crash" in line["trace"]
    assert PATIENT not in done.stderr
