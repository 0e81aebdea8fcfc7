"""Sites that lie: refused by name, while the round goes on without them."""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import safetensors.torch
import torch

from app.site.parts import digest_of
from fl_core.data import SiteData
from fl_core.state import Update
from fl_core.wire import pack, unpack
from tests.federation.lies import LIES, Change
from tests.federation.neighbours import (
    FIRST,
    SECOND,
    SHORT,
    THIRD,
    Lie,
    Neighbours,
    kinds,
    ledger_of,
    on_one_machine,
    read,
    same,
    terms_of,
    trained,
    wait_for_event,
)

Scores = dict[str, torch.Tensor]
TELLING = ("train", "evaluate", "wait")  # orders whose answer tells how far the work is


def lie_by(change: Change, neighbours: Neighbours, site: str) -> None:
    """Have a site send another update than the one that it trained."""
    packed: dict[str, bytes] = {}

    def lie(order: str, text: str, answer: bytes) -> bytes:
        if order == "send" and json.loads(text)["what"] == "update":
            content = json.loads(text)
            return packed["update"][content["offset"] : content["offset"] + content["size"]]
        told = json.loads(answer) if order in TELLING else {}
        if "digest" in told:
            update = unpack(Update, bytes(neighbours.works[site].left["update"]))
            packed["update"] = pack(change(update))
            told["digest"], told["bytes"] = digest_of(packed["update"]), len(packed["update"])
            return json.dumps(told).encode()
        return answer

    neighbours.lies[site] = lie


@pytest.mark.parametrize("kind", LIES)
def test_a_lying_site_is_refused_by_name_and_the_round_goes_on(
    kind: str, neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    change, words = LIES[kind]
    lie_by(change, neighbours, SECOND)
    plan = SHORT("scaffold", rounds=1)
    ledger = trained(neighbours, terms_of(plan))
    [(_, text, _)] = [event for event in ledger.events if event[0] == "site-refused"]
    assert words in text
    assert SECOND in text
    assert same(ledger, on_one_machine(plan, data, lambda: frozenset({FIRST, THIRD})))


def instead_of(order: str, words: bytes) -> Lie:
    """Answer an order with other bytes."""
    return lambda asked, text, answer: words if asked == order else answer


def with_words(order: str, having: bytes = b"", **words: Any) -> Lie:
    """Answer an order, where the honest answer has these bytes, with some words changed; None takes them away."""

    def lie(asked: str, text: str, answer: bytes) -> bytes:
        if asked != order or having not in answer:
            return answer
        told = {**json.loads(answer), **words}
        return json.dumps({name: value for name, value in told.items() if value is not None}).encode()

    return lie


NONSENSE: Mapping[str, Lie] = {
    "no JSON": instead_of("hello", b"\xff\xfe"),
    "no words": instead_of("hello", b"[1, 2]"),
    "no bottom": instead_of("hello", b"[" * 100_000),
    "too many words": instead_of("hello", b'"' + b"x" * (2 << 20) + b'"'),
    "nothing to an order": instead_of("train", b"{}"),
    "no classes": with_words("hello", classes=None),
    "a class twice": with_words("hello", classes=["mass"] * 5),
    "counts of other classes": with_words("hello", train=[1, 2]),
    "patches in words": with_words("hello", patches="thirty"),
    "no patches": with_words("hello", patches=0),
    "endless patches": with_words("hello", patches=float("inf")),
    "another's name": with_words("hello", site=THIRD),
    "other channels": with_words("hello", shape=[3, 32, 32]),
    "a character that is none": with_words("hello", vendors={"a\0b": 1}),
    "an error that no database keeps": instead_of("train", b'{"error": "a\\u0000b"}'),
    "no digest": with_words("train", b'"done"', digest=7),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_refused_by_name_and_the_round_goes_on(
    kind: str, neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    neighbours.lies[FIRST] = NONSENSE[kind]
    plan = SHORT("fedavg", rounds=1)
    ledger = trained(neighbours, terms_of(plan))
    assert kinds(ledger, FIRST) == {"site-refused"}
    assert same(ledger, on_one_machine(plan, data, lambda: frozenset({SECOND, THIRD})))


@pytest.mark.parametrize("field", [{"loss": "small"}, {"loss_error": "none"}, {"steps": [1]}, {"model": 5}])
def test_fields_of_another_kind_are_refused(field: dict[str, Any], neighbours: Neighbours) -> None:
    lie_by(lambda update: replace(update, **field), neighbours, SECOND)
    ledger = trained(neighbours, terms_of(SHORT("fedavg", rounds=1)))
    [text] = [text for kind, text, site in ledger.events if (kind, site) == ("site-refused", SECOND)]
    assert f"{next(iter(field))} not of the kind" in text


def with_scores(change: Callable[[Scores], Scores]) -> Lie:
    """Send other scores than those of the test patches."""
    spooled: dict[str, bytes] = {}

    def lie(order: str, text: str, answer: bytes) -> bytes:
        content = json.loads(text)
        if order == "send" and content["what"] == "scores":
            return spooled["scores"][content["offset"] : content["offset"] + content["size"]]
        told = json.loads(answer) if order in TELLING else {}
        if not told.get("scores"):
            return answer
        honest = {"scores": torch.full((4, 5), 0.2, dtype=torch.float64), "labels": torch.arange(4)}
        spooled["scores"] = safetensors.torch.save(change(honest))
        told["scores"] = {
            "digest": digest_of(spooled["scores"]),
            "bytes": len(spooled["scores"]),
        }
        return json.dumps(told).encode()

    return lie


FALSE_SCORES: Mapping[str, Lie] = {
    "nan": with_scores(lambda honest: {**honest, "scores": honest["scores"] * torch.nan}),
    "shape": with_scores(lambda honest: {**honest, "scores": honest["scores"][:2]}),
    "classes": with_scores(lambda honest: {**honest, "scores": honest["scores"][:, :4].clone()}),
    "labels": with_scores(lambda honest: {**honest, "labels": honest["labels"] + 3}),
    "names": with_scores(lambda honest: {"scores": honest["scores"]}),
    "size": with_words("evaluate", b'"metrics"', scores={"digest": "0" * 64, "bytes": 1 << 32}),
    "metrics": with_words("evaluate", b'"metrics"', metrics={"accuracy": 1.0}),
}


@pytest.mark.parametrize("kind", FALSE_SCORES)
def test_false_scores_are_refused_and_leave_the_round(
    kind: str, neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    neighbours.lies[SECOND] = FALSE_SCORES[kind]
    plan = SHORT("fedavg", rounds=1)
    ledger = trained(neighbours, terms_of(plan, quorum=3))
    assert kinds(ledger, SECOND) == {"site-refused"}
    assert same(ledger, on_one_machine(plan, data))
    assert set(read(ledger, 1).record["test"]["sites"]) == {FIRST, THIRD}


def test_a_replayed_update_is_refused(neighbours: Neighbours) -> None:
    old: dict[str, bytes] = {}

    def lie(order: str, text: str, answer: bytes) -> bytes:
        told = json.loads(answer) if order in TELLING else {}
        if "digest" in told and "metrics" not in told:
            old.setdefault("told", answer)
            left = neighbours.works[SECOND].left
            left["update"] = memoryview(old.setdefault("update", bytes(left["update"])))
            return old["told"]
        return answer

    neighbours.lies[SECOND] = lie
    ledger = trained(neighbours, terms_of(SHORT("fedavg")))
    [(_, text, site)] = [event for event in ledger.events if event[0] == "site-refused"]
    assert site == SECOND
    assert "of round 1, while round 2 is open" in text


def test_bytes_that_were_not_announced_are_refused(neighbours: Neighbours) -> None:
    neighbours.lies[THIRD] = lambda order, text, answer: bytes(len(answer)) if order == "send" else answer
    ledger = trained(neighbours, terms_of(SHORT("fedavg", rounds=1)))
    assert any("not those that were announced" in text for _, text, site in ledger.events if site == THIRD)


def test_too_many_liars_leave_the_last_good_round(neighbours: Neighbours) -> None:
    for site in (SECOND, THIRD):
        neighbours.lies[site] = lambda order, text, answer: bytes(len(answer)) if order == "send" else answer
    conductor = neighbours.conductor(terms_of(SHORT("fedavg", rounds=1)))
    ledger = ledger_of(conductor)
    thread = threading.Thread(target=conductor.run)
    thread.start()
    wait_for_event(ledger, "waiting")
    ledger.orders.append("stop")
    thread.join(20)
    assert not thread.is_alive()
    assert ledger.latest() is None


def test_what_a_refused_site_brought_to_a_meeting_is_in_nobodys_update(
    neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    lie_by(LIES["norm"][0], neighbours, SECOND)
    plan = SHORT("fedtan", rounds=1)
    ledger = trained(neighbours, terms_of(plan))
    assert kinds(ledger, SECOND) == {"site-refused"}
    assert same(ledger, on_one_machine(plan, data, lambda: frozenset({FIRST, THIRD})))


BROUGHT: Mapping[str, Callable[[bytes, str, int], tuple[Any, Any, Any]]] = {
    "length": lambda values, kind, weight: (values * 2, kind, weight),
    "half a number": lambda values, kind, weight: (values[:-1], kind, weight),
    "nothing": lambda values, kind, weight: (b"", kind, weight),
    "not finite": lambda values, kind, weight: (b"\xff" * len(values), kind, weight),
    "kind": lambda values, kind, weight: (values, "object", weight),
    "other precision": lambda values, kind, weight: (values * 2, "float64", weight),
    "weight": lambda values, kind, weight: (values, kind, -weight),
}


@pytest.mark.parametrize("kind", BROUGHT)
def test_false_values_at_a_meeting_cost_the_liar_the_round_and_nobody_else(
    kind: str, neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    meet = neighbours.desk.meet
    calls: list[str] = []

    def lying(site: str, key: str, *brought: Any) -> Any:
        calls.append(site)
        lies = site == SECOND and calls.count(SECOND) == 3
        return meet(site, key, *(BROUGHT[kind](*brought) if lies else brought))

    neighbours.meet_by(lying)
    plan = SHORT("fedtan", rounds=1)
    ledger = trained(neighbours, terms_of(plan))
    assert same(ledger, on_one_machine(plan, data, lambda: frozenset({FIRST, THIRD})))
    assert kinds(ledger, SECOND) == {"site-refused"}
