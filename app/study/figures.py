"""Lines and records → figures as PNG and SVG: metric against p and E, by row, along the rounds, gap recovered."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from app.study.collect import Record
from app.study.compare import Line, places_of
from app.study.palette import Mark, mark_of
from app.study.plan import Row, Study
from fl_core.checkpoint import write_atomically
from fl_core.intervals import HEADLINES, Headline

TITLES: dict[Headline, str] = {
    "accuracy": "Accuracy",
    "auc_ovo": "Mean one-vs-one AUC",
    "auc_ovr": "Mean one-vs-rest AUC",
}
LOOK: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "mammofed",
}
LOCAL_DASHES = ("--", "-.", ":")  # of the sites' own models
Axis = Literal["skew", "local_steps"]
AXES: dict[Axis, str] = {
    "skew": "p, share of a site's images with its own style or labels",
    "local_steps": "E, local steps a round (equal iterations)",
}
DrawPanel = Callable[[Axes, Headline], None]


def draw_figures(out: Path, study: Study, records: Sequence[Record], lines: Sequence[Line]) -> list[Path]:
    """Every figure that the study has the points for."""
    if not any(record["status"] == "finished" for record in records):
        return []
    draw = partial(three_panels, out, study, records)
    written: list[Path] = []
    if len(study.skews) > 1:
        for steps in study.local_steps:
            chosen = [line for line in lines if line.local_steps == steps]
            written += draw(f"metric-by-p-E{steps}", against_panel(study, chosen, "skew"), f"E = {steps}")
    if len(study.local_steps) > 1:
        for skew in study.skews:
            chosen = [line for line in lines if line.skew == skew]
            written += draw(f"metric-by-E-p{skew:g}", against_panel(study, chosen, "local_steps"), f"p = {skew:g}")
    for place in places_of(study, records):
        chosen = [line for line in lines if (line.skew, line.local_steps) == (place.skew, place.local_steps)]
        where, name = f"p = {place.skew:g}, E = {place.local_steps}", f"p{place.skew:g}-E{place.local_steps}"
        written += draw(f"rows-{name}", rows_panel(study, chosen), where, height=1.6 + 0.24 * len(chosen) / 3)
        written += draw(f"curves-{name}", curves_panel(study, place.records), where)
        gaps = [line for line in chosen if line.label not in ("fedavg", "centralized")]
        if any(line.gap is not None for line in gaps):
            height = 1.6 + 0.24 * len(gaps) / 3
            written += draw(f"gap-recovered-{name}", gap_panel(study, gaps), where, height=height)
    return written


def three_panels(
    out: Path,
    study: Study,
    records: Sequence[Record],
    name: str,
    panel: DrawPanel,
    where: str,
    height: float = 3.6,
) -> list[Path]:
    """Accuracy, OvO and OvR side by side, as in the paper, with one legend and one line on what is shown."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(11, height + 0.5), layout="constrained")
        panels = figure.subplots(1, 3, sharey=name.startswith(("rows", "gap")))
        for axes, metric in zip(panels, HEADLINES, strict=True):
            axes.set_title(TITLES[metric])
            axes.grid(alpha=0.25, linewidth=0.6)
            panel(axes, metric)
        handles, labels = panels[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(handles)), frameon=False)
        figure.suptitle(f"{where} · {described(study, records)}", fontsize=9)
        return [save(figure, out / f"{name}.{kind}") for kind in ("png", "svg")]


def described(study: Study, records: Sequence[Record]) -> str:
    """Data, n, network, and what the intervals are over."""
    known = next(record["patches"] for record in records if record["patches"])
    test = sum(sum(site["test"]) for site in known.values())
    train = sum(sum(site["train"]) for site in known.values())
    size = f", {study.image_size} px" if study.data == "synthetic" else ""
    iterations = study.rounds * max(study.local_steps)
    seeds = len(study.seeds)
    over = "bootstrap over test patches, one seed" if seeds == 1 else f"Student's t over {seeds} seeds"
    return (
        f"{study.model}, {study.data}{size}, {study.sites} sites, {iterations} iterations\n"
        f"n = {train} training and {test} test patches; 95 % intervals: {over}"
    )


def save(figure: Figure, path: Path) -> Path:
    """The same bytes for the same figure."""
    data = io.BytesIO()
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(data, format=path.suffix[1:], dpi=150, metadata=metadata)
    write_atomically(path, data.getvalue())
    return path


def marks_of(study: Study, lines: Sequence[Line]) -> dict[str, Mark]:
    """The mark of each label; a site's own model has its row's colour and a dash of its own."""
    rows = {row.name: row for row in study.table}
    marks: dict[str, Mark] = {}
    for label in dict.fromkeys(line.label for line in lines):
        mark = mark_of(row_of(rows, label))
        word, _, number = label.rpartition(" ")
        if word in rows and number.isdigit():
            mark = Mark(mark.colour, f"${number}$", LOCAL_DASHES[int(number) % len(LOCAL_DASHES)])
        marks[label] = mark
    return marks


def row_of(rows: dict[str, Row], label: str) -> Row:
    """The row that a label belongs to: its own name, or `local 1`, `local (...)`."""
    return (
        rows[label] if label in rows else next(row for name, row in rows.items() if label.startswith(f"{name} "))
    )


def against_panel(study: Study, lines: Sequence[Line], axis: Axis) -> DrawPanel:
    """Metric against p or E with bands; a run that diverged is a cross at the bottom."""
    marks = marks_of(study, lines)

    def panel(axes: Axes, metric: Headline) -> None:
        for number, (label, mark) in enumerate(marks.items()):
            own = [line for line in lines if line.label == label and line.metric == metric]
            own.sort(key=lambda line: getattr(line, axis))
            draw_band(axes, label, mark, [(getattr(line, axis), line.value, line.low, line.high) for line in own])
            crosses(axes, mark, [getattr(line, axis) for line in own if "diverged" in line.note], number)
        ticks = sorted({getattr(line, axis) for line in lines})
        if axis == "local_steps":
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(AXES[axis])

    return panel


def draw_band(
    axes: Axes, label: str, mark: Mark, points: Sequence[tuple[float, float | None, float | None, float | None]]
) -> None:
    """A line with its interval as a band, broken where there is no value."""
    if all(point[1] is None for point in points):
        axes.plot([], [], color=mark.colour, marker="x", linestyle="none", label=f"{label} (diverged)")
        return
    x, y, low, high = (np.array([np.nan if v is None else v for v in part]) for part in zip(*points, strict=True))
    marker = mark.marker if len(points) <= 20 else ""
    axes.plot(
        x, y, color=mark.colour, marker=marker, markersize=4, linestyle=mark.dash, linewidth=1.4, label=label
    )
    axes.fill_between(x, low, high, color=mark.colour, alpha=0.13, linewidth=0)


def crosses(axes: Axes, mark: Mark, places: Sequence[float], number: int) -> None:
    """Where runs diverged: crosses at the bottom of the panel, each row at its own height."""
    height = 0.03 + 0.025 * number
    transform = axes.get_xaxis_transform()
    axes.plot(places, [height] * len(places), "x", color=mark.colour, transform=transform, clip_on=False)


def curves_panel(study: Study, records: Mapping[str, Sequence[Record]]) -> DrawPanel:
    """Metric along the iterations: the mean of the seeds; a cross where a run diverged."""

    def panel(axes: Axes, metric: Headline) -> None:
        for row in study.table:
            runs = [record for record in records[row.name] if any(metric in point for point in record["curve"])]
            if not runs:
                continue
            mark = mark_of(row)
            label = f"{row.name} (own models)" if row.algorithm == "local" else row.name
            draw_band(axes, label, Mark(mark.colour, "", mark.dash), curve_of(runs, metric))
            for record in runs:
                if record["status"] == "diverged":
                    last = [point for point in record["curve"] if metric in point][-1]
                    axes.plot(last["iteration"], last[metric]["value"], "x", color=mark.colour, markersize=8)
        axes.set_xlabel("iterations at each site (R × E)")

    return panel


def curve_of(
    runs: Sequence[Record], metric: Headline
) -> list[tuple[float, float | None, float | None, float | None]]:
    """Mean of the runs that are still training, from the lowest to the highest; of one run its own interval."""
    tested: dict[int, list[dict[str, float | None]]] = {}
    for record in runs:
        for point in record["curve"]:
            if metric in point and point[metric]["value"] is not None:
                tested.setdefault(point["iteration"], []).append(point[metric])
    if len(runs) == 1:
        return [(at, found[0]["value"], found[0]["low"], found[0]["high"]) for at, found in sorted(tested.items())]
    values = {at: [float(interval["value"] or 0) for interval in found] for at, found in sorted(tested.items())}
    return [(at, float(np.mean(found)), min(found), max(found)) for at, found in values.items()]


def rows_panel(study: Study, lines: Sequence[Line]) -> DrawPanel:
    """Each row's metric as a point with its interval: the paper's table as a picture."""
    marks = marks_of(study, lines)

    def panel(axes: Axes, metric: Headline) -> None:
        for line in (line for line in lines if line.metric == metric):
            height, mark = list(marks).index(line.label), marks[line.label]
            if line.value is None or line.low is None or line.high is None:
                say_outcome(axes, line, height)
                continue
            axes.hlines(height, line.low, line.high, color=mark.colour, linewidth=2, alpha=0.5)
            axes.plot(line.value, height, marker=mark.marker, color=mark.colour, markersize=6)
        label_rows(axes, list(marks))
        axes.set_xlabel(f"{TITLES[metric].lower()}, 95 % interval")

    return panel


def gap_panel(study: Study, lines: Sequence[Line]) -> DrawPanel:
    """Bars of the gap between fedavg (0 %) and centralized (100 %) that each row recovers."""
    marks = marks_of(study, lines)

    def panel(axes: Axes, metric: Headline) -> None:
        for line in (line for line in lines if line.metric == metric):
            height, mark = list(marks).index(line.label), marks[line.label]
            if line.gap is None or line.gap_low is None or line.gap_high is None:
                say_outcome(axes, line, height)
                continue
            axes.barh(height, 100 * line.gap, color=mark.colour, alpha=0.85, height=0.65)
            axes.hlines(height, 100 * line.gap_low, 100 * line.gap_high, color="#333333", linewidth=1.2)
            axes.text(1.01, height, f"{100 * line.gap:.0f}", transform=axes.get_yaxis_transform(), va="center")
        axes.axvline(0, color="#000000", linewidth=0.8)
        axes.axvline(100, color="#000000", linewidth=0.8, linestyle="--")
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -120), min(max(high, 110), 220))
        label_rows(axes, list(marks))
        axes.set_xlabel("gap recovered, % (0: fedavg, 100: centralized), 95 % interval")

    return panel


def say_outcome(axes: Axes, line: Line, height: int) -> None:
    """In place of a value: diverged, missing or not defined."""
    word = "diverged" if "diverged" in line.note else "no gap" if line.value is not None else "missing"
    axes.text(
        0.02, height, word, transform=axes.get_yaxis_transform(), va="center", style="italic", color="#555555"
    )


def label_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Rows from the top down."""
    axes.set_yticks(
        range(len(labels)),
        [label.replace(" (each patch by its own site's model)", " (own models)") for label in labels],
    )
    axes.set_ylim(len(labels) - 0.4, -0.6)
