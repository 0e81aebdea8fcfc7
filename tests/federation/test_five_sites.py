"""Five hospitals as processes with mutual TLS: the bits of one machine, for every row and beside a liar."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from app.coordinator.engines.nvflare import NVFlare
from app.federation.conduct import Conductor
from app.federation.terms import Terms
from app.sources import DataChoice, sites_from
from benchmarks.bench_nvflare import allow
from fl_core.data import SiteData
from fl_core.plan import Plan
from tests.federation.hospitals import ROWS, Hospitals, OneSegment, TestLedger, finish, small_plan, until
from tests.federation.liar import AGENT, LIAR, NAMES
from tests.federation.lies import LIES
from tests.federation.neighbours import kinds, ledger_of, on_one_machine, same

pytestmark = [
    pytest.mark.xdist_group("federation"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # NVFlare leaves sockets open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
CHOICE = DataChoice(sites=5, patches=60, image_size=32)
SITES = tuple(f"hospital-{number}" for number in range(1, 6))


@pytest.fixture(scope="module")
def data() -> tuple[SiteData, ...]:
    return sites_from(CHOICE)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hospitals]:
    words = "synthetic:{}/5,patches=60,size=32"
    stores = {site: words.format(number) for number, site in enumerate(SITES, 1)}
    found = Hospitals(tmp_path_factory.mktemp("five"), stores, share_scores=True, floor=1)
    found.site_environment = {"PYTHONPATH": os.getcwd()}
    for site in SITES:
        allow(found.folder / site / "kit", AGENT)
    try:
        found.start_all()
        until(lambda: found.connected() == set(SITES), 120, "all sites")
        yield found
    finally:
        found.stop_all()


@pytest.fixture(scope="module")
def honest(hospitals: Hospitals) -> Iterator[OneSegment]:
    folder = hospitals.folder / "honest"
    with hospitals.engine("honest", folder).segment(SITES) as link:
        yield OneSegment(SITES, link, folder)


@pytest.fixture(scope="module")
def dishonest(hospitals: Hospitals) -> Iterator[OneSegment]:
    folder = hospitals.folder / "dishonest"
    with NVFlare(hospitals.admin, "dishonest", folder, AGENT).segment(SITES) as link:
        yield OneSegment(SITES, link, folder)


def trained(engine: OneSegment, run: str, plan: Plan, quorum: int) -> TestLedger:
    terms = Terms(run, plan, SITES, quorum=quorum, deadline=120.0, silence=30.0, resamples=100)
    conductor = Conductor(terms, TestLedger(engine.folder / run), engine, engine.folder)
    finish(conductor, 240)
    return ledger_of(conductor)


@pytest.mark.parametrize("row", ROWS)
def test_five_sites_over_nvflare_end_bit_identical(
    row: str, honest: OneSegment, data: tuple[SiteData, ...]
) -> None:
    plan = small_plan(row, rounds=2)
    ledger, alone = trained(honest, f"row-{ROWS.index(row)}", plan, quorum=5), on_one_machine(plan, data)
    last = ledger.latest()
    assert last is not None
    assert same(ledger, alone)
    assert last.record["test"]["accuracy"] == alone.record["test"]["accuracy"]


@pytest.mark.parametrize("kind", LIES)
def test_a_liar_among_five_is_refused_by_name_and_the_round_goes_on(
    kind: str, dishonest: OneSegment, data: tuple[SiteData, ...]
) -> None:
    plan = small_plan("scaffold", rounds=1)
    ledger = trained(dishonest, NAMES[kind], plan, quorum=4)
    [text] = [text for found, text, site in ledger.events if (found, site) == ("site-refused", LIAR)]
    assert LIES[kind][1] in text
    assert kinds(ledger, LIAR) == {"site-refused"}
    assert same(ledger, on_one_machine(plan, data, partial(frozenset, SITES[:4])))


def test_a_hospital_whose_job_does_not_begin_is_named_and_keeps_nobody_from_training(
    hospitals: Hospitals, data: tuple[SiteData, ...], tmp_path: Path
) -> None:
    (hospitals.folder / LIAR / "site.json").rename(tmp_path / "site.json")  # connected, but it cannot begin
    plan = small_plan("bn-scaffold-std", rounds=2)
    terms = Terms("broken", plan, SITES, quorum=4, deadline=120.0, silence=30.0, resamples=100)
    conductor = hospitals.conductor(terms, tmp_path / "broken")
    finish(conductor, 400)
    ledger = ledger_of(conductor)
    assert kinds(ledger, LIAR) == {"site-silent"}
    assert same(ledger, on_one_machine(plan, data, partial(frozenset, SITES[:4])))
