"""`mammofed audit ...`: the chain of who did what → whether it holds, and its entries."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.commands.connection import DEFAULT_URL, TokenFile, Url, checked, connect, console
from app.commands.shown import moment
from app.coordinator import audit
from app.coordinator.db import open_database
from app.schemas.access import AuditCheck
from app.settings import Settings
from mammofed.errors import BadSetting

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Read and verify the audit trail.",
)
DETAIL = 60  # characters of an entry's detail that a table shows


@app.command()
def verify(
    home: Annotated[
        Path | None, typer.Option(help="Verify this home folder's database itself; no coordinator is needed.")
    ] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Walk the chain: exit code 0 when it holds, 1 when it is broken, with the entry where it breaks."""
    if home is not None:
        check = verify_home(home)
    else:
        with connect(url, token_file) as coordinator:
            check = coordinator.verify_audit()
    if not check.intact:
        typer.secho(f"broken at entry {check.broken_at}: {check.why}", fg="red")
        raise typer.Exit(1)
    typer.echo(f"intact: {check.entries} entries, each sealed to the one before it")


def verify_home(home: Path) -> AuditCheck:
    """The check without a coordinator: nothing is made where something is missing."""
    settings = checked(Settings, {"home": home})
    needed = ["audit.key", *(["mammofed.db"] if settings.database_url.startswith("sqlite") else [])]
    for name in needed:
        if not (settings.home / name).exists():
            raise BadSetting(f"{settings.home} has no {name}: name the coordinator's home folder")
    engine = open_database(settings.database_url)
    try:
        with Session(engine) as session:
            return audit.verify(session, audit.audit_key(settings.home))
    except DBAPIError as error:
        raise BadSetting(f"the database of {settings.home} cannot be read: {error.orig}") from error
    finally:
        engine.dispose()


@app.command("list")
def list_entries(
    actor: Annotated[str | None, typer.Option(help="Only what this one did.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this action, as run.start.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only what was done to this run, site or token.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Entries to show, the newest first.")] = 50,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """List who did what, the newest first."""
    with connect(url, token_file) as coordinator:
        page = coordinator.audit(limit=limit, actor=actor, action=action, subject=subject)
    table = Table("entry", "at", "actor", "action", "subject", "detail")
    for entry in page.items:
        detail = json.dumps(entry.detail)
        shortened = detail if len(detail) <= DETAIL else f"{detail[:DETAIL]}…"
        table.add_row(str(entry.id), moment(entry.at), entry.actor, entry.action, entry.subject, shortened)
    console().print(table)
    typer.echo(f"{len(page.items)} of {page.total} entries")
