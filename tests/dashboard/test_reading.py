"""What is asked of the coordinator: no round is lost between two looks, and old runs are found by their name."""

from typing import Any

import pytest

from app.client import Coordinator
from app.schemas.runs import Round, Run
from app.schemas.shape import Page
from dashboard import api, parts
from tests.dashboard.test_charts import a_round
from tests.dashboard.test_words import a_run


def test_rounds_that_come_between_two_looks_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = 6

    def read(call: Any, run: str, limit: int, after: int | None = None) -> Page[Round]:
        newest = [number for number in range(committed, 0, -1) if after is None or number < after][:limit]
        return Page(items=tuple(a_round(number, None) for number in newest), total=committed, next=None)

    monkeypatch.setattr("streamlit.session_state", {})
    monkeypatch.setattr(api, "read", read)
    for known in (2, 4, 6):  # what the page knows of the run may be older than the coordinator's rounds
        found = api.rounds(a_run(round=known), 50)
        assert [each.number for each in found] == list(range(known, 0, -1))


def test_controls_that_are_off_for_one_reason_share_it() -> None:
    off = {"Pause": "it is lost", "Resume": None, "Stop": "it is lost", "Start": "it runs"}
    assert parts.off_in_words(off) == "Off now. Pause, Stop: it is lost · Start: it runs"
    assert parts.off_in_words({"Resume": None}) == ""


def test_runs_to_compare_are_the_newest_that_share_their_data() -> None:
    def runs(*keys: str) -> list[Run]:
        return [a_run(id=f"{at}", data_key=key) for at, key in enumerate(keys)]

    assert parts.alike(runs("new", "old", "older", "old")) == ["1", "3"]
    assert parts.alike(runs("new", "old")) == []


def test_a_run_that_is_not_among_the_newest_is_asked_for_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(call: Any, name: str) -> Run:
        assert call is Coordinator.run
        return a_run(id=name)

    monkeypatch.setattr(parts, "read", read)
    assert parts.older("0001-old", lambda run: True)["0001-old"].id == "0001-old"
