"""Words and curves: the same number reads the same everywhere, and parts of a curve join to the whole."""

from datetime import UTC, datetime, timedelta

import pytest

from app.federation.provision import WARN_DAYS
from app.schemas.access import Certificate, Me, Site
from app.schemas.runs import Curves, Drift, Metric, Run, RunMetrics, RunSettings, Series, SiteCurves, SiteProgress
from dashboard.charts import PALETTE, Line, loss_curve, metric_curves
from dashboard.growth import extended
from dashboard.words import (
    CERTIFICATE_DAYS,
    ago,
    agreement,
    attention,
    duration,
    expiry,
    health,
    in_order,
    interval,
    last_seen,
    layer_name,
    left,
    loss_in_words,
    p_value,
    share,
    size,
    style_in_words,
    verbatim,
    why_off,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEAD = Me(name="lead", role="coordinator", site=None, expires_at=NOW)


def a_run(**changes: object) -> Run:
    """A paused run after its third round, with changes."""
    fields = {
        "id": "1", "name": "a run", "state": "paused", "settings": RunSettings(),
        "actions": ("resume", "step", "stop"), "round": 3,
        "pausing": False, "waiting": None, "reason": None, "created_at": NOW, "started_at": NOW,
        "ended_at": None, "created_by": "lead", "seconds_left": None, "best_round": None, "best": None,
        "latest": None, "data_key": None, "progress": (),
    }  # fmt: skip
    return Run.model_validate({**fields, **changes})


def a_site(**changes: object) -> Site:
    """A healthy site, with changes."""
    fields = {
        "name": "hospital-1", "condition": "active", "online": True, "last_seen": NOW, "certificate_expires": None,
        "enrolled_at": NOW, "runs": ("1",), "simulated": False,
    }  # fmt: skip
    return Site.model_validate({**fields, **changes})


def some_curves(first: int, rounds: int, sites: tuple[str, ...]) -> RunMetrics:
    """Curves of so many rounds from the first on."""
    numbers = tuple(range(first, first + rounds))
    series = Series(
        value=tuple(n / 100 for n in numbers),
        low=tuple((n - 1) / 100 for n in numbers),
        high=tuple((n + 1) / 100 for n in numbers),
    )
    metrics = {"accuracy": series, "auc_ovo": series, "auc_ovr": series}
    floats = tuple(float(n) for n in numbers)
    sizes = tuple(100 * n for n in numbers)
    lows, highs = (tuple(n + reach for n in floats) for reach in (-0.5, 0.25))
    loss = {"loss": floats, "loss_low": lows, "loss_high": highs, "loss_n": sizes}
    own = SiteCurves(**metrics, n=sizes, **loss, took_part=(True,) * rounds)
    return RunMetrics(
        run="1", rounds=numbers, **loss, rate=floats, seconds=floats, test=Curves(**metrics, n=sizes),
        sites=dict.fromkeys(sites, own), stride=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "unknown"), (5.2, "5 s"), (89, "89 s"), (600, "10 min"), (7500, "2 h 5 min"), (200_000, "2 days 7 h")],
)
def test_durations_read_well(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


def test_numbers_read_well() -> None:
    assert interval(Metric(value=0.8731, low=0.866, high=0.88)) == "0.873 (0.866\xa0to\xa00.880)"
    assert interval(Metric(value=None, low=None, high=None)) == "–"
    assert p_value(0.0004) == "<\xa00.001"
    assert p_value(0.0416) == "0.042"
    assert share(-0.07) == "−7 %"
    assert size(2_250_000_000) == "2.25 GB"
    assert ago(NOW - timedelta(minutes=5), NOW) == "5 min ago"
    assert expiry(NOW + timedelta(days=12), NOW) == "2026-03-13, in 12 days"
    assert expiry(NOW + timedelta(days=1), NOW) == "2026-03-02, in 1 day"
    assert expiry(NOW - timedelta(days=1), NOW) == "2026-02-28, expired"


def test_names_read_well() -> None:
    assert in_order(["hospital-10", "hospital-2", "a", "hospital-2"]) == ["a", "hospital-2", "hospital-10"]
    assert layer_name("features.denseblock1.denselayer12.layers.norm2") == "block 1, layer 12, norm 2"
    assert layer_name("features.norm0") == "norm 0"
    assert [style_in_words(name) for name in ("none", "sigmoid:0.7:0.36", "voi:NORMAL", "as acquired")] == [
        "as acquired, no LUT",
        "sigmoid LUT, centre 0.7, width 0.36",
        "the file's own VOI LUT NORMAL",
        "as acquired",
    ]


@pytest.mark.parametrize(
    ("far", "words"), [(0.3, "much like"), (0.7, "noticeably different"), (1.2, "very different")]
)
def test_whether_the_sites_agree_is_said_in_words(far: float, words: str) -> None:
    means = {"a": (9.0, 0.1), "b": (9.0, far), "c": (None, None)}
    drift = Drift(run="1", round=4, rounds=(3, 4), layers=(), mean_statistics=means, mean_gradient={})
    said = agreement(drift)
    assert words in said
    assert "the images of **b**, the furthest site, look" in said
    assert f"{far:.2f} standard deviations away" in said
    assert agreement(drift.model_copy(update={"mean_statistics": {"c": (None, None)}})) == ""


def test_each_control_says_why_it_is_off() -> None:
    assert why_off(a_run(), "resume", LEAD) is None
    assert why_off(a_run(), "pause", LEAD) == "it is paused already"
    assert why_off(a_run(), "start", LEAD) == "it has been started already"
    running = a_run(state="running", actions=("pause", "stop"))
    assert why_off(running, "step", LEAD) == "pause it first"
    assert why_off(running.model_copy(update={"pausing": True}), "pause", LEAD) == (
        "it pauses as soon as the open round is committed"
    )
    assert why_off(a_run(state="failed", actions=()), "stop", LEAD) == "the run has failed"
    assert why_off(a_run(), "resume", LEAD, lost=True) == "the coordinator does not answer"
    viewer, operator = LEAD.model_copy(update={"role": "viewer"}), LEAD.model_copy(update={"role": "site"})
    assert why_off(a_run(), "resume", viewer) == "your token may read only"
    assert "only the study's coordinator" in str(why_off(a_run(), "resume", operator))


def test_what_fails_stands_before_what_warns_and_sites_before_runs() -> None:
    sites = (a_site(certificate_expires=NOW + timedelta(days=3)), a_site(name="b", online=False))
    lines = attention((a_run(state="failed", reason="no data"),), sites, now=NOW)
    assert [severity for severity, _ in lines] == ["error", "error", "warning"]
    assert [("**b** is offline" in text, "no data" in text) for _, text in lines[:2]] == [
        (True, False),
        (False, True),
    ]


def test_a_run_that_failed_last_month_is_no_news() -> None:
    failed = a_run(state="failed", reason="no data")
    recent, old = (failed.model_copy(update={"ended_at": NOW - timedelta(days=days)}) for days in (6, 8))
    assert [len(attention((run,), (), now=NOW)) for run in (recent, old)] == [1, 0]


def test_certificates_are_warned_of_when_the_coordinator_does_and_an_ended_one_is_an_error() -> None:
    assert CERTIFICATE_DAYS == WARN_DAYS
    found = [
        attention((), (a_site(certificate_expires=NOW + timedelta(days=days)),), now=NOW) for days in (61, 59, -1)
    ]
    assert [[severity for severity, _ in lines] for lines in found] == [[], ["warning"], ["error"]]
    server = Certificate(name="server", expires=NOW - timedelta(days=2), days_left=-2, ends_soon=True)
    authority = Certificate(name="authority", expires=NOW + timedelta(days=400), days_left=400, ends_soon=False)
    assert attention((), (), (authority, server), NOW) == [
        ("error", "the certificate of the server ended on 2026-02-27: renew it to connect again")
    ]


def test_a_simulated_site_is_said_to_be_simulated() -> None:
    here = a_site(online=None, last_seen=None, simulated=True)
    assert (last_seen(here), "Simulated" in health(here)) == ("–", True)
    invited = here.model_copy(update={"simulated": False})
    assert (last_seen(invited), "Enrolled" in health(invited)) == ("not yet", True)


def test_a_slow_site_and_a_waiting_run_are_pointed_out() -> None:
    def at(site: str, seconds: float) -> SiteProgress:
        return SiteProgress(
            site=site, round=4, steps=1, local_steps=10, patches_per_second=1.0, seconds_left=seconds, at=NOW
        )

    slow = a_run(state="running", progress=(at("a", 20.0), at("b", 10_800.0)))
    assert [text for _, text in attention((slow,), (), now=NOW)] == [
        "**b** is slow in **a run**: 3 h 0 min left in this round"
    ]
    assert left(a_run(state="running", waiting="1 of 2 sites")) == "waiting: 1 of 2 sites"
    assert [left(a_run(state=state)) for state in ("completed", "stopped")] == ["finished", "stopped"]


def test_words_from_elsewhere_become_no_mark_up() -> None:
    assert verbatim("a ![x](http://b) :red[c]") == r"a \!\[x\]\(http\:\/\/b\) \:red\[c\]"
    assert verbatim("σ² of hospital 2") == "σ² of hospital 2"


def test_nothing_is_said_of_healthy_or_withdrawn_sites() -> None:
    assert attention((a_run(),), (a_site(), a_site(condition="withdrawn", online=False)), now=NOW) == []


def test_curves_in_parts_are_the_whole_curves() -> None:
    whole, start, rest = (some_curves(*part, ("a", "b")) for part in ((1, 7), (1, 4), (5, 3)))
    assert extended(start, rest) == whole


def test_a_site_that_comes_later_has_a_gap_before() -> None:
    joined = extended(some_curves(1, 2, ("a",)), some_curves(3, 1, ("a", "b")))
    assert joined.sites["b"].auc_ovo.value == (None, None, 0.03)
    assert joined.sites["b"].took_part == (False, False, True)


def test_a_chart_shows_and_saves_the_same_numbers() -> None:
    metrics = some_curves(1, 3, ("a",))
    line = Line("run", metrics.rounds, metrics.test.auc_ovo, metrics.test.n, main=True)
    chart = metric_curves("auc_ovo", [line], best=2)
    assert list(chart.figure.data[1].y) == [0.01, 0.02, 0.03]
    assert chart.figure.data[1].name == "run (n = 300)"
    assert chart.csv().splitlines()[1:] == [
        "run,1,0.01,0.0,0.02,100",
        "run,2,0.02,0.01,0.03,200",
        "run,3,0.03,0.02,0.04,300",
    ]


def test_the_training_loss_has_its_band_and_its_n() -> None:
    chart = loss_curve(some_curves(1, 2, ("a",)), per_site=True)
    site_band, site_line, band, line = chart.figure.data
    assert (line.name, site_line.name) == ("mean of the sites (n = 200)", "a (n = 200)")
    assert list(line.y) == [1.0, 2.0]
    assert list(band.y) == list(site_band.y) == [1.25, 2.25, 1.5, 0.5]
    assert list(line.text) == [" (0.500 to 1.250)", " (1.500 to 2.250)"]
    assert chart.csv().splitlines()[:2] == ["curve,round,value,low,high,n", "a,1,1.0,0.5,1.25,100"]
    assert site_line.line.color == PALETTE[0]  # as where each site has its own curve


def test_a_loss_without_interval_has_no_band_and_says_why() -> None:
    known = some_curves(1, 2, ())
    bare = known.model_copy(update={"loss_low": (None, None), "loss_high": (None, None), "loss_n": (None, None)})
    band, line = loss_curve(bare).figure.data
    assert (len(band.x), list(line.y), line.name) == (0, [1.0, 2.0], "mean of the sites")
    assert "over the 10 steps of a round. n: training patches in a round." in loss_in_words(known, 10)
    assert "No band: a round of a single step has no spread." in loss_in_words(bare, 1)
    assert "No band: these rounds were trained before it was kept." in loss_in_words(bare, 10)


def test_rounds_without_evaluation_are_left_out_of_line_and_band() -> None:
    gap = Series(value=(0.1, None, 0.3), low=(0.0, None, 0.2), high=(0.2, None, 0.4))
    band, line = metric_curves("accuracy", [Line("run", (1, 2, 3), gap, (9, None, 9))]).figure.data
    assert (list(line.x), list(line.y)) == ([1, 3], [0.1, 0.3])
    assert list(band.x) == [1, 3, 3, 1]
