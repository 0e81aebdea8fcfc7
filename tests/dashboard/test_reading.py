"""What is asked of the coordinator: no round is lost between two looks, and old runs are found by their name."""

from typing import Any

import pytest

from app.client import Coordinator
from app.schemas import Page, Round, Run
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


def test_a_run_that_is_not_among_the_newest_is_asked_for_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(call: Any, name: str) -> Run:
        assert call is Coordinator.run
        return a_run(id=name)

    monkeypatch.setattr(parts, "read", read)
    assert parts.older("0001-old", lambda run: True)["0001-old"].id == "0001-old"
