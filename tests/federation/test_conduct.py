"""Rounds over sites that answer, fall silent, come back, are slow, or lie."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from app.federation.accept import Arrived, norm
from app.federation.answers import SiteLate
from app.federation.conduct import Conductor
from app.federation.desk import Desk
from app.federation.field import Field, fetch
from app.federation.link import JobFailed, Link
from app.federation.terms import Terms
from app.site.parts import digest_of
from app.site.state import Base, Refusal, RunState
from fl_core.checkpoint import FolderLedger
from fl_core.data import SiteData
from fl_core.local import first_state
from fl_core.models import build_model
from fl_core.state import SiteState, Update
from fl_core.wire import pack
from mammofed.errors import BadSetting, TrainingFailed
from tests.federation.hospitals import ROWS, TestLedger, finish
from tests.federation.neighbours import (
    FIRST,
    SECOND,
    SHORT,
    SITES,
    THIRD,
    Neighbours,
    kinds,
    ledger_of,
    on_one_machine,
    read,
    same,
    terms_of,
    trained,
)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites answer at once, so that they are asked again while they work."""
    monkeypatch.setattr("app.federation.field.POLL", 0.0)


def kept_by(neighbours: Neighbours, ledger: TestLedger, site: str) -> SiteState:
    """What the site has on disk, by the name that the ledger gives it."""
    last = ledger.latest()
    assert last is not None
    base = Base(**last.record["federation"]["bases"][site])
    return RunState(neighbours.folder / site / "runs" / "run-1").read(base)


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


def test_an_offer_that_a_power_cut_left_is_not_trusted(neighbours: Neighbours, data: tuple[SiteData, ...]) -> None:
    plan = SHORT("fedavg", rounds=1)
    first = pack(first_state(build_model(plan.model, 1, 5, plan.seed)))
    offers = neighbours.folder / "work" / "offers"
    offers.mkdir(parents=True)
    (offers / digest_of(first)).write_bytes(bytes(len(first)))
    assert same(trained(neighbours, terms_of(plan)), on_one_machine(plan, data))


def test_a_site_whose_job_does_not_begin_keeps_nobody_from_training(
    neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    class Engine:
        def __init__(self) -> None:
            self.tried: list[tuple[str, ...]] = []

        def connected(self) -> frozenset[str]:
            return neighbours.connected()

        @contextmanager
        def segment(self, sites: tuple[str, ...]) -> Iterator[Link]:
            self.tried.append(sites)
            if THIRD in sites:
                raise JobFailed("the engine's job ended before it began")
            with neighbours.segment(sites) as link:
                yield link

    plan, engine = SHORT("fedavg", rounds=2), Engine()
    conductor = neighbours.conductor(terms_of(plan))
    ledger = ledger_of(conductor)
    finish(Conductor(conductor.terms, ledger, engine, conductor.folder), 60)
    assert engine.tried == [SITES, (FIRST,), (SECOND,), (THIRD,), (FIRST, SECOND)]
    assert kinds(ledger, THIRD) == {"site-silent"}
    assert read(ledger, 2).record["left_out"][THIRD]["text"] == "its job does not begin"
    assert same(ledger, on_one_machine(plan, data, lambda: frozenset({FIRST, SECOND})))


def test_news_that_come_late_take_no_newer_state_away(tmp_path: Path) -> None:
    state = RunState(tmp_path)
    bases = [Base(number, f"{number}") for number in (1, 2, 3)]
    for base in bases:
        state.propose(base, SiteState())
    state.settle(bases[1], keep_newer=True)
    assert state.read(bases[2]) == SiteState()
    state.settle(bases[1])
    with pytest.raises(Refusal, match="round 3 is not at this site"):
        state.read(bases[2])


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

    neighbours.meet_by(leaving)
    plan = SHORT("fedtan", rounds=1)
    ledger = trained(neighbours, terms_of(plan))
    assert same(ledger, on_one_machine(plan, data, lambda: frozenset({FIRST, SECOND})))
    assert "site-silent" in kinds(ledger, THIRD) or "site-refused" in kinds(ledger, THIRD)


def test_who_waits_in_a_meeting_is_not_late_but_who_does_not_come(
    neighbours: Neighbours, data: tuple[SiteData, ...]
) -> None:
    meet, hangs, calls = neighbours.desk.meet, threading.Event(), list[str]()

    def hanging(site: str, *values: Any) -> Any:
        calls.append(site)
        if site == THIRD and calls.count(THIRD) == 5:
            hangs.wait(90)
            raise ConnectionError
        return meet(site, *values)

    neighbours.meet_by(hanging)
    plan = SHORT("fedtan", rounds=1)
    ledger = trained(neighbours, terms_of(plan, deadline=8.0))
    hangs.set()
    worker = neighbours.works[THIRD].worker
    assert worker is not None
    worker.join(30)  # as it ends it gives torch's random numbers back, which the run on one machine draws too
    assert kinds(ledger, THIRD) == {"site-late"}
    assert kinds(ledger, FIRST) == kinds(ledger, SECOND) == set()
    assert same(ledger, on_one_machine(plan, data, lambda: frozenset({FIRST, SECOND})))


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
