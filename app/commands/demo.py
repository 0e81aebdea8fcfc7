"""`mammofed demo`: nothing → two hospitals that train in front of one's eyes, until Ctrl-C."""

import os
import signal
import sys
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table

from app.client import Coordinator
from app.commands.connection import checked, console
from app.commands.follow import ENDED, POLL
from app.commands.shown import HEADLINES, doing, headline_cells, round_cell, state_cell, status_line
from app.coordinator.configuration import check_settings
from app.demo import SETTINGS, Demo, begin_runs, connected, services
from app.schemas.runs import Run, RunSettings
from fl_core.models import MODELS

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130


def command(
    home: Annotated[Path, typer.Option(help="Folder of the demo; what it holds goes on.")] = Path("demo-home"),
    port: Annotated[int, typer.Option(help="Of the coordinator; another if it is taken.")] = 8400,
    dashboard_port: Annotated[int, typer.Option(help="Of the dashboard; another if it is taken.")] = 8501,
    headless: Annotated[
        bool, typer.Option("--headless", help="No dashboard: train, print a table and end.")
    ] = False,
    rounds: Annotated[int, typer.Option(help="R, the rounds of each run.")] = SETTINGS.rounds,
    model: Annotated[
        str, typer.Option(help=f"One of: {', '.join(MODELS)}; densenet-small for a slow machine.")
    ] = SETTINGS.model,
) -> None:
    """Show two hospitals with different image styles train together: bn-scaffold-std against fedavg."""
    asked = {**SETTINGS.model_dump(), "rounds": rounds, "model": model}
    settings = checked(RunSettings, asked)
    check_settings(settings)
    screen = console()
    runs: tuple[Run, ...] = ()
    with told_to_stop(), services(home, port, None if headless else dashboard_port) as demo:
        say_where(screen, demo)
        if demo.dashboard and screen.is_terminal:
            open_in_browser(demo)
        with connected(demo.home, demo.coordinator) as coordinator:
            runs = show(screen, coordinator, begin_runs(coordinator, settings))
            screen.print(summary(runs))
            if not headless:
                screen.print("Both runs have ended; all stays open to look at. Ctrl-C ends it.")
                signal.pause()
    if headless:
        raise typer.Exit(exit_code(runs))
    typer.echo("Stopped; the same command goes on from the last committed round.")


def exit_code(runs: tuple[Run, ...]) -> int:
    """0 when both runs completed."""
    return INTERRUPTED if not runs else int(any(run.state != "completed" for run in runs))


@contextmanager
def told_to_stop() -> Iterator[None]:
    """Leave the block at the first Ctrl-C, hang-up or polite kill; further ones do not disturb the leaving."""

    def leave(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, leave) for each in SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def say_where(screen: Console, demo: Demo) -> None:
    """The addresses and a token to sign in with."""
    if demo.dashboard:
        screen.print(f"dashboard    {link(demo)}", soft_wrap=True)
    screen.print(f"coordinator  {demo.coordinator}/api/v1", soft_wrap=True)
    screen.print(f"sign in with {demo.token}", soft_wrap=True)
    screen.print(f"folder       {demo.home}; Ctrl-C stops, the same command goes on", soft_wrap=True)


def link(demo: Demo) -> str:
    """The dashboard's address, which signs in by itself."""
    return f"{demo.dashboard}/?token={demo.token}"


def open_in_browser(demo: Demo) -> None:
    """Show the dashboard where there is a display; without one a browser would take over the terminal."""
    shown = sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    if shown:
        with suppress(webbrowser.Error):
            webbrowser.open(link(demo))


def show(screen: Console, coordinator: Coordinator, names: tuple[str, ...]) -> tuple[Run, ...]:
    """Show the runs until all have ended: a live table on a terminal; elsewhere a line a round."""
    told: dict[str, str] = {}
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        while True:
            runs = tuple(coordinator.run(name) for name in names)
            live.update(summary(runs), refresh=True)
            if not screen.is_terminal:
                say_changes(screen, runs, told)
            if all(run.state in ENDED for run in runs):
                return runs
            time.sleep(POLL)


def say_changes(screen: Console, runs: tuple[Run, ...], told: dict[str, str]) -> None:
    """A line for each run that stands otherwise than when it was told of last."""
    for run in runs:
        line = status_line(run)
        if told.get(run.id) != line:
            told[run.id] = line
            screen.print(line, soft_wrap=True)


def summary(runs: tuple[Run, ...]) -> Table:
    """Both runs, with intervals."""
    table = Table(Column("algorithm", no_wrap=True), "state", "round", *HEADLINES.values(), "now")
    for run in runs:
        cells = (round_cell(run), *headline_cells(run.latest), doing(run))
        table.add_row(run.settings.algorithm, state_cell(run), *cells)
    return table
