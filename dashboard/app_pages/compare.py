"""Several runs, or a study → one table, bars with intervals, and a metric against heterogeneity."""

import streamlit as st

from app.client import Coordinator
from app.schemas.results import ComparedRun, Comparison, Study
from app.schemas.shape import MetricName
from dashboard import api
from dashboard.parts import alike, choose_metric, draw, label, table
from dashboard.result_charts import bars
from dashboard.study_charts import diverged, study_chart, varies
from dashboard.words import METRICS, count, interval, p_value, share, verbatim

MOST = 10


def row(run: ComparedRun, reference: str, metric: MetricName) -> dict[str, str]:
    """A run in words."""
    shown = run.headline
    named = [] if run.name == run.algorithm else [run.algorithm]
    said = [*named, *([] if run.state == "completed" else [run.state])]
    return {
        "Run": " · ".join([f"**{verbatim(run.name)}**", *said]) + (" (reference)" if run.run == reference else ""),
        "n": count(shown.n if shown else None),
        **{name: interval(getattr(shown, key) if shown else None) for key, name in METRICS.items()},
        "p\N{NON-BREAKING HYPHEN}value": p_value(run.p_value.get(metric)),
        "Gap recovered": share(run.gap_recovered.get(metric)),
    }


def compared(comparison: Comparison, metric: MetricName) -> None:
    """The table and the bars."""
    if not comparison.same_data:
        st.warning(
            "These runs have different data: their numbers cannot be compared, and there are no p-values.",
            icon=":material/warning:",
        )
    draw(bars(comparison.runs, metric), "bars")
    table([row(run, comparison.reference, metric) for run in comparison.runs])
    if any(run.headline and not run.headline.pooled for run in comparison.runs):
        st.caption("Where scores stay at the sites, runs cannot be paired patch by patch: there is no p-value.")
    st.caption(
        f"p-value and gap are for {METRICS[metric]}. A small p-value (below 0.05) says that the difference from "
        "the reference is hardly chance; it is paired on the same patches. Gap recovered: how much of the way "
        "from fedavg to pooled data (centralized) a run comes, where both are among the runs."
    )


def runs_side_by_side(metric: MetricName) -> None:
    """Choose runs and see them beside each other."""
    runs = {run.id: run for run in api.read(Coordinator.runs).items if run.best is not None}
    if len(runs) < 2:
        st.info("Two evaluated runs are needed for a comparison.", icon=":material/science:")
        return
    names = st.multiselect(
        "Runs",
        list(runs),
        default=alike(runs.values())[:MOST],
        format_func=lambda name: label(runs[name]),
        max_selections=MOST,
        key="compared",
    )
    if len(names) < 2:
        st.caption("Choose at least two runs.")
        return
    reference = st.selectbox(
        "Reference for p-values", names, format_func=lambda name: label(runs[name]), key="reference"
    )
    compared(api.read(Coordinator.compare, tuple(names), reference), metric)


def study_lines(study: Study, metric: MetricName) -> None:
    """A metric against how different the sites are, or against local steps; at a single place, row by row."""
    draw(study_chart(study, metric), "study")
    seeds = sorted({line.seeds for line in study.lines if line.seeds})  # none where a row diverged
    over = "One seed" if seeds == [1] else f"Mean over {' to '.join(map(str, seeds))} seeds"
    numbers = sorted({line.headline.n for line in study.lines if line.headline.n is not None})
    of = f", n = {' to '.join(f'{n:,}' for n in numbers)} test patches" if numbers else ""
    first = study.lines[0]
    st.caption(
        f"{over}{of}; bars are 95 % intervals. "
        + (
            "Algorithms whose line stays flat bear different sites best."
            if varies(study)
            else f"All at p = {first.skew:g} (how different the sites are, 0 to 1) and {first.local_steps} local "
            "steps in a round."
        )
        + (" Diverged: the training broke down, its numbers grew beyond all bounds." if diverged(study) else "")
    )


def studies_shown(metric: MetricName) -> None:
    """Finished studies, and own runs grouped alike."""
    studies = {study.title: study for study in api.read(Coordinator.studies)}
    if not studies:
        st.caption("No study yet: `mammofed study` makes one.")
        return
    telling = next((at for at, study in enumerate(studies.values()) if varies(study)), 0)
    study_lines(studies[st.selectbox("Study", list(studies), index=telling, key="study")], metric)


st.title("Compare")
metric = choose_metric("compare-metric")
st.subheader("Runs side by side")
runs_side_by_side(metric)
st.subheader("How much does it matter that sites differ?")
studies_shown(metric)
