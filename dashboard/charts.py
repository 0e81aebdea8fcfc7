"""What the coordinator says of a training → Plotly figures, each with its numbers and a sentence in words."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs_version

from app.schemas.runs import Drift, Round, RunMetrics, Series, SiteCurves
from app.schemas.shape import MetricName
from dashboard.words import METRICS, in_order, layer_name

# Okabe and Ito's colours, told apart with any colour vision; the blue is lighter, for dark ground.
PALETTE = ("#1f83c4", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8c7aa9", "#999933")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SCALE = "Viridis"  # uniform in lightness, also in print without colour
PLOTLY = f"plotly-{get_plotlyjs_version()}.js"  # where the server has the script that draws
HEIGHT = 340
FEW = 40  # rounds that have room for dots and thick lines
TICKS = 10  # rounds that have room for a number each
BANDS = 3  # more of them hide each other
LABELS = 40  # layers that can be named beside a map
UNITS = {"statistics": "standard deviations", "gradient": "times the common pull"}
FAR = 2.0  # drift from which on the colour is the lightest; the same in every round and run
Column = Sequence[float | int | str | None]


@dataclass(frozen=True)
class Chart:
    """A figure, the numbers in it as columns, and what it shows in words."""

    figure: go.Figure
    columns: Mapping[str, Column]
    words: str

    def csv(self) -> str:
        """The numbers as comma-separated values, one row a point."""
        return csv_of(self.columns)


def csv_of(columns: Mapping[str, Column]) -> str:
    """Columns as comma-separated values."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


@dataclass(frozen=True)
class Line:
    """One curve over rounds."""

    name: str
    rounds: tuple[int, ...]
    series: Series
    n: tuple[int | None, ...]  # patches behind the value of each round
    main: bool = False  # drawn stronger than its rivals

    @property
    def words(self) -> str:
        """The name, and how many patches were behind the last value."""
        last = next((n for n in reversed(self.n) if n is not None), None)
        return self.name if last is None else f"{self.name} (n = {last:,})"


def figure(traces: Sequence[Any], x: str, y: str, height: int = HEIGHT, **layout: Any) -> go.Figure:
    """Traces between labelled axes, with room to breathe."""
    made = go.Figure(traces)
    made.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 36, "b": 8},
        template="none",  # the browser puts the theme in
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        hovermode="closest",
        xaxis={"title": x, "automargin": True},
        yaxis={"title": y, "automargin": True},
    )
    return made.update_layout(**layout)


def over_rounds(made: go.Figure, rounds: Sequence[int]) -> go.Figure:
    """Only whole rounds on the axis, however few there are."""
    few = not rounds or rounds[-1] - rounds[0] <= TICKS
    return made.update_xaxes(dtick=1) if few else made


def colour(index: int) -> str:
    """The colour of the n-th thing."""
    return PALETTE[index % len(PALETTE)]


def shade(index: int) -> str:
    """The same colour, see-through."""
    red, green, blue = (int(colour(index)[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.25)"


def known(rounds: Sequence[int], values: Sequence[float | None]) -> tuple[list[int], list[float]]:
    """The rounds that have a value, and the values."""
    pairs = [(number, value) for number, value in zip(rounds, values, strict=True) if value is not None]
    return [number for number, _ in pairs], [value for _, value in pairs]


def metric_curves(metric: MetricName, lines: Sequence[Line], best: int | None = None) -> Chart:
    """A metric over rounds with 95 % bands, one line a run or a site."""
    made = figure(with_bands(lines), "round", METRICS[metric] + " (0 to 1)", showlegend=True)
    over_rounds(made, sorted(number for line in lines for number in line.rounds))
    if best is not None:
        made.add_vline(
            x=best,
            line_dash="dot",
            line_width=1,
            line_color="#888888",  # seen on light and on dark ground
            annotation_text=f"best: round {best}",
            annotation_position="bottom left",
        )
    return Chart(
        made, long_columns(lines), f"{METRICS[metric]} over rounds of {', '.join(line.name for line in lines)}"
    )


def with_bands(lines: Sequence[Line]) -> list[go.Scatter]:
    """Each curve, with its band below it where bands do not hide each other."""
    few = len(lines) <= BANDS
    drawn: list[go.Scatter] = []
    for index, line in enumerate(lines):
        drawn += ([band(line, index)] if few or line.main else []) + [stroke(line, index)]
    return drawn


def stroke(line: Line, index: int) -> go.Scatter:
    """The line of a curve."""
    rounds, values = known(line.rounds, line.series.value)
    few = len(rounds) <= FEW
    bounds = [
        f" ({low:.3f} to {high:.3f})" if low is not None and high is not None else ""
        for value, low, high in zip(line.series.value, line.series.low, line.series.high, strict=True)
        if value is not None
    ]
    style = {"color": colour(index), "width": 3 if line.main and few else 1.8, "dash": DASHES[index % len(DASHES)]}
    mode = "lines+markers" if few else "lines"
    hover = f"{line.words}<br>round %{{x}}: %{{y:.3f}}%{{text}}<extra></extra>"
    return go.Scatter(
        x=rounds,
        y=values,
        text=bounds,
        name=line.words,
        mode=mode,
        line=style,
        legendgroup=line.name,
        hovertemplate=hover,
    )


def band(line: Line, index: int) -> go.Scatter:
    """The 95 % interval around a curve."""
    rounds, high = known(line.rounds, line.series.high)
    _, low = known(line.rounds, line.series.low)
    return go.Scatter(
        x=rounds + rounds[::-1],
        y=high + low[::-1],
        mode="lines",
        fill="toself",
        fillcolor=shade(index),
        line={"width": 0},
        legendgroup=line.name,
        showlegend=False,
        hoverinfo="skip",
    )


def long_columns(lines: Sequence[Line]) -> dict[str, Column]:
    """All points of all lines, one below the other."""
    return {
        "curve": [line.name for line in lines for _ in line.rounds],
        "round": [number for line in lines for number in line.rounds],
        "value": [value for line in lines for value in line.series.value],
        "low": [value for line in lines for value in line.series.low],
        "high": [value for line in lines for value in line.series.high],
        "n": [n for line in lines for n in line.n],
    }


def loss_curve(metrics: RunMetrics, per_site: bool = False) -> Chart:
    """Training loss over rounds with 95 % bands; the mean comes behind the sites, which so keep their colours."""
    sites = metrics.sites.items() if per_site else ()
    lines = [loss_line(name, metrics.rounds, site) for name, site in sites]
    lines.append(loss_line("mean of the sites", metrics.rounds, metrics, main=True))
    made = figure(with_bands(lines), "round", "training loss (cross-entropy, nats)", showlegend=True)
    over_rounds(made, metrics.rounds)
    return Chart(made, long_columns(lines), "Training loss over rounds with its 95 % interval")


def loss_line(name: str, rounds: tuple[int, ...], of: RunMetrics | SiteCurves, main: bool = False) -> Line:
    """The losses of a run or of a site as a curve."""
    return Line(name, rounds, Series(value=of.loss, low=of.loss_low, high=of.loss_high), of.loss_n, main)


def timeline(rounds: Sequence[Round]) -> Chart:
    """Who took part in which round, for how long, and who was left out and why."""
    ordered = sorted(rounds, key=lambda each: each.number)
    parts = [(each.number, part) for each in ordered for part in each.sites]
    names = in_order(part.site for _, part in parts)
    seconds = {(number, part.site): part.seconds for number, part in parts if part.took_part}
    longest = max((taken for taken in seconds.values() if taken), default=1.0)
    out = [(number, part) for number, part in parts if not part.took_part]
    numbers = [each.number for each in ordered]
    heat = go.Heatmap(
        x=numbers,
        y=names,
        z=[[seconds.get((number, name)) for number in numbers] for name in names],
        colorscale=SCALE,
        zmin=0,
        zmax=longest,  # zmin counts for Plotly only where there is a zmax
        xgap=1,
        ygap=3,
        colorbar={"title": "seconds", "thickness": 12, "outlinewidth": 0, "nticks": 3},
        hovertemplate="%{y}, round %{x}: %{z:.1f} s<extra></extra>",
    )
    crosses = go.Scatter(
        x=[number for number, _ in out],
        y=[part.site for _, part in out],
        text=[part.why_not or "left out" for _, part in out],
        mode="markers",
        marker={"symbol": "x", "size": 10, "color": PALETTE[1]},
        name="left out",
        hovertemplate="%{y}, round %{x}: %{text}<extra></extra>",
    )
    made = figure([heat, crosses], "round", "", height=100 + 34 * max(2, len(names)), margin_t=8)
    made.update_yaxes(type="category", categoryorder="array", categoryarray=names, autorange="reversed")
    over_rounds(made, numbers)
    columns: dict[str, Column] = {
        "round": [number for number, _ in parts],
        "site": [part.site for _, part in parts],
        "took part": [str(part.took_part) for _, part in parts],
        "seconds": [part.seconds for _, part in parts],
        "why not": [part.why_not for _, part in parts],
    }
    return Chart(
        made, columns, f"{len(ordered)} rounds of {len(names)} sites; {len(out)} times a site was left out"
    )


def drift_map(drift: Drift, kind: str) -> Chart:
    """Layers × sites: how far each site is from the server, `statistics` or `gradient`."""
    layers = [layer.layer for layer in drift.layers]
    values: list[dict[str, float | None]] = [getattr(layer, kind) for layer in drift.layers]
    names = in_order(name for row in values for name in row)
    unit = UNITS[kind]
    heat = go.Heatmap(
        x=names,
        y=layers,
        z=[[row.get(name) for name in names] for row in values],
        colorscale=SCALE,
        zmin=0,
        zmax=FAR,
        xgap=2,
        colorbar={
            "title": {"text": unit, "side": "right"},
            "thickness": 12,
            "outlinewidth": 0,
            "tickvals": [0, 0.5, 1, 1.5, FAR],
            "ticktext": ["0", "0.5", "1", "1.5", f"≥ {FAR:g}"],
        },
        hovertemplate="%{y}<br>%{x}: %{z:.3f} " + unit + "<extra></extra>",
    )
    made = figure([heat], "site", "layer, first to last", height=min(760, 160 + 14 * len(layers)), margin_t=8)
    every = -(-len(layers) // LABELS)
    shown = layers[::every]
    made.update_yaxes(autorange="reversed", tickfont={"size": 10}, type="category")
    made.update_yaxes(tickvals=shown, ticktext=[layer_name(layer) for layer in shown])
    columns: dict[str, Column] = {"layer": layers, **{name: [row.get(name) for row in values] for name in names}}
    return Chart(made, columns, f"Drift of {kind} by layer and site in round {drift.round}, in {unit}")


def drift_curve(drift: Drift, kind: str) -> Chart:
    """The mean over layers, round by round, one line a site."""
    means: dict[str, tuple[float | None, ...]] = getattr(drift, f"mean_{kind}")
    traces = []
    for index, (name, values) in enumerate(means.items()):
        rounds, drifts = known(drift.rounds, values)
        style = {"color": colour(index), "width": 2, "dash": DASHES[index % len(DASHES)]}
        traces.append(go.Scatter(x=rounds, y=drifts, name=name, mode="lines", line=style))
    unit = UNITS[kind]
    made = figure(traces, "round", f"mean over layers ({unit})", showlegend=True)
    made.update_yaxes(rangemode="tozero")
    over_rounds(made, drift.rounds)
    return Chart(made, {"round": drift.rounds, **means}, f"Mean drift of {kind} over rounds by site")
