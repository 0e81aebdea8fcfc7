"""Ctrl-C → one line that says how to go on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer


@contextmanager
def stoppable(words: Callable[[], str] = lambda: "Stopped; the same command goes on.") -> Iterator[None]:
    """Say it where a person stops the work; the exit code stays that of Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(words(), err=True)
        raise
