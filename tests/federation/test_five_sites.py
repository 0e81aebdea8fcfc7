"""Five hospitals as processes with mutual TLS: the same bits as on one machine."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from app.federation.terms import Terms
from app.sources import DataChoice, sites_from
from fl_core.evaluate import report
from fl_core.models import build_model
from fl_core.rounds import Federation, run_rounds
from fl_core.wire import pack
from tests.federation.hospitals import Hospitals, finish, small_plan, until

pytestmark = [
    pytest.mark.xdist_group("federation"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # NVFlare leaves sockets open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
CHOICE = DataChoice(sites=5, patches=60, image_size=32)
SITES = tuple(f"hospital-{number}" for number in range(1, 6))


@pytest.fixture
def hospitals(tmp_path: Path) -> Iterator[Hospitals]:
    words = "synthetic:{}/5,patches=60,size=32"
    data = {site: words.format(number) for number, site in enumerate(SITES, 1)}
    found = Hospitals(tmp_path, data, share_scores=True, floor=1)
    try:
        found.start_all()
        until(lambda: found.connected() == set(SITES), 120, "all sites")
        yield found
    finally:
        found.stop_all()


def test_five_sites_over_nvflare_end_bit_identical(hospitals: Hospitals, tmp_path: Path) -> None:
    plan = small_plan("bn-scaffold-std", rounds=2)
    terms = Terms("five", plan, SITES, quorum=5, deadline=120.0, silence=30.0, resamples=100)
    conductor = hospitals.conductor(terms, tmp_path / "five")
    finish(conductor, 240)
    federation = Federation(plan, partial(build_model, plan.model, 1, 5, plan.seed), sites_from(CHOICE))
    *_, alone = run_rounds(federation, partial(report, resamples=100, seed=plan.seed))
    last = conductor.ledger.latest()
    assert last is not None
    assert pack(last.server) == pack(alone.server)
    assert last.record["test"]["accuracy"] == alone.record["test"]["accuracy"]
