"""Runs as the coordinator tells of them → tables, lines and cells for the terminal."""

from datetime import datetime

from rich.table import Column, Table
from rich.text import Text

from app.schemas.runs import Headline, Metric, Run
from app.schemas.shape import RunState

HEADLINES = {"accuracy": "accuracy", "auc_ovo": "one-vs-one AUC", "auc_ovr": "one-vs-rest AUC"}
STYLES: dict[RunState, str] = {
    "draft": "dim",
    "running": "green",
    "paused": "yellow",
    "completed": "bold green",
    "stopped": "red",
    "failed": "bold red",
}


def shown(value: float | None) -> str:
    """Three digits, or what stands for a metric that is not defined."""
    return "–" if value is None else f"{value:.3f}"


def measured(metric: Metric | None) -> str:
    """A value with its interval, or what stands for one that is not defined."""
    if metric is None or metric.value is None:
        return shown(None)
    if metric.low is None or metric.high is None:
        return shown(metric.value)
    return f"{shown(metric.value)} ({shown(metric.low)} – {shown(metric.high)})"


def headline_cells(headline: Headline | None) -> list[str]:
    """The three metrics, each with its interval."""
    return [measured(getattr(headline, name) if headline else None) for name in HEADLINES]


def state_words(run: Run) -> str:
    """The state, and whether it is about to pause or waits."""
    return f"{run.state}, pausing" if run.pausing else f"{run.state}, waiting" if run.waiting else run.state


def state_cell(run: Run) -> Text:
    """The same in its colour."""
    return Text(state_words(run), STYLES[run.state])


def round_cell(run: Run) -> str:
    """Rounds done of all."""
    return f"{run.round}/{run.settings.rounds}"


def left_cell(run: Run) -> str:
    """The time left, in words."""
    seconds = run.seconds_left
    if seconds is None:
        return shown(None)
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def doing(run: Run) -> str:
    """What a running run is at: why it waits, or its sites' steps in the open round and the time left."""
    if run.state != "running":
        return run.state
    steps = " · ".join(f"{part.site} {part.steps}/{part.local_steps}" for part in run.progress)
    return run.waiting or f"{steps or 'between rounds'}, left: {left_cell(run)}"


def moment(at: datetime | None) -> str:
    """A moment on this machine's clock, to the minute."""
    return shown(None) if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M")


def runs_table(runs: tuple[Run, ...]) -> Table:
    """One row a run."""
    table = Table(Column("run", no_wrap=True), "name", "algorithm", "state", "round", *HEADLINES.values(), "left")
    for run in runs:
        first = (run.id, run.name, run.settings.algorithm, state_cell(run))
        table.add_row(*first, round_cell(run), *headline_cells(run.latest), left_cell(run))
    return table


def run_table(run: Run) -> Table:
    """One run in full: how it stands, what it is worth, what was asked for."""
    table = Table(show_header=False, title=f"{run.id} · {run.name}")
    table.add_row("state", state_cell(run))
    table.add_row("round", f"{round_cell(run)}, time left {left_cell(run)}")
    for why in (run.reason, run.waiting):
        if why:
            table.add_row("why", why)
    for word, at in (("created", run.created_at), ("started", run.started_at), ("ended", run.ended_at)):
        table.add_row(word, f"{moment(at)} by {run.created_by}" if word == "created" else moment(at))
    for which, headline in ((f"best, round {run.best_round}", run.best), ("latest", run.latest)):
        for name, cell in zip(HEADLINES.values(), headline_cells(headline), strict=True):
            table.add_row(f"{name}, {which}" if headline else name, cell)
    for name, value in settings_rows(run):
        table.add_row(name, value)
    table.add_row("allowed now", ", ".join(run.actions) or "nothing")
    return table


def settings_rows(run: Run) -> list[tuple[str, str]]:
    """What was asked for, one row a setting that says something; over nvflare, data are the sites' own affair."""
    asked = run.settings.model_dump(mode="json", exclude={"data", "name"}, exclude_none=True)
    here = run.settings.engine == "local"
    data = run.settings.data.model_dump(mode="json", exclude_none=True) if here else {}
    both = {**asked, **{f"data.{name}": value for name, value in data.items()}}
    return [(name.replace("_", "-"), str(value)) for name, value in both.items() if value not in ([], "")]


def status_line(run: Run) -> str:
    """One line for a log: how the run stands."""
    line = f"{run.id} {run.name}: {state_words(run)}, round {round_cell(run)}"
    if run.latest:
        named = zip(HEADLINES.values(), headline_cells(run.latest), strict=True)
        line += "".join(f"  {name} {cell}" for name, cell in named)
    why = run.reason or run.waiting
    return f"{line}  ({why})" if why else line
