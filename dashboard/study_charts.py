"""A study → a metric against how different the sites are, or against local steps: lines, or dots at one place."""

from collections.abc import Sequence

import plotly.graph_objects as go

from app.schemas.results import Study, StudyLine
from app.schemas.shape import MetricName
from dashboard.charts import DASHES, Chart, Column, colour, figure
from dashboard.result_charts import dot_plot, error_bars
from dashboard.words import METRICS

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "pentagon")
AXES = {
    "skew": "p, how different the sites are (1/N: N sites alike, 1: each its own)",
    "local_steps": "local steps E in a round",
}
SHORT = {"skew": "p", "local_steps": "E"}


def varied(lines: Sequence[StudyLine]) -> str:
    """What the study varies more: `skew` or `local_steps`."""
    steps, skews = ({getattr(line, name) for line in lines} for name in ("local_steps", "skew"))
    return "local_steps" if len(steps) > len(skews) else "skew"


def varies(study: Study) -> bool:
    """Whether the study has several places, not a single p and number of steps."""
    return len({(line.skew, line.local_steps) for line in study.lines}) > 1


def diverged(study: Study) -> bool:
    """Whether some row has come to no result."""
    return any(line.headline.auc_ovo.value is None for line in study.lines)


def study_chart(study: Study, metric: MetricName) -> Chart:
    """A dot a row where the study has a single place; else a line an algorithm, and one for each other setting."""
    against = varied(study.lines)
    lines = sorted(study.lines, key=lambda line: (line.algorithm, line.skew, line.local_steps))
    made = over_places(lines, metric, against) if varies(study) else at_one_place(lines, metric)
    return Chart(
        made, columns_of(lines, metric), f"{METRICS[metric]} against {against} in the study {study.title}"
    )


def at_one_place(lines: Sequence[StudyLine], metric: MetricName) -> go.Figure:
    """One dot a row; one without a value has diverged, and says so."""
    rows = {
        line.algorithm + (" (diverged)" if getattr(line.headline, metric).value is None else ""): line
        for line in lines
    }
    found = {name: getattr(line.headline, metric) for name, line in rows.items()}
    return dot_plot(metric, found, [colour(at) for at in range(len(found))])


def over_places(lines: Sequence[StudyLine], metric: MetricName, against: str) -> go.Figure:
    """One line an algorithm and other setting, its places in order; what diverged is named in the legend."""
    other = "local_steps" if against == "skew" else "skew"
    several = len({getattr(line, other) for line in lines}) > 1
    groups: dict[str, list[StudyLine]] = {}
    for line in lines:
        name = f"{line.algorithm}, {SHORT[other]} = {getattr(line, other):g}" if several else line.algorithm
        groups.setdefault(name, []).append(line)
    places = [getattr(line, against) for line in lines]
    step = 0.008 * (max(places) - min(places))  # side by side, so that no interval hides another
    traces = [
        study_line(index, name, own, metric, against, step * (index - (len(groups) - 1) / 2))
        for index, (name, own) in enumerate(groups.items())
    ]
    return figure(traces, AXES[against], METRICS[metric] + " with 95 % interval", height=440, showlegend=True)


def study_line(
    index: int, name: str, lines: Sequence[StudyLine], metric: MetricName, against: str, shift: float
) -> go.Scatter:
    """One line of a study."""
    values = [getattr(line.headline, metric) for line in lines]
    gone = [
        f"{getattr(line, against):g}" for line, value in zip(lines, values, strict=True) if value.value is None
    ]
    return go.Scatter(
        x=[getattr(line, against) + shift for line in lines],
        y=[value.value for value in values],
        error_y=error_bars(values),
        name=name + (f" (diverged at {SHORT[against]} = {', '.join(gone)})" if gone else ""),
        mode="lines+markers",
        line={"color": colour(index), "dash": DASHES[index % len(DASHES)], "width": 2},
        marker={"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 9},
    )


def columns_of(lines: Sequence[StudyLine], metric: MetricName) -> dict[str, Column]:
    """The numbers of a study, one row a line."""
    values = [getattr(line.headline, metric) for line in lines]
    return {
        "algorithm": [line.algorithm for line in lines],
        "skew": [line.skew for line in lines],
        "local steps": [line.local_steps for line in lines],
        "seeds": [line.seeds for line in lines],
        "n": [line.headline.n for line in lines],
        "value": [value.value for value in values],
        "low": [value.low for value in values],
        "high": [value.high for value in values],
    }
