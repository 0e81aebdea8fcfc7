"""Lines → CSV files: all figures in one long table, and one table a metric as the paper prints them."""

import csv
import io
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from app.study.compare import Line
from fl_core.intervals import HEADLINES
from mammofed.files import write_atomically


def write_tables(out: Path, lines: Sequence[Line]) -> list[Path]:
    """`lines.csv`, `accuracy.csv`, `auc_ovo.csv`, `auc_ovr.csv`, `gap-recovered.csv`."""
    long = [[*line.as_json().values()] for line in lines]
    tables = {"lines": [[item.name for item in fields(Line)], *long]}
    for metric in HEADLINES:
        tables[metric] = wide([line for line in lines if line.metric == metric])
    tables["gap-recovered"] = gaps(lines)
    return [write_csv(out / f"{name}.csv", rows) for name, rows in tables.items()]


def wide(lines: Sequence[Line]) -> list[list[str]]:
    """Rows down, p and E across; a cell is `mean ± half interval (p-value)`."""
    places = sorted({(line.skew, line.local_steps) for line in lines})
    cells = {(line.label, line.skew, line.local_steps): cell(line) for line in lines}
    header = ["row", *(f"p = {skew:g}, E = {steps}" for skew, steps in places)]
    labels = dict.fromkeys(line.label for line in lines)
    return [header, *([label, *(cells.get((label, *place), "") for place in places)] for label in labels)]


def cell(line: Line) -> str:
    """`0.601 ± 0.020 (p < 0.01)`; what became of the runs where there is no value."""
    stopped = f"{line.of - line.runs} of {line.of} did not finish" if line.runs < line.of else ""
    if line.value is None or line.low is None or line.high is None:
        return outcome(line)
    text = f"{line.value:.3f} ± {(line.high - line.low) / 2:.3f}"
    text += f" ({shown_p(line.p_value)})" if line.p_value is not None else ""
    return f"{text} [{stopped}]" if stopped else text


def outcome(line: Line) -> str:
    """Why there is no value, in a few words."""
    if "diverged" in line.note:
        return line.note.split(":")[0].split(" ", 2)[2] if line.of == 1 else f"diverged ({line.of} seeds)"
    return "missing" if line.runs == 0 else "undefined"


def shown_p(p: float) -> str:
    """A p-value as papers print it."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def gaps(lines: Sequence[Line]) -> list[list[str]]:
    """The share of the gap between fedavg and centralized that each row recovers, in %, with its interval."""
    header = ["row", "p", "E", *HEADLINES]
    found = {(line.label, line.skew, line.local_steps, line.metric): gap_cell(line) for line in lines}
    places = dict.fromkeys((line.label, line.skew, line.local_steps) for line in lines)
    rows = [
        [place[0], f"{place[1]:g}", str(place[2]), *(found[(*place, m)] for m in HEADLINES)] for place in places
    ]
    return [header, *(row for row in rows if row[0] not in ("fedavg", "centralized"))]


def gap_cell(line: Line) -> str:
    """`86 % (71 – 99)`."""
    if line.gap is None or line.gap_low is None or line.gap_high is None:
        return outcome(line) if line.value is None else line.gap_note
    return f"{100 * line.gap:.0f} % ({100 * line.gap_low:.0f} – {100 * line.gap_high:.0f})"


def write_csv(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    """One table, as a whole or not at all."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_atomically(path, text.getvalue().encode())
    return path
