"""Words on the command line → one function each; an error of ours is one line and exit code 2."""

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from mammofed import __version__
from mammofed.errors import MammofedError

COMMANDS = {  # in the order in which `--help` shows them: where each stands, and what it does
    "demo": ("demo:command", "Watch two synthetic hospitals train: coordinator, worker and dashboard."),
    "coordinator": ("coordinator:command", "Serve the REST interface and train the runs."),
    "run": ("run:app", "Create, control, follow and export a coordinator's runs."),
    "token": ("token:app", "Let people in, and out."),
    "audit": ("audit:app", "Look at the record of who did what, and prove that it is whole."),
    "federation": ("federation:app", "Set up a federation of hospitals: certificates and kits."),
    "site": ("site:app", "Take part in a federation, at the hospital."),
    "inspect": ("inspect:inspect", "Report on a folder of mammograms before it is trained on."),
    "patches": ("patches:patches", "Cut labelled patches from mammograms into a store."),
    "simulate": ("simulate:command", "Train a federation on this machine, with any algorithm of the table."),
    "study": ("study:command", "Compare algorithms, degrees of heterogeneity and local steps."),
    "algorithms": (
        "algorithms:command",
        "Print every algorithm, its batch-norm policy and its bytes a round.",
    ),
    "synth": ("synth:app", "Make synthetic mammography from nothing."),
}


class Later(TyperCommand):
    """A command that is imported when it is used: `--help` and light commands do not wait for torch."""

    def __init__(self, name: str) -> None:
        self.where, help = COMMANDS[name]
        super().__init__(name, help=help)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the command itself, which takes over from here."""
        module, _, attribute = self.where.partition(":")
        found = getattr(importlib.import_module(f"app.commands.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            single = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
            single.command()(found)
            found = single
        return typer.main.get_command(found).make_context(info_name, args, parent=parent, **extra)


class Words(TyperGroup):
    """The table above as commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, not imported yet."""
        return Later(cmd_name) if cmd_name in COMMANDS else None


app = typer.Typer(cls=Words, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


@app.callback(invoke_without_command=True)
def about(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    """Train one mammography model together, without moving a single image."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command, and turn our own errors into one line on stderr."""
    try:
        app()
    except MammofedError as error:
        typer.secho(f"mammofed: {error}", fg="red", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
