"""Lines and records → figures as PNG and SVG: metric against p and E, by row, along the rounds, gap recovered."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from app.study.collect import Record
from app.study.compare import Line, Place, own_models, places_of
from app.study.palette import Mark, mark_of
from app.study.plan import Row, Study
from fl_core.intervals import HEADLINES, Headline
from mammofed.files import write_atomically

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
    "skew": "p, heterogeneity of the sites",
    "local_steps": "E, local steps a round",
}
Point = tuple[float, float | None, float | None, float | None]  # where, value, low, high
DrawPanel = Callable[[Axes, Headline], None]
DrawRow = Callable[[Axes, int, Mark, Line], bool]  # at a height; False where there is nothing to draw
GAP_ENDS = (-120, 220)  # %, beyond which a bar or its interval is cut; its figure stands beside it
GAP = "gap recovered, % (fedavg 0, centralized 100)"
MOST_BANDS = 6  # rows whose bands can be told apart along the rounds


def draw_figures(out: Path, study: Study, records: Sequence[Record], lines: Sequence[Line]) -> list[Path]:
    """Every figure that the study has the points for."""
    if not any(record["status"] == "finished" for record in records):
        return []
    figures = [*figures_across(study, lines)]
    for place in places_of(study, records):
        own = [line for line in lines if (line.skew, line.local_steps) == (place.skew, place.local_steps)]
        figures += figures_at(study, place, own)
    return [path for figure in figures for path in three_panels(out, study, records, figure)]


@dataclass(frozen=True)
class Picture:
    """What one figure shows."""

    name: str  # of the file
    where: str  # what is the same in all of it
    over: str  # what its intervals are over
    panel: DrawPanel
    rows: int = 0  # of a figure with one line a row


def figures_across(study: Study, lines: Sequence[Line]) -> Iterator[Picture]:
    """Metric against p at each E, and against E at each p, where there are several."""
    over = intervals_of(lines)
    if len(study.skews) > 1:
        for steps in study.local_steps:
            own = [line for line in lines if line.local_steps == steps]
            yield Picture(f"metric-by-p-E{steps}", f"E = {steps}", over, against_panel(study, own, "skew"))
    if len(study.local_steps) > 1:
        for skew in study.skews:
            own = [line for line in lines if line.skew == skew]
            yield Picture(
                f"metric-by-E-p{skew:g}", f"p = {skew:g}", over, against_panel(study, own, "local_steps")
            )


def figures_at(study: Study, place: Place, lines: Sequence[Line]) -> Iterator[Picture]:
    """At one p and E: all rows, their curves, and the gap that they recover."""
    where, name = f"p = {place.skew:g}, E = {place.local_steps}", f"p{place.skew:g}-E{place.local_steps}"
    over = intervals_of(lines)
    yield Picture(
        f"rows-{name}",
        where,
        over,
        rows_panel(study, lines, point_row, "value and 95 % interval"),
        len(lines) // 3,
    )
    seeds = len(study.seeds)
    bands = over if seeds == 1 else f"mean of {seeds} seeds, bands from the lowest to the highest"
    bands = bands if len(study.table) <= MOST_BANDS else "without intervals"
    yield Picture(f"curves-{name}", where, bands, curves_panel(study, place.records))
    gaps = [line for line in lines if line.label not in ("fedavg", "centralized")]
    if any(line.gap is not None for line in gaps):
        over = f"95 % intervals: bootstrap over test patches{' and seeds' if seeds > 1 else ', one seed'}"
        yield Picture(f"gap-recovered-{name}", where, over, rows_panel(study, gaps, gap_row, GAP), len(gaps) // 3)


def intervals_of(lines: Sequence[Line]) -> str:
    """What the intervals of these lines are over."""
    kinds = dict.fromkeys(line.interval for line in lines if line.interval)
    return f"95 % intervals: {', '.join(kinds)}"


def three_panels(out: Path, study: Study, records: Sequence[Record], picture: Picture) -> list[Path]:
    """Accuracy, OvO and OvR side by side, as in the paper, with one legend and two lines on what is shown."""
    with mpl.rc_context(LOOK):
        height = 1.9 + 0.26 * picture.rows if picture.rows else 4.1
        figure = Figure(figsize=(11, height), layout="constrained")
        panels = figure.subplots(1, 3, sharey=bool(picture.rows))
        for axes, metric in zip(panels, HEADLINES, strict=True):
            axes.set_title(TITLES[metric])
            axes.grid(alpha=0.25, linewidth=0.6)
            picture.panel(axes, metric)
        handles, labels = panels[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(handles)), frameon=False)
        figure.suptitle(f"{picture.where} · {described(study, records)}; {picture.over}", fontsize=9)
        return [save(figure, out / f"{picture.name}.{kind}") for kind in ("png", "svg")]


def described(study: Study, records: Sequence[Record]) -> str:
    """Network, data and n, on two lines."""
    known = next(record["patches"] for record in records if record["patches"])
    train, test = (sum(sum(site[part]) for site in known.values()) for part in ("train", "test"))
    size = f", {study.image_size} px" if study.data == "synthetic" else ""
    iterations = study.rounds * max(study.local_steps)
    return (
        f"{study.model}, {study.data}{size}, {study.sites} sites, {iterations:,} iterations\n"
        f"n = {train:,} training and {test:,} test patches"
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
            diverged = [getattr(line, axis) for line in own if "diverged" in line.note]
            nowhere = all(line.value is None for line in own)
            crosses(axes, mark, diverged, 0.03 + 0.025 * number, f"{label} (diverged)" if nowhere else None)
        ticks = sorted({getattr(line, axis) for line in lines})
        if axis == "local_steps":
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(AXES[axis])

    return panel


def draw_band(axes: Axes, label: str, mark: Mark, points: Sequence[Point], band: bool = True) -> None:
    """A line with its interval as a band, broken where there is no value."""
    if all(point[1] is None for point in points):
        return
    x, y, low, high = (np.array([np.nan if v is None else v for v in part]) for part in zip(*points, strict=True))
    marks: dict[str, Any] = {"marker": mark.marker, "markersize": 4, "markevery": -(-len(points) // 10)}
    axes.plot(x, y, color=mark.colour, linestyle=mark.dash, linewidth=1.4, label=label, **marks)
    if band:
        axes.fill_between(x, np.clip(low, 0, 1), np.clip(high, 0, 1), color=mark.colour, alpha=0.13, linewidth=0)


def crosses(axes: Axes, mark: Mark, places: Sequence[float], height: float, label: str | None) -> None:
    """Where runs diverged: crosses near the bottom of the panel, each row at a height of its own."""
    if places:
        transform = axes.get_xaxis_transform()
        heights = [height] * len(places)
        axes.plot(places, heights, "x", color=mark.colour, transform=transform, label=label)


def curves_panel(study: Study, records: Mapping[str, Sequence[Record]]) -> DrawPanel:
    """Metric along the iterations: the mean of the seeds; a cross where a run diverged."""

    def panel(axes: Axes, metric: Headline) -> None:
        for row in study.table:
            runs = [record for record in records[row.name] if any(metric in point for point in record["curve"])]
            if not runs:
                continue
            mark = mark_of(row)
            label = own_models(row) if row.algorithm == "local" else row.name
            draw_band(axes, label, mark, curve_of(runs, metric), len(study.table) <= MOST_BANDS)
            for record in runs:
                if record["status"] == "diverged":
                    last = [point for point in record["curve"] if metric in point][-1]
                    axes.plot(last["iteration"], last[metric]["value"], "x", color=mark.colour, markersize=8)
        axes.set_xlabel("iterations at each site (R × E)")

    return panel


def curve_of(runs: Sequence[Record], metric: Headline) -> list[Point]:
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


def rows_panel(study: Study, lines: Sequence[Line], draw_row: DrawRow, what: str) -> DrawPanel:
    """One line a row, from the top down; in place of a value that is not there stands why."""
    marks = marks_of(study, lines)

    def panel(axes: Axes, metric: Headline) -> None:
        for line in (line for line in lines if line.metric == metric):
            height = list(marks).index(line.label)
            if not draw_row(axes, height, marks[line.label], line):
                say_outcome(axes, line, height)
        axes.set_yticks(range(len(marks)), list(marks))
        axes.set_ylim(len(marks) - 0.4, -0.6)
        axes.set_xlabel(what)

    return panel


def point_row(axes: Axes, height: int, mark: Mark, line: Line) -> bool:
    """A row's metric as a point with its interval: the paper's table as a picture."""
    if line.value is None or line.low is None or line.high is None:
        return False
    axes.hlines(height, line.low, line.high, color=mark.colour, linewidth=2, alpha=0.5)
    axes.plot(line.value, height, marker=mark.marker, color=mark.colour, markersize=6)
    return True


def gap_row(axes: Axes, height: int, mark: Mark, line: Line) -> bool:
    """A bar of the gap between fedavg (0 %) and centralized (100 %) that a row recovers, cut at GAP_ENDS."""
    if line.gap is None or line.gap_low is None or line.gap_high is None:
        return False
    value, low, high = np.clip(100 * np.array([line.gap, line.gap_low, line.gap_high]), *GAP_ENDS)
    axes.barh(height, value, color=mark.colour, alpha=0.85, height=0.65)
    axes.hlines(height, low, high, color="#333333", linewidth=1.2)
    axes.text(1.01, height, f"{100 * line.gap:.0f} %", transform=axes.get_yaxis_transform(), va="center")
    if not axes.lines:
        axes.axvline(0, color="#000000", linewidth=0.8)
        axes.axvline(100, color="#000000", linewidth=0.8, linestyle="--")
    return True


def say_outcome(axes: Axes, line: Line, height: int) -> None:
    """In place of a value: diverged, missing or not defined."""
    word = "diverged" if "diverged" in line.note else line.gap_note or "missing"
    axes.text(
        0.02, height, word, transform=axes.get_yaxis_transform(), va="center", style="italic", color="#555555"
    )
