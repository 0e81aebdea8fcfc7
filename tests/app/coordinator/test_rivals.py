"""The demo's two runs: found again while they can go on, begun anew when they cannot."""

import pytest

from app.demo import begin_runs
from app.schemas.runs import Run
from tests.app.coordinator.services import SMALL, Service

pytestmark = pytest.mark.xdist_group("coordinator")


def test_a_stopped_rival_is_begun_anew_and_the_other_goes_on(coordinator: Service, run: Run) -> None:
    endless = SMALL.model_copy(update={"rounds": 10_000})
    with coordinator.client() as lead:
        first, second = begin_runs(lead, endless)
        assert begin_runs(lead, endless) == (first, second)
        lead.act(first, "stop")
        anew, same = begin_runs(lead, endless)
        assert begin_runs(lead, endless) == (anew, same)
        assert same == second
        assert anew != first
        assert lead.run(anew).state == "running"
        for name in (anew, same):
            lead.act(name, "stop")
