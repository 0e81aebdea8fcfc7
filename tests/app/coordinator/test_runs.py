"""Runs over REST: created once, controlled by the state machine, shown as they are."""

import httpx
import pytest

from app.client import CoordinatorRefused
from app.schemas.access import NewToken
from app.schemas.runs import DataSettings, Run
from app.schemas.shape import Action
from tests.app.coordinator.services import SMALL, Service, ended, wait_until

pytestmark = pytest.mark.xdist_group("coordinator")


def test_a_trained_run_shows_its_rounds_curves_and_drift(coordinator: Service, run: Run) -> None:
    assert (run.state, run.round, run.actions) == ("completed", 2, ())
    with coordinator.client() as lead:
        newest, first = lead.rounds(run.id).items
        curves, drift = lead.metrics(run.id), lead.drift(run.id)
        sites = lead.run_sites(run.id)
    assert (newest.number, first.number) == (2, 1)
    assert curves.rounds == (1, 2)
    assert curves.loss == (first.loss, newest.loss)
    assert first.test is not None
    assert newest.test is not None
    assert curves.test.auc_ovo.value == (first.test.auc_ovo.value, newest.test.auc_ovo.value)
    assert curves.loss_high == (first.loss_high, newest.loss_high)
    assert first.loss_low is not None
    assert first.loss_low < first.loss
    assert curves.loss_n == (2 * 2 * 8,) * 2
    other = curves.sites["hospital-2"]
    assert other.loss == tuple(r.sites[1].loss for r in (first, newest))
    assert other.loss_low == tuple(r.sites[1].loss_low for r in (first, newest))
    assert other.loss_n == (2 * 8,) * 2
    assert run.latest == newest.test
    assert [site.site for site in sites] == ["hospital-1", "hospital-2"]
    assert sites[0].train == dict.fromkeys(sites[0].train, 17)
    assert drift.round == 2
    assert drift.rounds == (1, 2)
    mean = sum(layer.statistics["hospital-1"] or 0 for layer in drift.layers) / len(drift.layers)
    assert drift.mean_statistics["hospital-1"][1] == pytest.approx(mean, rel=1e-3)


def test_the_best_round_is_the_one_that_the_selection_metric_prefers(coordinator: Service, run: Run) -> None:
    with coordinator.client() as lead:
        values = lead.metrics(run.id).test.auc_ovo.value
    best = max(range(2), key=lambda index: values[index] or 0)
    assert run.best_round == best + 1
    assert run.best is not None
    assert run.best.auc_ovo.value == values[best]


def test_pages_of_rounds_follow_each_other(coordinator: Service, run: Run) -> None:
    with coordinator.client() as lead:
        page = lead.rounds(run.id, limit=1)
        assert [r.number for r in page.items] == [2]
        rest = lead.rounds(run.id, after=int(page.next or 0), limit=1)
    assert [r.number for r in rest.items] == [1]
    assert rest.next is None
    assert rest.total == 2


def test_pages_of_runs_follow_each_other(coordinator: Service) -> None:
    with coordinator.client() as lead:
        made = [lead.create(SMALL).id for _ in range(3)]
        page = lead.runs(limit=2)
        assert [one.id for one in page.items] == [made[2], made[1]]
        rest = lead.runs(after=str(page.next), limit=1)
        assert [one.id for one in rest.items] == [made[0]]
        oldest = lead.runs(after=str(rest.next), limit=500)
    assert oldest.next is None
    assert oldest.total == 3 + len(oldest.items)


def test_curves_come_once_a_round(coordinator: Service, run: Run) -> None:
    headers = {"Authorization": f"Bearer {coordinator.secret()}"}
    address = f"{coordinator.url}/api/v1/runs/{run.id}/metrics"
    first = httpx.get(address, headers=headers)
    again = httpx.get(address, headers={**headers, "If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_step_trains_exactly_one_round(coordinator: Service) -> None:
    with coordinator.client() as lead:
        draft = lead.create(SMALL)
        assert draft.state == "draft"
        assert draft.actions == ("start", "step", "stop")
        lead.act(draft.id, "step")
        once = ended(lead, draft.id)
        assert (once.state, once.round) == ("paused", 1)
        lead.act(draft.id, "step")
        assert (ended(lead, draft.id).state, lead.run(draft.id).round) == ("completed", 2)


def test_a_paused_run_finishes_its_open_round_and_goes_on_to_the_same_end(coordinator: Service, run: Run) -> None:
    with coordinator.client() as lead:
        other = lead.create(SMALL)
        lead.act(other.id, "start")
        lead.act(other.id, "pause")
        paused = ended(lead, other.id)
        assert paused.state == "paused"
        assert paused.round <= 1
        lead.act(other.id, "resume")
        whole = ended(lead, other.id)
        assert whole.state == "completed"
        assert (whole.latest, whole.best, whole.data_key) == (run.latest, run.best, run.data_key)


def test_stop_ends_a_run_at_once(coordinator: Service) -> None:
    with coordinator.client() as lead:
        long = lead.create(SMALL.model_copy(update={"rounds": 10_000}))
        lead.act(long.id, "start")
        wait_until(lambda: lead.run(long.id).round, "the first round")
        assert lead.act(long.id, "stop").state == "stopped"
        kept = lead.run(long.id).round
        wait_until(lambda: lead.health().workers == 0, "the end of its worker")
        assert lead.run(long.id).round == kept


@pytest.mark.parametrize("action", ["start", "pause", "resume", "step", "stop"])
def test_a_completed_run_takes_no_action(coordinator: Service, run: Run, action: Action) -> None:
    with coordinator.client() as lead, pytest.raises(CoordinatorRefused) as refusal:
        lead.act(run.id, action)
    assert refusal.value.problem.status == 409
    assert refusal.value.problem.allowed == ()


def test_an_illegal_action_names_the_allowed_ones(coordinator: Service) -> None:
    with coordinator.client() as lead:
        draft = lead.create(SMALL)
        with pytest.raises(CoordinatorRefused, match="allowed now: start, step, stop") as refusal:
            lead.act(draft.id, "resume")
    assert refusal.value.problem.allowed == ("start", "step", "stop")


def test_an_idempotency_key_gives_the_same_run(coordinator: Service) -> None:
    with coordinator.client() as lead:
        first, second = lead.create(SMALL, "once"), lead.create(SMALL, "once")
        assert first.id == second.id
        with pytest.raises(CoordinatorRefused, match="other settings"):
            lead.create(SMALL.model_copy(update={"rounds": 3}), "once")
        assert lead.create(SMALL).id != first.id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithm": "fedsgd"}, "choose one of"),
        ({"model": "vgg"}, "choose one of"),
        ({"schedule": "sometimes"}, "schedule"),
        ({"momentum": 0.9}, "inflate the control variates"),
        ({"quorum": 3}, "the run has 2 sites"),
        ({"data": DataSettings(site=("a.b=/data/a", "a-b=/data/b"))}, "small letters"),
        ({"engine": "nvflare"}, "names of the enrolled sites"),
        ({"engine": "nvflare", "sites": ("nowhere",)}, "not enrolled: nowhere; known: "),
        ({"engine": "nvflare", "sites": ("nowhere",)}, "`mammofed federation add-site nowhere` makes a kit"),
    ],
)
def test_settings_that_cannot_train_are_refused(
    coordinator: Service, change: dict[str, object], said: str
) -> None:
    with coordinator.client() as lead, pytest.raises(CoordinatorRefused, match=said) as refusal:
        lead.create(SMALL.model_copy(update=change))
    assert refusal.value.problem.status == 422


def test_a_run_that_diverges_fails_with_the_reason_and_keeps_its_last_round(coordinator: Service) -> None:
    with coordinator.client() as lead:
        wild = lead.create(SMALL.model_copy(update={"schedule": "step:4:1e30", "rounds": 4}))
        lead.act(wild.id, "start")
        failed = ended(lead, wild.id)
        assert failed.state == "failed"
        assert failed.reason is not None
        assert "not finite" in failed.reason
        assert "hospital-" in failed.reason
        assert failed.round == 2
        assert len(lead.rounds(wild.id).items) == failed.round


def test_a_paused_site_is_left_out_and_shown_as_such(coordinator: Service, run: Run) -> None:
    with coordinator.client() as lead:
        alone = lead.create(SMALL.model_copy(update={"quorum": 1}))
        lead.act_on_site("hospital-2", "pause")
        try:
            lead.act(alone.id, "step")
            assert ended(lead, alone.id).state == "paused"
        finally:
            lead.act_on_site("hospital-2", "resume")
        parts = {part.site: part for part in lead.rounds(alone.id).items[0].sites}
        assert parts["hospital-1"].took_part
        assert not parts["hospital-2"].took_part
        assert parts["hospital-2"].why_not == "paused"
        lead.act(alone.id, "resume")
        assert ended(lead, alone.id).state == "completed"
        assert all(part.took_part for part in lead.rounds(alone.id).items[0].sites)


def test_a_run_waits_for_its_quorum(coordinator: Service, run: Run) -> None:
    with coordinator.client() as lead:
        both = lead.create(SMALL)
        lead.act_on_site("hospital-1", "pause")
        try:
            lead.act(both.id, "start")
            why = wait_until(lambda: lead.run(both.id).waiting, "the run to wait")
            assert "1 of 2 sites" in why
            assert "hospital-1" in why
        finally:
            lead.act_on_site("hospital-1", "resume")
        assert ended(lead, both.id).state == "completed"


def test_events_are_streamed_until_the_run_ends(coordinator: Service) -> None:
    with coordinator.client() as lead:
        told = lead.create(SMALL)
        lead.act(told.id, "start")
        kinds = [event.kind for event in lead.follow(told.id)]
        assert kinds == ["created", "start", "round", "round", "completed"]
        listed = lead.events(told.id).items
        assert [event.kind for event in listed] == kinds
        later = [event.id for event in lead.follow(told.id, after=listed[2].id)]
    assert later == [event.id for event in listed[3:]]


@pytest.mark.parametrize("seen", ["9" * 20, "9" * 16, "-1", "x"])
def test_a_stream_goes_on_after_any_event_id(coordinator: Service, run: Run, seen: str) -> None:
    headers = {"Authorization": f"Bearer {coordinator.secret()}", "Accept": "text/event-stream"}
    address = f"{coordinator.url}/api/v1/runs/{run.id}/events"
    told = httpx.get(address, headers={**headers, "Last-Event-ID": seen}, timeout=60).text
    assert told.startswith("retry:")
    assert ("event: completed" in told) == (not seen.isdecimal())


def test_a_stream_ends_with_its_token(coordinator: Service) -> None:
    with coordinator.client() as lead:
        draft = lead.create(SMALL)
        made = lead.create_token(NewToken(name="listener", role="viewer"))
        with coordinator.client(made.secret) as listener:
            told = listener.follow(draft.id)
            assert next(told).kind == "created"
            lead.revoke(made.token.id)
            lead.act(draft.id, "stop")  # something happens, which the listener is not told any more
            assert list(told) == []


def test_more_runs_than_places_wait_their_turn(coordinator: Service) -> None:
    with coordinator.client() as lead:
        runs = [lead.create(SMALL.model_copy(update={"rounds": 50})) for _ in range(3)]
        for one in runs:
            lead.act(one.id, "start")
        assert "queued" in str(wait_until(lambda: lead.run(runs[2].id).waiting, "the third run to wait"))
        lead.act(runs[2].id, "pause")
        assert ended(lead, runs[2].id).state == "paused"
        for one in runs:
            lead.act(one.id, "stop")
