"""Charts, runs, metrics → what several pages show: a chart with its downloads, the choice of a run, badges."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import streamlit as st
from streamlit.components.v2 import component

from app.client import Coordinator, CoordinatorRefused
from app.schemas.runs import Headline, Run
from app.schemas.shape import MetricName
from dashboard.api import read
from dashboard.charts import PLOTLY, Chart
from dashboard.words import METRIC_MEANS, METRICS, STATES, bounds, number, verbatim

PLOT_HTML = '<div class="plot" role="figure"></div>'
plot = component(
    "mammofed_plot", html=PLOT_HTML, js=Path(__file__).with_name("plot.js").read_text(), isolate_styles=False
)
SAVE_JS = """
export default function ({ data, parentElement }) {
  for (const format of ["png", "svg"]) {
    parentElement.querySelector("." + format).onclick = () => {
      const plot = document.querySelector(".st-key-" + data.chart + " .js-plotly-plot");
      Plotly.downloadImage(plot, { format, filename: data.name, scale: format === "png" ? 2 : 1 });
    };
  }
}
"""
SAVE_HTML = '<div class="row"><button class="png">PNG</button><button class="svg">SVG</button></div>'
SAVE_CSS = """
.row { display: flex; gap: 0.25rem; padding-left: 0.25rem; }
button { font: inherit; font-size: 0.875rem; color: var(--st-text-color); background: transparent; border: 0;
  border-radius: var(--st-base-radius); padding: 0.25rem; min-height: 2rem; cursor: pointer; }
button:hover { color: var(--st-primary-color); }
button:focus-visible { outline: 2px solid var(--st-primary-color); }
"""
save_picture = component("mammofed_save_picture", html=SAVE_HTML, css=SAVE_CSS, js=SAVE_JS)
NO_RUNS = "There is no run yet."
LOST = "Off now: the coordinator does not answer."


def draw(chart: Chart, key: str) -> None:
    """A chart with its three downloads below."""
    with st.container(key=f"chart-{key}", gap="xxsmall"):
        plot(data=drawn(chart), key=f"{key}-plot")
        with st.container(
            horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="xxsmall"
        ):
            st.download_button(
                "CSV",
                data=chart.csv,
                file_name=f"mammofed-{key}.csv",
                mime="text/csv",
                key=f"{key}-csv",
                type="tertiary",
                icon=":material/download:",
                on_click="ignore",
            )
            save_picture(
                data={"chart": f"chart-{key}", "name": f"mammofed-{key}"}, key=f"{key}-save", width="content"
            )


def drawn(chart: Chart) -> dict[str, str]:
    """What the browser needs to draw a chart; its zoom stays while it shows the same of the same run."""
    shows = f"{chart.figure.layout.yaxis.title.text} of {st.session_state.get('run')}"
    figure = chart.figure.update_layout(uirevision=shows).to_json()
    return {"figure": figure, "words": chart.words, "plotly": PLOTLY}


def table(rows: Sequence[Mapping[str, str]]) -> None:
    """Rows of words as a table that screen readers and the printer understand."""
    st.table(columns(rows), hide_index=True, border="horizontal")


def columns(rows: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Rows → columns."""
    return {name: [row[name] for row in rows] for name in rows[0]}


def badge(run: Run) -> None:
    """A run's state, in words, colour and sign."""
    words, colour, icon = STATES[run.state]
    st.badge("Pausing" if run.pausing else words, color=colour, icon=icon)  # type: ignore[arg-type]


def label(run: Run) -> str:
    """A run by the name that people gave it, and its algorithm."""
    return run.name if run.name == run.settings.algorithm else f"{run.name} · {run.settings.algorithm}"


def choose_run(fits: Callable[[Run], bool] = lambda run: True) -> Run | None:
    """The run that the page is about: that in the address, the one chosen before, or the first that moves."""
    runs = {run.id: run for run in read(Coordinator.runs).items if fits(run)}
    wanted = st.query_params.get("run") or st.session_state.get("run")
    if wanted and wanted not in runs:
        runs |= older(wanted, fits)
    if not runs:
        return None
    if wanted not in runs:
        wanted = max(runs, key=lambda name: (runs[name].state == "running", runs[name].round > 0))
    chosen = st.selectbox(
        "Run",
        list(runs),
        index=list(runs).index(wanted),
        format_func=lambda name: label(runs[name]),
        key="run_choice",
    )
    st.session_state["run"] = st.query_params["run"] = chosen
    return runs[chosen]


def alike(runs: Iterable[Run]) -> list[str]:
    """The newest runs that share their data with another one, by their ids."""
    groups: dict[str | None, list[str]] = {}
    for run in runs:
        groups.setdefault(run.data_key, []).append(run.id)
    return next((names for names in groups.values() if len(names) > 1), [])


def older(name: str, fits: Callable[[Run], bool]) -> dict[str, Run]:
    """A run that is not among the newest, if there is one of that name and it fits."""
    try:
        run = read(Coordinator.run, name)
    except CoordinatorRefused as refusal:
        if refusal.problem.status != 404:
            raise
        st.warning(f"There is no run {name}: another one is shown.", icon=":material/search_off:")
        return {}
    if not fits(run):
        st.caption(f"**{verbatim(label(run))}** has nothing to show here yet: another run is shown.")
        return {}
    return {run.id: run}


def off_in_words(off: Mapping[str, str | None]) -> str:
    """One line: which controls are off, by their labels, grouped by their reason."""
    grouped: dict[str, list[str]] = {}
    for control, why in off.items():
        if why:
            grouped.setdefault(why, []).append(control)
    return (
        "Off now. " + " · ".join(f"{', '.join(names)}: {why}" for why, names in grouped.items()) if grouped else ""
    )


def headline(shown: Headline) -> None:
    """The three numbers that a model is judged by, large, each with its interval."""
    for column, name in zip(st.columns(3), METRICS, strict=True):
        metric = getattr(shown, name)
        column.metric(
            METRICS[name],
            number(metric.value),
            bounds(metric),
            delta_color="off",
            delta_arrow="off",
            help=METRIC_MEANS[name],
            border=True,
        )


def choose_metric(key: str) -> MetricName:
    """Which of the three metrics a chart shows."""
    chosen: MetricName | None = st.segmented_control(
        "Metric", list(METRICS), default="auc_ovo", format_func=METRICS.__getitem__, key=key, required=True
    )
    return chosen or "auc_ovo"
