"""`mammofed federation ...` → certificates, the engine's server, and one kit a site."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from app.coordinator.engines.nvflare import Admin
from app.federation.link import EngineDown
from app.federation.processes import run_until_told, server_command
from app.federation.provision import (
    WARN_DAYS,
    Federation,
    add_site,
    create,
    days_left,
    expiries,
    kit_path,
    read_federation,
    remove_site,
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Set up a federation of hospitals: certificates, kits, the server.",
)

Folder = Annotated[Path, typer.Option(help="The federation's folder: keep it, and keep it secret.")]


@app.command()
def init(
    name: Annotated[str, typer.Option(help="What the federation is called.")],
    host: Annotated[str, typer.Option(help="Name or address under which sites reach this machine.")],
    sites: Annotated[str, typer.Option(help="Sites, as hospital-1,hospital-2.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port that sites connect to.")] = 8002,
    folder: Folder = Path("federation"),
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Leave a federation that is there.")] = False,
) -> None:
    """Make the authority, the server's folder, and one kit a site."""
    if if_missing and (folder / "federation.json").exists():
        return
    names = tuple(site.strip() for site in sites.split(",") if site.strip())
    create(folder, Federation(name, host, port, names))
    for site in names:
        typer.echo(f"kit of {site}: {kit_path(folder, site)}")
    typer.echo("A kit holds its site's private key: hand it over by a safe way, and delete it here.")


@app.command("add-site")
def add(site: Annotated[str, typer.Argument(help="Its name.")], folder: Folder = Path("federation")) -> None:
    """Make a kit for one site more; the others' certificates stay as they are."""
    typer.echo(f"kit of {site}: {add_site(folder, site)}")


@app.command("remove-site")
def remove(site: Annotated[str, typer.Argument(help="Its name.")], folder: Folder = Path("federation")) -> None:
    """Shut a site out for good; the others' certificates stay as they are."""
    remove_site(folder, site)
    admin = Admin(folder)
    try:
        admin.shut_out(site)
        typer.echo(f"{site} is shut out")
    except EngineDown:
        typer.echo(f"{site} is shut out from the server's next start on: it does not run now")
    finally:
        admin.close()


@app.command()
def show(folder: Folder = Path("federation")) -> None:
    """List the sites and when each certificate ends."""
    federation = read_federation(folder)
    table = Table(
        "certificate", "ends", "days left", title=f"{federation.name} at {federation.host}:{federation.port}"
    )
    ends = expiries(folder)
    for name, end in ends.items():
        table.add_row(name, f"{end:%Y-%m-%d}", str(days_left(end)))
    Console().print(table)
    for name, end in ends.items():
        if days_left(end) < WARN_DAYS:
            typer.echo(f"warning: the certificate of {name} ends in {days_left(end)} days", err=True)


@app.command()
def serve(folder: Folder = Path("federation")) -> None:
    """Run the engine's server until told to stop; mammofed coordinator does it by itself."""
    read_federation(folder)
    typer.echo(f"serving; log in {folder / 'server.log'}")
    run_until_told(server_command(folder / "server"), folder / "server.log")
