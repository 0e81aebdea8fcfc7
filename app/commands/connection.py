"""Flags, environment or the local home → a signed-in connection to the coordinator."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console

from app.client import Coordinator
from app.settings import Settings
from mammofed.errors import BadSetting

DEFAULT_URL = "http://127.0.0.1:8400"
Shape = TypeVar("Shape", bound=BaseModel)
WIDTH = 150  # of tables, where there is no terminal

Url = Annotated[str, typer.Option(envvar="MAMMOFED_URL", help="Address of the coordinator.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="MAMMOFED_TOKEN_FILE",
        help="File with your token; else MAMMOFED_TOKEN, else the admin token of the local home.",
    ),
]


def connect(url: str, token_file: Path | None) -> Coordinator:
    """The coordinator at that address, with the token that is at hand."""
    return Coordinator(url, token_from(token_file))


def token_from(file: Path | None) -> str:
    """The token in the file, in the environment, or of the local home, in this order."""
    given = os.environ.get("MAMMOFED_TOKEN", "").strip()
    if file is None and given:
        return token_in(given, "MAMMOFED_TOKEN")
    path = file or checked(Settings, {}).home / "admin.token"
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise BadSetting(
            f"no token: {path} cannot be read ({error.strerror}); give --token-file or set MAMMOFED_TOKEN"
        ) from error
    return token_in(text.strip(), str(path))


def token_in(text: str, place: str) -> str:
    """The token, if it can be one: it goes into a header."""
    if not text.isascii() or not text.isprintable() or not text:
        raise BadSetting(f"{place} holds no token: one line is needed, as `mammofed token create` prints it")
    return text


def checked(shape: type[Shape], given: Mapping[str, Any]) -> Shape:
    """What is asked for in its shape; what is wrong with it in one line."""
    try:
        return shape.model_validate(given)
    except ValidationError as error:
        wrong = [(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()]
        raise BadSetting("; ".join(f"{where}: {what}" if where else what for where, what in wrong)) from error


def console() -> Console:
    """Where tables go, words as they are: as wide as the terminal, or wide enough for all where there is none."""
    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = WIDTH
    return made
