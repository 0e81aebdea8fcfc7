"""One run → how its training goes, round by round, with the controls."""

import streamlit as st

from app.client import Coordinator
from app.schemas.runs import Round, Run, RunMetrics, SiteProgress
from app.schemas.shape import Action, MetricName
from dashboard import api
from dashboard.charts import BANDS, Line, loss_curve, metric_curves, timeline
from dashboard.parts import NO_RUNS, badge, choose_metric, choose_run, draw, headline, label, off_in_words, table
from dashboard.words import (
    ACTIONS,
    ENDED,
    ENGINES,
    METRICS,
    POOLING,
    clock,
    duration,
    left,
    loss_in_words,
    number,
    patches,
    progress,
    several,
    verbatim,
    why_off,
)

ROUNDS = 50  # in the timeline
RIVALS = 6
LINES = 50  # of the log


@api.live
def standing(run_id: str) -> None:
    """State, progress, controls and the three numbers."""
    run = api.read(Coordinator.run, run_id)
    with st.container(horizontal=True, vertical_alignment="center"):
        badge(run)
        st.caption(
            f"{run.settings.model}, trains {ENGINES[run.settings.engine]}; created by {verbatim(run.created_by)}, "
            f"{clock(run.created_at)}"
        )
    st.progress(min(1.0, run.round / run.settings.rounds), text=f"**{progress(run)}**, {left(run)}")
    if run.reason:
        (st.error if run.state == "failed" else st.warning)(verbatim(run.reason), icon=":material/error:")
    controls(run)
    st.caption(latest_in_words(run))
    if run.latest is not None:
        headline(run.latest)


def controls(run: Run) -> None:
    """Start, pause, resume, one round, stop; a line says why some are off."""
    off = {action: why_off(run, action, api.me(), api.lost() is not None) for action in ACTIONS}
    with st.container(horizontal=True):
        for action, (text, icon, does) in ACTIONS.items():
            usual = off[action] is None and action in ("start", "resume")
            pressed = st.button(
                text,
                icon=icon,
                type="primary" if usual else "secondary",
                disabled=off[action] is not None,
                help=off[action] or does,
                key=f"control-{action}",
            )
            if pressed and action == "stop":
                api.ask("stop", run.id)
            elif pressed:
                act(run.id, action)
    st.caption(off_in_words({ACTIONS[action][0]: why for action, why in off.items()}))
    if refusal := api.refused():
        st.error(refusal)


def act(run: str, action: Action) -> None:
    """Do it, and draw what became of it."""
    api.change(Coordinator.act, run, action)
    st.rerun()


@st.dialog("Stop the run for good?")
def confirm_stop(run: str, name: str) -> None:
    """Ask before a run ends for good."""
    st.write(
        f"**{verbatim(name)}** ends after the last committed round and cannot be resumed. The best and the last "
        "model are kept. To interrupt it only, press *Pause*."
    )
    with st.container(horizontal=True):
        sure = st.button("Stop for good", type="primary", key="stop_for_good")
        cancelled = st.button("Cancel", key="keep_run")
    if sure:
        act(run, "stop")
    if cancelled:
        st.rerun()


def latest_in_words(run: Run) -> str:
    """What the three numbers are of."""
    if run.latest is None:
        return "No round was evaluated." if run.state in ENDED else "No round has been evaluated yet."
    of = f", {patches(run.latest)}" if run.latest.n is not None else ""
    if not run.latest.pooled:
        return f"Latest evaluated model{of}: {POOLING} {best_in_words(run)[0].upper()}{best_in_words(run)[1:]}."
    return f"Latest evaluated model{of} of all sites, with 95 % intervals; {best_in_words(run)}."


def best_in_words(run: Run) -> str:
    """Which round is the best so far."""
    if run.best_round is None:
        return "none so far"
    return f"the best so far is round {run.best_round}, chosen by {METRICS[run.settings.selection]}"


@api.live
def open_round(run_id: str) -> None:
    """How far each site is in the round that is being trained."""
    run = api.read(Coordinator.run, run_id)
    if not run.progress:
        return
    st.caption(f"Round {run.progress[0].round} at the sites")
    settings = run.settings
    sites = len(settings.sites) or len(settings.data.site) or settings.data.sites
    columns = st.columns(max(2, min(4, sites)))  # as many as sites, whether or not all have reported yet
    for index, site in enumerate(run.progress):
        done = min(1.0, site.steps / max(1, site.local_steps))
        columns[index % len(columns)].progress(done, text=site_in_words(site))


def site_in_words(site: SiteProgress) -> str:
    """Steps done, speed and time left of a site in the open round."""
    parts = [f"**{site.site}**: {site.steps} of {site.local_steps} steps"]
    if site.patches_per_second is not None:
        parts.append(f"{number(site.patches_per_second, 0)} patches/s")
    if site.seconds_left is not None:
        parts.append(f"{duration(site.seconds_left)} left")
    return ", ".join(parts)


@api.live
def curves(run_id: str, metric: MetricName, rivals: tuple[str, ...], per_site: bool) -> None:
    """The metric with its bands, and the training loss."""
    run = api.read(Coordinator.run, run_id)
    metrics = api.curves(run)
    if not metrics.rounds:
        ended = "This run ended before its first round was committed: it has no curves."
        waits = "No round is committed yet; the curves begin with the first one."
        st.info(ended if run.state in ENDED else waits, icon=":material/hourglass_empty:")
        return
    lines = (
        site_lines(metrics, metric)
        if per_site
        else [line_of(run, metrics, metric, True), *rival_lines(rivals, metric)]
    )
    wide, narrow = st.columns([3, 2])
    with wide:
        draw(metric_curves(metric, lines, run.best_round), "metric")
        st.caption(band_in_words(metrics.stride, len(lines), run.latest is None or run.latest.pooled or per_site))
    with narrow:
        draw(loss_curve(metrics, per_site), "loss")
        st.caption(loss_in_words(metrics, run.settings.local_steps))


def band_in_words(stride: int, lines: int, bands: bool) -> str:
    """What the shade around a curve is, and n."""
    whose = " of this run; the others' are left out for clarity" if lines > BANDS else ""
    shade = f"Band: 95 % interval (bootstrap over the test patches){whose}. " if bands else ""
    thinned = f" One round in {stride} is drawn." if stride > 1 else ""
    return (
        f"How well the model does on test patches, which it never trains on: should rise. {shade}"
        f"n: test patches.{thinned}"
    )


def line_of(run: Run, metrics: RunMetrics, metric: MetricName, main: bool = False) -> Line:
    """A run's curve."""
    return Line(label(run), metrics.rounds, getattr(metrics.test, metric), metrics.test.n, main)


def rival_lines(rivals: tuple[str, ...], metric: MetricName) -> list[Line]:
    """The curves of other runs on the same data."""
    runs = [api.read(Coordinator.run, rival) for rival in rivals]
    return [line_of(run, api.curves(run), metric) for run in runs]


def site_lines(metrics: RunMetrics, metric: MetricName) -> list[Line]:
    """One curve a site."""
    return [Line(name, metrics.rounds, getattr(site, metric), site.n) for name, site in metrics.sites.items()]


@api.live
def history(run_id: str) -> None:
    """Who took part in the last rounds, who was left out and why."""
    rounds = api.rounds(api.read(Coordinator.run, run_id), ROUNDS)
    if not rounds:
        return
    st.subheader("Who took part")
    draw(timeline(rounds), "timeline")
    st.caption(
        f"The last {several(len(rounds), 'round')}: colour is the time a site needed; a cross marks a site that "
        "was left out."
    )
    if rows := left_out(rounds):
        table(rows[:10])


def left_out(rounds: tuple[Round, ...]) -> list[dict[str, str]]:
    """Each time that a site was left out, the latest first."""
    return [
        {"Round": str(each.number), "Left out": part.site, "Why": verbatim(part.why_not or "not said")}
        for each in rounds
        for part in each.sites
        if not part.took_part
    ]


@api.live
def happenings(run_id: str) -> None:
    """The run's own log, the latest first."""
    events = api.happened(run_id)[::-1][:LINES]
    if events:
        told = any(event.site for event in events)
        table(
            [
                {
                    "When": clock(event.at),
                    "What": verbatim(event.text),
                    **({"Site": event.site or ""} if told else {}),
                }
                for event in events
            ]
        )
    else:
        st.caption("Nothing yet.")


def choose_rivals(run: Run) -> list[str]:
    """Other runs on the same data whose curves are drawn too."""
    runs = api.read(Coordinator.runs).items
    same = [other for other in runs if other.id != run.id and other.data_key and other.data_key == run.data_key]
    rivals = {other.id: label(other) for other in same if other.round}
    return st.multiselect(
        "Against other runs on the same data",
        list(rivals),
        format_func=rivals.__getitem__,
        max_selections=RIVALS,
        placeholder="choose runs" if rivals else "there is none yet",
        disabled=not rivals,
        key=f"rivals-{run.id}",
    )


st.title("Run")
chosen = choose_run()
if chosen is None:
    st.info(NO_RUNS, icon=":material/science:")
    st.stop()
if api.asked_about("stop") == chosen.id:
    confirm_stop(chosen.id, chosen.name)
standing(chosen.id)
st.subheader("Learning curves")
with st.container(horizontal=True, vertical_alignment="bottom"):
    metric = choose_metric("run-metric")
    split = st.toggle("Each site by itself", key="per_site")
    against = [] if split else choose_rivals(chosen)
curves(chosen.id, metric, tuple(against), split)
open_round(chosen.id)
history(chosen.id)
log = st.expander("What happened", on_change="rerun")
if log.open:
    with log:
        happenings(chosen.id)
