"""`mammofed study`: a TOML file or a preset → runs, study.json, tables and figures."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from app.commands.shown import HEADLINES
from app.commands.simulate import cores
from app.commands.stopping import stoppable
from app.study.collect import collect, read_scores
from app.study.compare import Line, lines_of
from app.study.figures import draw_figures
from app.study.memory import free_memory, jobs_for
from app.study.plan import PRESETS, Run, Study, read_study, runs_of
from app.study.runner import finished_result, run_all
from app.study.tables import cell, write_tables
from fl_core.models import MODELS
from mammofed.errors import TrainingFailed
from mammofed.files import held, write_atomically

PLAIN_EVERY = 60.0  # seconds between lines while runs train, where there is no terminal


def command(
    out: Annotated[Path, typer.Option(help="Folder for the runs, study.json, tables and figures.")],
    file: Annotated[Path | None, typer.Argument(help="TOML file; docs/studies.md lists its settings.")] = None,
    preset: Annotated[str | None, typer.Option(help=f"One of: {', '.join(PRESETS)}.")] = None,
    algorithms: Annotated[str | None, typer.Option(help="Rows, as fedavg,bn-scaffold-std.")] = None,
    skews: Annotated[str | None, typer.Option(help="Values of p, as 0.5,0.8,1.")] = None,
    local_steps: Annotated[str | None, typer.Option(help="Values of E, as 1,10.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, as 0,1,2.")] = None,
    rounds: Annotated[int | None, typer.Option(help="R at the largest E; iterations are equal at each E.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Rounds between evaluations.")] = None,
    model: Annotated[str | None, typer.Option(help=f"One of: {', '.join(MODELS)}.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Pixels a side of synthetic patches.")] = None,
    patches: Annotated[int | None, typer.Option(help="Synthetic patches a site, and of the test set.")] = None,
    data: Annotated[str | None, typer.Option(help="synthetic or mnist.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data's files.")] = None,
    batch: Annotated[int | None, typer.Option(help="B, the patches of a site in a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="γ, the learning rate.")] = None,
    warmup: Annotated[int | None, typer.Option(help="Iterations over which the rate rises.")] = None,
    against: Annotated[str | None, typer.Option(help="The row of the p-values.")] = None,
    resamples: Annotated[int | None, typer.Option(help="Bootstrap resamples.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of torch in each run.")] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs side by side; by default as many as cores and memory allow.", min=1)
    ] = None,
) -> None:
    """Train rows × p × E × seeds and compare them; the same command goes on after an interruption."""
    flags = {
        "algorithms": listed(algorithms, str),
        "skews": listed(skews, float),
        "local_steps": listed(local_steps, int),
        "seeds": listed(seeds, int),
        "rounds": rounds,
        "evaluate_every": evaluate_every,
        "model": model,
        "image_size": image_size,
        "patches": patches,
        "data": data,
        "data_dir": data_dir,
        "batch": batch,
        "lr": lr,
        "warmup": warmup,
        "against": against,
        "resamples": resamples,
        "threads": threads,
    }
    carry_out(read_study(file, preset, flags), out, jobs)


def listed(text: str | None, kind: type[str] | type[float] | type[int]) -> list[str | float | int] | None:
    """`0.5,0.8,1` as a list; None where the flag was not given."""
    if text is None:
        return None
    try:
        return [kind(word.strip()) for word in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: give values such as 0.5,0.8,1") from error


def carry_out(study: Study, out: Path, jobs: int | None) -> None:
    """Train what is left, then compare all that is there; a run without a result is an error at the end."""
    runs = runs_of(study)
    with stoppable(), held(out, "study"):
        left = tuple(run for run in runs if finished_result(out / run.name, run) is None)
        side_by_side = jobs or jobs_for(left, cores(), free_memory())
        watching = StudyWatching(runs, left, side_by_side)
        with watching.bar:
            died = run_all(runs, out, side_by_side, study.resamples, watching)
        lines, written = compare(study, runs, out)
    watching.console.print(last_table(lines))
    watching.console.print(f"written in {out}: {', '.join(path.name for path in written)}", soft_wrap=True)
    if died:
        names = ", ".join(run.name for run in died)
        raise TrainingFailed(
            f"{len(died)} of {len(runs)} runs have no result ({names}), their processes died, perhaps for want of "
            "memory: run the same command again with --jobs 1"
        )


def compare(study: Study, runs: tuple[Run, ...], out: Path) -> tuple[list[Line], list[Path]]:
    """Runs on disk → study.json, tables and figures."""
    found = collect(study, runs, out)
    lines = lines_of(study, found["runs"], lambda name: read_scores(out / name))
    found["lines"] = [line.as_json() for line in lines]
    path = out / "study.json"
    write_atomically(path, json.dumps(found, indent=1).encode())
    return lines, [path, *write_tables(out, lines), *draw_figures(out, study, found["runs"], lines)]


def last_table(lines: Sequence[Line]) -> Table:
    """All rows at the largest p and E, for the terminal."""
    last = max((line.skew, line.local_steps) for line in lines)
    shown = [line for line in lines if (line.skew, line.local_steps) == last]
    table = Table("row", *HEADLINES.values(), title=f"p = {last[0]:g}, E = {last[1]}")
    for label in dict.fromkeys(line.label for line in shown):
        table.add_row(label, *(cell(line) for line in shown if line.label == label))
    return table


class StudyWatching:
    """What a person sees while a study trains: one bar for all runs and the time left, or plain lines."""

    def __init__(self, runs: tuple[Run, ...], left: tuple[Run, ...], jobs: int) -> None:
        self.console = Console(file=sys.stdout, highlight=False)
        if not self.console.is_terminal:
            self.console.width = 130
        self.began = self.spoke = time.monotonic()
        self.runs, self.over = len(runs), len(runs) - len(left)
        self.total = sum(run.iterations for run in left)
        self.first: dict[str, int] = {}  # iterations that a run had before this process
        self.done: dict[str, int] = {}
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task(self.headline(), total=max(1, self.total), left="")
        self.say(f"{self.runs} runs, {self.over} finished before, {jobs} side by side")

    def started(self, run: Run) -> None:
        """A process begins with the run."""
        if not self.console.is_terminal:
            self.say(f"{run.name}: started")

    def moved(self, run: Run, iterations: int) -> None:
        """A round is committed; the first message of a run tells where it stood."""
        self.first.setdefault(run.name, iterations - run.plan.local_steps)
        self.done[run.name] = iterations
        self.show()
        if not self.console.is_terminal and time.monotonic() - self.spoke > PLAIN_EVERY:
            self.say(f"{self.headline()}, {100 * self.share:.0f} %, {self.left()}")

    def ended(self, run: Run, outcome: str) -> None:
        """The run is over; one that diverged will train no more either."""
        self.over += 1
        first = self.first.get(run.name, 0)
        left_out = run.iterations - self.done.get(run.name, first)
        self.first[run.name] = first + left_out  # what was not trained took no time
        self.done[run.name] = run.iterations
        self.show()
        self.say(f"{run.name}: {outcome}; {self.headline()}, {self.left()}")

    def say(self, line: str) -> None:
        """One line, whatever else is shown."""
        self.spoke = time.monotonic()
        self.console.print(line, soft_wrap=True)

    def show(self) -> None:
        """Move the bar."""
        done = sum(self.done.values())
        self.bar.update(self.task, completed=done, description=self.headline(), left=self.left())

    def headline(self) -> str:
        """How many runs are over."""
        return f"{self.over} of {self.runs} runs"

    @property
    def share(self) -> float:
        """Of the iterations that were left at the start."""
        return sum(self.done.values()) / max(1, self.total)

    def left(self) -> str:
        """The time left, from the iterations that this process has seen."""
        seen = sum(done - self.first[name] for name, done in self.done.items())
        if not seen:
            return "time left: unknown"
        seconds = (time.monotonic() - self.began) * (self.total - sum(self.done.values())) / seen
        hours, minutes = divmod(round(seconds / 60), 60)
        if seconds < 90:
            return f"time left: {seconds:.0f} s"
        return f"time left: {hours} h {minutes:02d} min" if hours else f"time left: {minutes} min"
