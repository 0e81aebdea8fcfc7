"""Words on the command line → one function each; an error of ours is one line and exit code 2."""

import sys

import typer

from app.commands import algorithms, simulate, study, synth
from app.commands.inspect import inspect
from app.commands.patches import patches
from mammofed import __version__
from mammofed.errors import MammofedError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


@app.callback(invoke_without_command=True)
def about(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    """Train one mammography model together, without moving a single image."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


app.command("inspect")(inspect)
app.command("patches")(patches)
app.command("simulate")(simulate.command)
app.command("study")(study.command)
app.command("algorithms")(algorithms.command)
app.add_typer(synth.app, name="synth")


def main() -> None:
    """Run the command, and turn our own errors into one line on stderr."""
    try:
        app()
    except MammofedError as error:
        typer.secho(f"mammofed: {error}", fg="red", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
