"""Rounds over sites that answer, fall silent, come back, are slow, or lie."""

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from app.federation.accept import Arrived, norm
from app.federation.answers import SiteLate
from app.federation.conduct import Conductor
from app.federation.desk import Desk
from app.federation.field import Field, fetch
from app.federation.terms import Terms
from app.site.parts import digest_of
from app.site.state import Base, RunState
from app.sources import DataChoice, sites_from
from fl_core.checkpoint import FolderLedger, read_manifest
from fl_core.data import SiteData
from fl_core.evaluate import report
from fl_core.family import ALGORITHMS
from fl_core.models import build_model
from fl_core.plan import Plan
from fl_core.rounds import Federation, Moment, run_rounds
from fl_core.state import SiteState, Update
from fl_core.wire import pack, unpack
from mammofed.errors import BadSetting, TrainingFailed
from tests.federation.hospitals import TestLedger, small_plan, until
from tests.federation.neighbours import Lie, Neighbours

SITES = ("hospital-1", "hospital-2", "hospital-3")
FIRST, SECOND, THIRD = SITES
CHOICE = DataChoice(sites=3, patches=30, image_size=32)
ROWS = [name for name, row in ALGORITHMS.items() if not row.pooled]
Scores = dict[str, torch.Tensor]
SHORT = partial(small_plan, rounds=2, local_steps=2, batch=4)
TELLING = ("train", "evaluate", "wait")  # orders whose answer tells how far the work is


@pytest.fixture(scope="module")
def data() -> tuple[SiteData, ...]:
    return sites_from(CHOICE)


def on_one_machine(
    plan: Plan, data: tuple[SiteData, ...], present: Callable[[], frozenset[str] | None] = lambda: None
) -> Moment:
    """The same run without sites that must be called."""
    federation = Federation(plan, partial(build_model, plan.model, 1, 5, plan.seed), data)
    *_, last = run_rounds(federation, partial(report, resamples=100, seed=plan.seed), present=present)
    return last


def terms_of(plan: Plan, **changes: Any) -> Terms:
    settings = {"quorum": 2, "deadline": 60.0, "silence": 0.1, "resamples": 100, **changes}
    return Terms("run-1", plan, SITES, **settings)


@pytest.fixture
def neighbours(tmp_path: Path) -> Neighbours:
    words = "synthetic:{}/3,patches=30,size=32"
    return Neighbours(tmp_path, {site: words.format(number) for number, site in enumerate(SITES, 1)})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites answer at once, so that they are asked again while they work."""
    monkeypatch.setattr("app.federation.field.POLL", 0.0)


def ledger_of(conductor: Conductor) -> TestLedger:
    assert isinstance(conductor.ledger, TestLedger)
    return conductor.ledger


def trained(neighbours: Neighbours, terms: Terms) -> TestLedger:
    conductor = neighbours.conductor(terms)
    conductor.run()
    return ledger_of(conductor)


def kept_by(neighbours: Neighbours, ledger: TestLedger, site: str) -> SiteState:
    """What the site has on disk, by the name that the ledger gives it."""
    last = ledger.latest()
    assert last is not None
    base = Base(**last.record["federation"]["bases"][site])
    return RunState(neighbours.folder / site / "runs" / "run-1").read(base)


def same(ledger: TestLedger, moment: Moment) -> bool:
    last = ledger.latest()
    return last is not None and pack(last.server) == pack(moment.server)


def kinds(ledger: TestLedger, site: str) -> set[str]:
    return {kind for kind, _, about in ledger.events if about == site}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_ends_bit_identical_to_one_machine(
    row: str, neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    plan = SHORT(row)
    ledger, alone = trained(neighbours, terms_of(plan, quorum=3)), on_one_machine(plan, data)
    assert same(ledger, alone)
    for site in SITES:
        assert pack(kept_by(neighbours, ledger, site)) == pack(alone.states[site])
    last = ledger.latest()
    assert last is not None
    assert last.record["test"]["accuracy"] == alone.record["test"]["accuracy"]
    assert last.record["test"]["pooled"]
    assert all(last.record[name] == alone.record[name] for name in ("loss", "loss_low", "loss_high", "loss_n"))
    assert last.record["loss_low"] < last.record["loss"]


def test_a_fast_site_is_done_with_the_answer_to_its_order(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.federation.field.POLL", 60.0)
    trained(neighbours, terms_of(SHORT("fedavg", rounds=1), quorum=3))
    assert neighbours.heard.count((FIRST, "train")) == 1
    assert {order for _, order in neighbours.heard} == {"hello", "train", "send", "evaluate", "commit"}


def test_updates_are_summed_while_others_arrive(
    neighbours: Neighbours, data: tuple[SiteData, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    load, loaded = Arrived.load, threading.Event()
    in_time: list[bool] = []

    def loading(arrived: Arrived) -> Update:
        loaded.set()
        return load(arrived)

    def before(site: str, order: str) -> None:
        if (site, order) == (THIRD, "send") and not in_time:
            in_time.append(loaded.wait(60.0))

    monkeypatch.setattr(Arrived, "load", loading)
    neighbours.before = before
    plan = SHORT("bn-scaffold", rounds=1)
    assert same(trained(neighbours, terms_of(plan, quorum=3)), on_one_machine(plan, data))
    assert in_time == [True]


def test_a_site_that_falls_silent_is_left_out_and_comes_back(
    neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    plan = SHORT("bn-scaffold-std", rounds=4)

    def before(site: str, order: str) -> None:
        trainings = neighbours.heard.count((FIRST, "train"))
        if (site, order) == (THIRD, "train") and neighbours.heard.count((THIRD, "train")) == 2:
            neighbours.online.discard(THIRD)
        if trainings == 3:
            neighbours.online.add(THIRD)

    neighbours.before = before
    ledger = trained(neighbours, terms_of(plan))
    records = [read(ledger, number).record for number in (1, 2, 3, 4)]
    away = [number for number, record in enumerate(records, 1) if THIRD not in record["sites"]]
    assert away[0] == 2
    assert THIRD in records[3]["sites"]
    assert "silent" in str(records[1]["left_out"][THIRD]["kind"])
    assert "site-silent" in kinds(ledger, THIRD)
    present = iter(frozenset(SITES) - ({THIRD} if number in away else set()) for number in (1, 2, 3, 4))
    assert same(ledger, on_one_machine(plan, data, lambda: next(present)))


def read(ledger: FolderLedger, number: int) -> Any:
    return type("Round", (), read_manifest(ledger.folder / "rounds" / f"{number:06d}.json"))


@pytest.mark.usefixtures("impatient")
def test_the_variates_stay_the_weighted_mean_over_all_sites(neighbours: Neighbours) -> None:
    heard = neighbours.heard

    def before(site: str, order: str) -> None:
        if site == SECOND and order == "wait" and heard.count((SECOND, "train")) == 2:
            neighbours.online.discard(SECOND)

    neighbours.before = before
    ledger = trained(neighbours, terms_of(SHORT("scaffold")))
    last = ledger.latest()
    assert last is not None
    assert SECOND not in last.record["sites"]
    patches = {site: member["patches"] for site, member in last.record["federation"]["members"].items()}
    total = sum(patches.values())
    for name, value in last.server.c.items():
        mean = sum(patches[site] / total * last.sites[site].c[name] for site in SITES)
        torch.testing.assert_close(value, mean)


@pytest.mark.usefixtures("impatient")
def test_a_site_killed_in_a_round_goes_on_from_its_disk(
    neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    killed: list[str] = []

    def before(site: str, order: str) -> None:
        if site == SECOND and order == "wait" and neighbours.heard.count((SECOND, "train")) == 2 and not killed:
            killed.append(site)
            neighbours.restart(SECOND)

    neighbours.before = before
    plan = SHORT("fedbn+scaffold", rounds=3)
    ledger = trained(neighbours, terms_of(plan, quorum=3))
    alone = on_one_machine(plan, data)
    assert killed
    assert same(ledger, alone)
    assert pack(kept_by(neighbours, ledger, SECOND)) == pack(alone.states[SECOND])


def test_a_coordinator_killed_after_the_commit_finds_its_sites_in_step(
    neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    class Killed(Exception):
        """Stands for kill -9 between the commit and what follows it."""

    class DyingLedger(TestLedger):
        def commit(self, checkpoint: Any, moment: Any) -> None:
            super().commit(checkpoint, moment)
            if checkpoint.server.round == 1:
                raise Killed

    plan = SHORT("bn-scaffold")
    conductor = neighbours.conductor(terms_of(plan, quorum=3))
    dying = DyingLedger(ledger_of(conductor).folder)
    with pytest.raises(Killed):
        Conductor(conductor.terms, dying, neighbours, conductor.folder).run()
    assert same(trained(neighbours, terms_of(plan, quorum=3)), on_one_machine(plan, data))


def test_a_coordinator_that_lost_its_last_round_goes_on_from_the_one_before(
    neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    plan = SHORT("fedbn+scaffold", rounds=3)
    ledger = trained(neighbours, terms_of(plan, quorum=3))
    (ledger.folder / "rounds" / "000003.json").unlink()
    longer = replace(plan, rounds=4)
    ledger, alone = trained(neighbours, terms_of(longer, quorum=3)), on_one_machine(longer, data)
    assert same(ledger, alone)
    for site in SITES:
        assert pack(kept_by(neighbours, ledger, site)) == pack(alone.states[site])
        assert len(list((neighbours.folder / site / "runs" / "run-1").glob("*.safetensors"))) == 2


@pytest.mark.usefixtures("impatient")
def test_an_engine_that_loses_its_job_goes_on_at_the_last_round(
    neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    plan = SHORT("silobn", rounds=3)
    broken: list[Any] = []
    segment = neighbours.segment

    def breaking(sites: tuple[str, ...]) -> Any:
        found = segment(sites)
        broken.append(found)
        return found

    def before(site: str, order: str) -> None:
        if order == "wait" and neighbours.heard.count((FIRST, "train")) == 2 and len(broken) == 1:
            links[0].end.shutdown(socket.SHUT_RDWR)

    links: list[Any] = []

    class Engine:
        connected = staticmethod(neighbours.connected)

        @staticmethod
        def segment(sites: tuple[str, ...]) -> Any:
            @contextmanager
            def watched() -> Any:
                with breaking(sites) as link:
                    links.insert(0, link)
                    yield link

            return watched()

    neighbours.before = before
    conductor = neighbours.conductor(terms_of(plan, quorum=3))
    Conductor(conductor.terms, conductor.ledger, Engine(), conductor.folder).run()
    assert len(broken) == 2
    assert same(ledger_of(conductor), on_one_machine(plan, data))


# lies


def changed(change: Callable[[Update], Update]) -> Callable[[str, str, bytes], bytes]:
    """Send another update than the one that was trained."""
    packed: dict[str, bytes] = {}

    def lie(order: str, text: str, answer: bytes) -> bytes:
        if order == "send" and json.loads(text)["what"] == "update":
            content = json.loads(text)
            return packed["update"][content["offset"] : content["offset"] + content["size"]]
        told = json.loads(answer) if order in TELLING else {}
        if "digest" in told:
            update = unpack(Update, bytes(lie.site.left["update"]))  # type: ignore[attr-defined]
            packed["update"] = pack(change(update))
            told["digest"], told["bytes"] = digest_of(packed["update"]), len(packed["update"])
            return json.dumps(told).encode()
        return answer

    return lie


def with_largest(update: Update, value: Callable[[torch.Tensor], torch.Tensor]) -> Update:
    name = max(update.model, key=lambda name: update.model[name].numel())
    return replace(update, model={**update.model, name: value(update.model[name])})


def replaced(**fields: Any) -> Callable[[Update], Update]:
    return lambda update: replace(update, **fields)


LIES: Mapping[str, tuple[Callable[[Update], Update], str]] = {
    "shape": (lambda update: with_largest(update, lambda tensor: tensor[:1]), "is needed"),
    "nan": (lambda update: with_largest(update, lambda tensor: tensor * torch.nan), "is not finite"),
    "norm": (lambda update: with_largest(update, lambda tensor: tensor + 1e3), "times the usual"),
    "round": (replaced(round=7), "of round 7"),
    "patches": (replaced(patches=10**6), "are enrolled"),
    "name": (replaced(site=FIRST), "it says that it comes from"),
    "loss": (replaced(loss=float("nan")), "loss nan"),
    "loss's error": (replaced(loss_error=-1.0), "± -1.0"),
    "size": (lambda update: with_largest(update, lambda tensor: tensor.repeat(50, 1, 1, 1)), "at most"),
}


@pytest.mark.parametrize("kind", LIES)
def test_a_lying_site_is_refused_by_name_and_the_round_goes_on(
    kind: str, neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    change, words = LIES[kind]
    lie = changed(change)
    lie.site = neighbours.works[SECOND]  # type: ignore[attr-defined]
    neighbours.lies[SECOND] = lie
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
    lie = changed(lambda update: replace(update, **field))
    lie.site = neighbours.works[SECOND]  # type: ignore[attr-defined]
    neighbours.lies[SECOND] = lie
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


def wait_for_event(ledger: TestLedger, kind: str) -> None:
    until(lambda: any(found == kind for found, _, _ in ledger.events), 30, f"an event {kind!r}")


# slow, paused, private


def test_a_site_that_dies_while_scoring_scores_the_round_after_all(
    neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    def before(site: str, order: str) -> None:
        if (site, order) == (SECOND, "evaluate") and neighbours.heard.count((SECOND, "evaluate")) == 2:
            neighbours.online.discard(SECOND)
            neighbours.restart(SECOND)

    def connected() -> frozenset[str]:
        neighbours.online.add(SECOND)  # it is back when it is looked for
        return frozenset(SITES)

    neighbours.before, neighbours.connected = before, connected  # type: ignore[method-assign]
    plan = SHORT("scaffold", rounds=3)
    ledger, alone = trained(neighbours, terms_of(plan, quorum=3)), on_one_machine(plan, data)
    assert neighbours.heard.count((SECOND, "train")) > plan.rounds
    assert same(ledger, alone)
    for number in (1, 2, 3):
        assert set(read(ledger, number).record["test"]["sites"]) == set(SITES)
    assert read(ledger, 3).record["test"]["accuracy"] == alone.record["test"]["accuracy"]


def test_a_paused_site_that_a_round_needs_is_waited_for_in_one_segment(neighbours: Neighbours) -> None:
    flag = neighbours.folder / SECOND / "paused"
    flag.touch()

    def before(site: str, order: str) -> None:
        if neighbours.heard.count((SECOND, "hello")) == 4:
            flag.unlink(missing_ok=True)

    neighbours.before = before
    ledger = trained(neighbours, terms_of(SHORT("fedavg", rounds=1), quorum=3))
    assert [kind for kind, _, _ in ledger.events] == ["segment", "waiting"]
    assert len(neighbours.segments) == 1
    assert set(read(ledger, 1).record["sites"]) == set(SITES)


def test_a_site_that_was_open_before_is_not_given_a_minute_to_answer(neighbours: Neighbours) -> None:
    granted: list[float] = []
    segment = neighbours.segment

    @contextmanager
    def timed(sites: tuple[str, ...]) -> Any:
        with segment(sites) as link:
            call = link.call

            def timing(site: str, order: str, text: str, timeout: float) -> bytes:
                if order == "hello":
                    granted.append(timeout)
                return call(site, order, text, timeout)

            link.call = timing  # type: ignore[method-assign]
            yield link

    neighbours.segment = timed  # type: ignore[method-assign]
    trained(neighbours, terms_of(SHORT("fedavg"), silence=5.0))
    assert granted == [65.0] * 3 + [5.0] * 6


def test_a_late_site_is_left_out_while_it_answers(neighbours: Neighbours) -> None:
    slow = threading.Event()
    honest = neighbours.works[THIRD].train_now

    def sleeping(order: Any, job: Any) -> Any:
        slow.wait(20)
        return honest(order, job)

    neighbours.works[THIRD].train_now = sleeping  # type: ignore[method-assign]
    ledger = trained(neighbours, terms_of(SHORT("fedavg", rounds=1), deadline=0.5))
    slow.set()
    assert kinds(ledger, THIRD) == {"site-late"}
    assert len(neighbours.segments) == 1  # it answers: no need to begin another segment


def test_a_site_that_sends_its_update_too_slowly_is_late(neighbours: Neighbours, tmp_path: Path) -> None:
    with neighbours.segment(SITES) as link:
        field = Field(terms_of(SHORT("fedavg")), link, tmp_path, lambda *_: None, lambda: None)
        offer = {"bytes": 8, "digest": "0" * 64}
        with pytest.raises(SiteLate, match="0 of 8 bytes of its update"):
            fetch(field, FIRST, "update", offer, tmp_path / "update", 8, time.monotonic())


def test_a_paused_site_is_left_out_until_it_resumes(neighbours: Neighbours) -> None:
    flag = neighbours.folder / SECOND / "paused"
    flag.touch()

    def before(site: str, order: str) -> None:
        if neighbours.heard.count((FIRST, "train")) == 1:
            flag.unlink(missing_ok=True)

    neighbours.before = before
    ledger = trained(neighbours, terms_of(SHORT("fedavg")))
    assert "site-paused" in kinds(ledger, SECOND)
    assert SECOND not in read(ledger, 1).record["sites"]
    assert SECOND in read(ledger, 2).record["sites"]


def test_a_site_that_leaves_a_meeting_keeps_nobody_waiting(
    neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    meet = neighbours.desk.meet
    calls: list[str] = []

    def leaving(site: str, *values: Any) -> Any:
        calls.append(site)
        if site == THIRD and calls.count(THIRD) == 5:
            neighbours.online.discard(THIRD)
        if site not in neighbours.online:
            raise ConnectionError
        return meet(site, *values)

    neighbours.desk.meet = leaving  # type: ignore[method-assign,assignment]
    for site in SITES:
        neighbours.restart(site)
    plan = SHORT("fedtan", rounds=1)
    ledger = trained(neighbours, terms_of(plan))
    assert same(ledger, on_one_machine(plan, data, lambda: frozenset({FIRST, SECOND})))
    assert "site-silent" in kinds(ledger, THIRD) or "site-refused" in kinds(ledger, THIRD)


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

    neighbours.desk.meet = lying  # type: ignore[method-assign,assignment]
    for site in SITES:
        neighbours.restart(site)
    plan = SHORT("fedtan", rounds=1)
    ledger = trained(neighbours, terms_of(plan))
    assert same(ledger, on_one_machine(plan, data, lambda: frozenset({FIRST, THIRD})))
    assert kinds(ledger, SECOND) == {"site-refused"}


def test_a_desk_that_closes_keeps_nobody_waiting(tmp_path: Path) -> None:
    desk, told = Desk(tmp_path), []
    desk.take("meet", {"key": "1-a", "sites": [FIRST, SECOND]})

    def waiting() -> None:
        try:
            desk.meet(FIRST, "1-a", bytes(4), "float32", 1)
        except TrainingFailed as error:
            told.append(str(error))

    thread = threading.Thread(target=waiting)
    thread.start()
    desk.close()
    thread.join(10)
    assert told == ["another site left the layer-wise exchange of this round"]
    with pytest.raises(TrainingFailed, match="not at that meeting"):
        desk.meet(THIRD, "1-a", bytes(4), "float32", 1)


def test_a_site_that_lost_its_disk_is_refused_by_name(neighbours: Neighbours) -> None:
    def before(site: str, order: str) -> None:
        if (site, order) == (THIRD, "train") and neighbours.heard.count((THIRD, "train")) == 2:
            neighbours.lose_disk(THIRD)

    neighbours.before = before
    ledger = trained(neighbours, terms_of(SHORT("fedbn")))
    assert any("state of round 1 is not at this site" in text for _, text, site in ledger.events if site == THIRD)


def test_scores_that_stay_at_a_site_leave_combined_metrics(tmp_path: Path) -> None:
    words = "synthetic:{}/3,patches=60,size=32"
    data = {site: words.format(number) for number, site in enumerate(SITES, 1)}
    neighbours = Neighbours(tmp_path, data, share_scores=False)
    ledger = trained(neighbours, terms_of(SHORT("fedavg", rounds=1)))
    test = read(ledger, 1).record["test"]
    assert test["pooled"] is False
    assert set(test["sites"]) == set(SITES)
    assert test["accuracy"]["low"] is None
    sent = [site for site, order in neighbours.heard if order == "send"]
    assert sorted(sent) == sorted(SITES)  # each its update


@pytest.mark.parametrize(("floor", "shown"), [(10, 30), (11, 0)])
def test_scores_leave_a_site_of_classes_above_its_floor_only(tmp_path: Path, floor: int, shown: int) -> None:
    data = {site: f"synthetic:{number}/3,patches=150,size=32" for number, site in enumerate(SITES, 1)}
    ledger = trained(Neighbours(tmp_path, data, floor=floor), terms_of(SHORT("fedavg", rounds=1)))
    test = read(ledger, 1).record["test"]
    assert (test["pooled"], test["n"]) == (True, 5 * shown)
    assert [row["n"] for row in test["detail"]["per_class"]] == [shown] * 5


def test_terms_that_cannot_hold_raise() -> None:
    for changes, words in (
        ({"quorum": 4}, "quorum 4"),
        ({"deadline": 0.0}, "deadline 0"),
        ({"plan": SHORT("centralized")}, "data do not leave"),
    ):
        with pytest.raises(BadSetting, match=words):
            Terms(**{**terms_of(SHORT("fedavg")).__dict__, **changes})


def test_norms_too_large_for_single_precision_are_numbers_still() -> None:
    assert norm(lambda: [[torch.full((4,), 1e30)], [torch.full((4,), 1e30)]]) == pytest.approx(1e30 * 8**0.5)
    assert norm(lambda: []) == 0.0


def test_no_state_is_read_while_sites_are_waited_for(
    neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    conductor = neighbours.conductor(terms_of(SHORT("fedavg")))
    neighbours.online.clear()
    read: list[str] = []
    monkeypatch.setattr(FolderLedger, "latest", lambda self: read.append("state"))
    monkeypatch.setattr("app.federation.conduct.AGAIN", 0.01)
    looks = iter(range(5))
    monkeypatch.setattr(TestLedger, "order", lambda self: "train" if next(looks, None) is not None else "stop")
    conductor.run()
    assert ledger_of(conductor).events
    assert read == []
