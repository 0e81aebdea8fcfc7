"""`mammofed token ...`: who may sign in → tokens made, listed and revoked over REST."""

from typing import Annotated

import typer
from rich.table import Table

from app.commands.connection import DEFAULT_URL, TokenFile, Url, checked, connect, console
from app.commands.shown import moment
from app.schemas.access import NewToken, Token
from app.schemas.shape import Role

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Make, list and revoke the tokens that people sign in with."
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is, for the list and the audit trail.")],
    role: Annotated[Role, typer.Option(help="What its owner may do.")] = "viewer",
    site: Annotated[str | None, typer.Option(help="The site of a site operator.")] = None,
    days: Annotated[float, typer.Option(help="Days for which it is valid.")] = 90.0,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """Make a token and print its secret, this once."""
    wanted = checked(NewToken, {"name": name, "role": role, "site": site, "days": days})
    with connect(url, token_file) as coordinator:
        made = coordinator.create_token(wanted)
    typer.echo(made.secret)
    typer.echo(f"token {made.token.id} for {role}, valid until {moment(made.token.expires_at)}", err=True)


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="The token's id, as `mammofed token list` shows it.")],
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
) -> None:
    """End a token at once."""
    with connect(url, token_file) as coordinator:
        ended = coordinator.revoke(token)
    typer.echo(f"token {ended.id} ({ended.name}) is revoked")


@app.command("list")
def list_tokens(url: Url = DEFAULT_URL, token_file: TokenFile = None) -> None:
    """List all tokens, without their secrets."""
    with connect(url, token_file) as coordinator:
        tokens = coordinator.tokens()
    table = Table("token", "name", "role", "site", "valid until", "last used", "revoked")
    for token in tokens:
        dates = (token.expires_at, token.last_used, token.revoked_at)
        table.add_row(token.id, token.name, role_cell(token), token.site or "–", *map(moment, dates))
    console().print(table)


def role_cell(token: Token) -> str:
    """The role, and whether the token is for enrolment only."""
    return f"{token.role}, one-time" if token.one_time else token.role
