"""A run's id → what happens to it, shown until it has ended: a live bar on a terminal, plain lines elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from app.client import Coordinator, CoordinatorLost
from app.commands.shown import HEADLINES, doing, headline_cells, runs_table, status_line
from app.schemas.runs import Event, Run

POLL = 1.0  # seconds between two looks
PATIENCE = 120.0  # seconds for which the coordinator may be lost
PAGE = 500
RECENT = 5  # events that are shown of the time before
ENDED = ("completed", "stopped", "failed")
COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[doing]}"))


def follow(coordinator: Coordinator, name: str, console: Console) -> Run:
    """Show the run until it has ended, also over a restart of the coordinator; return how it ended."""
    run, events = look(coordinator, name, 0)
    last = say(coordinator, console, events[-RECENT:], 0)
    console.print(status_line(run), soft_wrap=True)
    bar = Progress(*COLUMNS, console=console, disable=not console.is_terminal)
    task = bar.add_task(run.name, total=run.settings.rounds, completed=run.round, doing=doing(run))
    with bar:
        while run.state not in ENDED:
            time.sleep(POLL)
            run, events = look_patiently(coordinator, name, last)
            last = say(coordinator, console, events, last)
            bar.update(task, completed=run.round, doing=doing(run))
    console.print(runs_table((run,)))
    if run.reason:
        console.print(run.reason, soft_wrap=True)
    return run


def look(coordinator: Coordinator, name: str, after: int) -> tuple[Run, list[Event]]:
    """How the run stands, and all that has happened since that event and before now."""
    run = coordinator.run(name)
    page = coordinator.events(name, after, PAGE)
    events = list(page.items)
    while page.next is not None:
        page = coordinator.events(name, events[-1].id, PAGE)
        events += page.items
    return run, events


def look_patiently(coordinator: Coordinator, name: str, after: int) -> tuple[Run, list[Event]]:
    """The same, for a coordinator that may be away for a while."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return look(coordinator, name, after)
        except CoordinatorLost:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL)


def say(coordinator: Coordinator, console: Console, events: list[Event], last: int) -> int:
    """A line for each event; return the last one's id."""
    for event in events:
        last = event.id
        console.print(event_line(coordinator, event), soft_wrap=True)
    return last


def event_line(coordinator: Coordinator, event: Event) -> str:
    """One line of what happened; a round tells its loss and its metrics."""
    line = f"{event.at.astimezone():%H:%M:%S}  {event.text}"
    if event.kind != "round" or event.round is None:
        return line
    for found in coordinator.rounds(event.run or "", after=event.round + 1, limit=1).items:
        line += f"  loss {found.loss:.4f}  {found.seconds:.1f} s"
        if found.test:
            named = zip(HEADLINES.values(), headline_cells(found.test), strict=True)
            line += "".join(f"  {name} {cell}" for name, cell in named)
    return line
