"""A federation of processes with mutual TLS: the same bits as on one machine, nothing of the data on the wire."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pydicom
import pytest
import torch

from app.coordinator.engines.nvflare import NVFlare
from app.federation.conduct import Conductor
from app.federation.field import Field
from app.federation.provision import remove_site
from app.federation.remote import one_round
from app.federation.standing import standing_of
from app.federation.terms import Terms
from app.sources import DataChoice, StyledPatches, sites_from
from benchmarks.bench_nvflare import ECHO, allow
from fl_core.evaluate import report
from fl_core.models import build_model
from fl_core.plan import Plan
from fl_core.roles import Roles
from fl_core.rounds import Federation, Moment, run_rounds
from fl_core.state import ServerState
from fl_core.wire import pack
from mammo.augment import augment
from mammo.store import open_store
from mammo.style import parse_style
from tests.federation.hospitals import ROWS, Hospitals, OneSegment, TestLedger, small_plan, until
from tests.federation.stores import mammofed

pytestmark = [
    pytest.mark.xdist_group("federation"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # NVFlare leaves sockets open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SITES = ("hospital-1", "hospital-2")
RECORDER = Path(__file__).parent / "recorder"
STYLE = "sigmoid:0.4:0.3"
REFUSED = f"Reject disabled client registration: {SITES[1]}".encode()
PLAN = partial(small_plan, rounds=2, local_steps=2, batch=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("federation")


@pytest.fixture(scope="module")
def stores(folder: Path) -> dict[str, Path]:
    """Each hospital's patches, cut from DICOM files of its own patients."""
    found = {}
    for seed, site in enumerate(SITES):
        studies, store = folder / f"studies-of-{site}", folder / f"patches-of-{site}"
        mammofed("synth", "studies", "--patients", 6, "--spacing", 0.4, "--out", studies, "--seed", seed)
        mammofed("patches", studies, "--out", store, "--patch", 32, "--per-lesion", 6, "--workers", 1)
        found[site] = store
    return found


@pytest.fixture(scope="module")
def hospitals(folder: Path, stores: dict[str, Path]) -> Iterator[Hospitals]:
    """A running federation whose sites' words are written down before TLS hides them."""
    (folder / "sent").mkdir()
    found = Hospitals(
        folder, {site: str(path) for site, path in stores.items()}, share_scores=True, floor=1, style=STYLE
    )
    for site in SITES:
        allow(folder / site / "kit", ECHO)
    path = os.pathsep.join([str(RECORDER), str(Path.cwd())])
    found.site_environment = {"PYTHONPATH": path, "MAMMOFED_TEST_RECORD": str(folder / "sent")}
    try:
        found.start_all()
        until(lambda: found.connected() == set(SITES), 60, "both sites")
        yield found
    finally:
        found.stop_all()


@pytest.fixture(scope="module")
def engine(hospitals: Hospitals, folder: Path) -> Iterator[OneSegment]:
    with hospitals.engine("all-rows", folder / "work").segment(SITES) as link:
        yield OneSegment(SITES, link, folder / "work")


def terms_of(run: str, plan: Plan) -> Terms:
    return Terms(run, plan, SITES, quorum=2, deadline=120.0, silence=15.0, resamples=100)


def on_one_machine(plan: Plan, stores: dict[str, Path]) -> Moment:
    choice = DataChoice(site=tuple(f"{site}={path},style={STYLE}" for site, path in stores.items()))
    federation = Federation(plan, partial(build_model, plan.model, 1, 5, plan.seed), sites_from(choice), augment)
    *_, last = run_rounds(federation, partial(report, resamples=100, seed=plan.seed))
    return last


@pytest.mark.parametrize("row", ROWS)
def test_every_row_over_nvflare_ends_bit_identical(
    row: str, engine: OneSegment, folder: Path, stores: dict[str, Path]
) -> None:
    plan, run = PLAN(row), f"run-{ROWS.index(row)}"
    ledger = TestLedger(folder / run)
    Conductor(terms_of(run, plan), ledger, engine, engine.folder).run()
    last, alone = ledger.latest(), on_one_machine(plan, stores)
    assert last is not None
    assert pack(last.server) == pack(alone.server)
    assert last.record["test"]["accuracy"] == alone.record["test"]["accuracy"]
    assert [site for site, _ in ledger.told] == [] or {site for site, _ in ledger.told} <= set(SITES)


def test_no_pixel_path_uid_or_patient_tag_leaves_a_site(
    engine: OneSegment, folder: Path, stores: dict[str, Path]
) -> None:
    ledger = TestLedger(folder / "recorded")
    Conductor(terms_of("recorded", PLAN("fedavg", rounds=1)), ledger, engine, folder / "work").run()
    last = ledger.latest()
    assert last is not None
    sent = b"".join(path.read_bytes() for path in (folder / "sent").glob("*.sent"))
    # the record is whole: it has the update that the ledger's sum is made of, and the scores
    update = (folder / "work" / f"{SITES[1]}.update").read_bytes()
    assert update[-4096:] in sent
    for secret in secrets_of(folder, stores):
        assert secret not in sent


def secrets_of(folder: Path, stores: dict[str, Path]) -> Iterator[bytes]:
    """Paths, identifying tags and pixels of both sites, in the forms in which they could leave."""
    for site, store in stores.items():
        yield str(store).encode()
        yield f"studies-of-{site}".encode()
        for path in sorted((folder / f"studies-of-{site}").rglob("*.dcm")):
            header = pydicom.dcmread(path, stop_before_pixels=True)
            yield path.name.encode()
            for tag in ("PatientID", "PatientName", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID"):
                if value := str(header.get(tag, "")):
                    yield value.encode()
        opened = open_store(store)
        everything = np.arange(len(opened.labels))
        styled = StyledPatches(opened, parse_style(STYLE)).read(everything)[:, 0]
        as_read = opened.read(everything)[:, 0]
        assert not np.array_equal(styled, as_read)
        for words, *seen in zip(np.asarray(opened.patches), as_read, styled, strict=True):
            middle = len(words) // 2
            if len(np.unique(words[middle])) > 8:  # rows of air are zeros, and so are many weights
                yield words[middle].tobytes()
                for levels in seen:
                    yield levels[middle].tobytes()
                    yield (levels[middle] * 255).astype(np.uint8).tobytes()
                    yield (levels[middle] * 255).round().astype(np.uint8).tobytes()


def test_a_model_ten_times_as_large_passes_both_ways_without_filling_the_job(
    folder: Path, hospitals: Hospitals
) -> None:
    blob = torch.from_numpy(
        np.random.default_rng(0).standard_normal(70_000_000, dtype=np.float32)
    )  # DenseNet-121: 7 M
    server, roles = ServerState(0, {"blob": blob}), Roles(("blob",), (), (), (), ())
    work = folder / "large"
    with NVFlare(hospitals.admin, "large", work, ECHO).segment(SITES) as link:
        field = Field(terms_of("large", PLAN("fedavg")), link, work, lambda *_: None, lambda: None)
        before = memory_of_jobs(hospitals)
        result = one_round(field, roles, server, standing_of(work, None), SITES)
        assert memory_of_jobs(hospitals) - before < len(SITES) * blob.nbytes  # no update is held whole
    for arrived in result.arrived.values():
        assert torch.equal(arrived.load().model["blob"], blob)
    assert set(result.arrived) == set(SITES)
    assert torch.allclose(result.server.model["blob"], blob)


def memory_of_jobs(hospitals: Hospitals) -> int:
    """Bytes that the engine's server and its job hold, without pages of files that they have mapped."""
    process = psutil.Process(hospitals.processes["server"].pid)
    return sum(held_by(one.pid) for one in (process, *process.children(recursive=True)))


def held_by(process: int) -> int:
    """A process's own bytes in memory; those of a mapped file are the kernel's to drop."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


def test_sites_only_call_out(hospitals: Hospitals) -> None:
    for site in SITES:
        process = psutil.Process(hospitals.processes[site].pid)
        for one in (process, *process.children(recursive=True)):
            listening = [c.laddr.ip for c in one.net_connections() if c.status == psutil.CONN_LISTEN]
            assert set(listening) <= {"127.0.0.1", "::1"}


def test_code_that_comes_with_a_job_is_refused(hospitals: Hospitals, tmp_path: Path) -> None:
    job, marker = tmp_path / "job", tmp_path / "ran"
    (job / "app" / "config").mkdir(parents=True)
    (job / "app" / "custom").mkdir()
    (job / "app" / "custom" / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: ...\n")
    meta = {"name": "evil", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["server", *SITES]}}
    component = {"id": "evil", "path": "evil.Evil", "args": {}}
    (job / "meta.json").write_text(json.dumps(meta))
    for side, part in (("server", "workflows"), ("client", "executors")):
        config: dict[str, Any] = {"format_version": 2, "components": [component], part: []}
        (job / "app" / "config" / f"config_fed_{side}.json").write_text(json.dumps(config))
    name = hospitals.admin.do(lambda session: session.submit_job(str(job)))
    until(lambda: hospitals.admin.has_ended(name), 60, "the end of the job")
    assert hospitals.admin.do(lambda session: session.get_job_status(name)) != "FINISHED:COMPLETED"
    assert not marker.exists()


def test_a_run_survives_the_death_of_a_site_the_job_and_the_server(
    hospitals: Hospitals, folder: Path, stores: dict[str, Path]
) -> None:
    plan = PLAN("bn-scaffold-std", rounds=8)
    conductor = hospitals.conductor(terms_of("survivor", plan), folder / "survivor")
    ledger = conductor.ledger
    assert isinstance(ledger, TestLedger)
    thread = threading.Thread(target=conductor.run)
    thread.start()
    try:
        for victim in (SITES[1], "job", "server"):
            seen = len(ledger.events)
            began = round_of(ledger)
            until(lambda began=began: round_of(ledger) > began, 120, "a round")  # type: ignore[misc]
            if round_of(ledger) < plan.rounds:
                kill(hospitals, victim)
            until(lambda seen=seen: len(ledger.events) > seen or not thread.is_alive(), 120, "the segment's end")  # type: ignore[misc]
        thread.join(200)
    finally:
        ledger.orders.append("stop")
        thread.join(120)
    last, alone = ledger.latest(), on_one_machine(plan, stores)
    assert last is not None
    assert last.server.round == plan.rounds
    assert pack(last.server) == pack(alone.server)
    jobs = hospitals.admin.do(lambda session: session.list_jobs(name_prefix="survivor"))
    assert sum(job["status"].startswith("FINISHED") for job in jobs) < sum(
        kind == "segment" for kind, _, _ in ledger.events
    )  # the store does not grow with every segment


def round_of(ledger: TestLedger) -> int:
    return len(list((ledger.folder / "rounds").glob("*.json")))


def kill(hospitals: Hospitals, victim: str) -> None:
    """-9; what a supervisor would start again is started again."""
    if victim == "job":
        for process in psutil.Process(hospitals.processes["server"].pid).children(recursive=True):
            process.kill()
    else:
        hospitals.kill(victim)
        hospitals.start(victim)


def test_a_removed_site_is_refused(hospitals: Hospitals, folder: Path) -> None:
    gone, log = SITES[1], folder / "server.log"
    until(lambda: hospitals.connected() == set(SITES), 90, "both sites")
    remove_site(folder / "federation", gone)
    hospitals.admin.shut_out(gone)
    for restarted in ((gone,), ("server", gone)):  # refused by the server that was told, and by its next start
        seen = log.stat().st_size
        for name in restarted:
            with suppress(ProcessLookupError):  # a refused site may have ended by itself
                hospitals.kill(name)
            hospitals.start(name)
        until(lambda seen=seen: REFUSED in log.read_bytes()[seen:], 90, "the refusal")  # type: ignore[misc]
        until(lambda: hospitals.connected() == {SITES[0]}, 90, "the other site alone")
