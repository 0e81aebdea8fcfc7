"""`mammofed site ...` → the hospital's side: check the data, join, see how it goes, pause, leave."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from app.commands.inspect import look_at, show
from app.federation.processes import client_command, run_until_told
from app.site.data import SYNTHETIC, SiteSettings, introduce, open_site, write_settings
from app.site.home import HOME, Joined, contact_of, forget, is_at_work, joined
from app.site.kit import expiry_of, site_of, unpack_kit
from app.site.window import View, opened, view_of
from mammo.examine import holds_dicom
from mammo.folder import is_image_folder
from mammo.quality import Report
from mammo.store import is_store
from mammofed.errors import BadData, BadSetting
from mammofed.files import held

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Take part in a federation: data stay here, this side only calls out.",
)

Home = Annotated[Path, typer.Option(help="The site's folder: its kit, its settings, its state.")]
HERE = Path("mammofed-site")


@app.command()
def join(
    kit: Annotated[Path, typer.Argument(help="The kit that the coordinator made for this site.")],
    data: Annotated[
        str, typer.Option(help="Patch store or folder by class; synthetic:1/2 for the first of two drawn sites.")
    ],
    style: Annotated[str, typer.Option(help="none, or sigmoid:CENTRE:WIDTH, in which patches are read.")] = "none",
    test: Annotated[str | None, typer.Option(help="Test patches, where the data have none of their own.")] = None,
    share_scores: Annotated[
        bool, typer.Option("--share-scores", help="Let test scores and labels leave, for pooled metrics.")
    ] = False,
    floor: Annotated[int, typer.Option(min=1, help="Counts of patches below it are withheld.")] = 10,
    window_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the operator's window on loopback; 0 for any.")
    ] = 0,
    home: Home = HERE,
) -> None:
    """Check the data, say what the coordinator will learn of them, and take part until told to stop."""
    site = site_of(kit)
    report = preflight(data)
    settings = SiteSettings(site, absolute(data), style, absolute(test) if test else None, share_scores, floor)
    view = told(settings, report)
    unpack_kit(kit, home)  # last, since it holds the private key: a refusal leaves none
    (home / "left").unlink(missing_ok=True)
    write_settings(home, settings)
    with held(home / "agent", "agent of this site"), opened(home, view, window_port) as window:
        typer.echo(
            f"{site} takes part; log in {home / 'agent.log'}. Stop with Ctrl-C, go on with the same command."
        )
        typer.echo(
            "to see its patches and this report, you alone and on this machine: python -m dashboard "
            f"--url COORDINATOR --site-window {window.url} --site-token-file {window.token.absolute()}"
        )
        run_until_told(
            client_command(home / "kit", site),
            home / "agent.log",
            {HOME: str(home.absolute())},
            wanted=lambda: not (home / "left").exists(),
        )


@app.command()
def status(home: Home = HERE) -> None:
    """Say how the site stands: agent, last order, rounds, certificate; exit code 1 where the agent is down."""
    found: Joined = joined(home)
    last = contact_of(home)
    typer.echo(f"site {found.settings.name}: {'paused' if found.paused else 'takes part'}")
    typer.echo(f"agent: {'at work' if is_at_work(home) else 'not running: mammofed site join starts it'}")
    typer.echo(f"last order: {f'{last:%Y-%m-%d %H:%M:%S} UTC' if last else 'none yet'}")
    for run, number in found.rounds.items():
        typer.echo(f"run {run}: round {number} is the last that counts or may count")
    end = expiry_of(home)
    typer.echo(f"certificate: until {end:%Y-%m-%d}, {(end - datetime.now(UTC)).days} days left")
    raise typer.Exit(0 if is_at_work(home) else 1)


@app.command()
def pause(home: Home = HERE) -> None:
    """Take no part in the next rounds; the open one is finished."""
    joined(home)
    (home / "paused").touch()
    typer.echo("paused: mammofed site resume takes part again")


@app.command()
def resume(home: Home = HERE) -> None:
    """Take part again."""
    joined(home)
    (home / "paused").unlink(missing_ok=True)
    typer.echo("takes part")


@app.command()
def leave(home: Home = HERE) -> None:
    """Stop the agent, delete the unpacked kit and all state: the site is out, and the data are as they were."""
    name = joined(home).settings.name
    (home / "left").touch()
    forget(home)
    typer.echo("the kit's own file, from which it joined, still holds the private key: delete that too")
    typer.echo(
        f"{name} has left; tell the coordinator, who removes it with mammofed federation remove-site {name}"
    )


def preflight(data: str) -> Report | None:
    """The report of `mammofed inspect`, none of data that are drawn; data that cannot train stop here."""
    if data.startswith(SYNTHETIC):
        return None
    path = Path(data)
    if not path.exists():
        raise BadSetting(f"no file or folder {path}")
    if not is_store(path) and not is_image_folder(path) and holds_dicom(path):
        raise BadSetting(
            f"{path} holds DICOM files: cut patches with `mammofed patches {path} --out STORE`, "
            "then join with --data STORE"
        )
    report, _ = look_at(path, [], os.cpu_count() or 1, pictures=False)
    show(report)
    if report.exit_code == 2:
        raise BadData(f"{path} cannot train: see the report above, and mammofed inspect {path}")
    return report


def told(settings: SiteSettings, report: Report | None) -> View:
    """Say all that the coordinator will learn of the data; what the operator alone may see of them."""
    data = open_site(settings, 0)
    typer.echo("the coordinator will learn this of the data, and no more:")
    for name, value in introduce(settings, data).items():
        typer.echo(f"  {name}: {value}")
    return view_of(settings, data, report)


def absolute(data: str) -> str:
    """A path that holds wherever the agent works."""
    return data if data.startswith(SYNTHETIC) else str(Path(data).absolute())
