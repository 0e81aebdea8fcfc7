"""The window that a site's agent opens on this machine → what its operator alone may see of the data."""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from app.client import problem_of
from app.schemas.window import Preflight, WindowData
from mammofed.errors import BadSetting, MammofedError

WINDOW, TOKEN_FILE, COORDINATOR = "MAMMOFED_SITE_WINDOW", "MAMMOFED_SITE_TOKEN_FILE", "MAMMOFED_URL"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
TIMEOUT = 5.0  # seconds; it is on this machine
DATA = TypeAdapter(WindowData)
REPORT: TypeAdapter[Preflight | None] = TypeAdapter(Preflight | None)
Shape = TypeVar("Shape")


class WindowShut(MammofedError):
    """The window shows nothing; the message says why and what to do."""


@dataclass(frozen=True)
class Window:
    """Where the window is, and the file with its secret; each start of the agent makes a new one."""

    url: str
    token_file: Path

    def data(self) -> WindowData:
        """Counts and grey levels."""
        return self.shaped(DATA, "/data")

    def gallery(self) -> bytes:
        """A PNG of patches by class."""
        return self.get("/gallery")

    def preflight(self) -> Preflight | None:
        """The report that was made when the site joined; None for data that are drawn."""
        return self.shaped(REPORT, "/preflight")

    def shaped(self, shape: TypeAdapter[Shape], path: str) -> Shape:
        """An answer in its shape."""
        try:
            return shape.validate_json(self.get(path))
        except ValidationError as error:
            raise WindowShut(f"what answers at {self.url} is no site's window") from error

    def get(self, path: str) -> bytes:
        """One answer; anything but a good one becomes an exception with words for the page."""
        headers = {"Authorization": f"Bearer {self.secret()}"}
        try:
            answer = httpx.get(self.url + path, headers=headers, timeout=TIMEOUT, trust_env=False)
        except httpx.HTTPError as error:
            raise WindowShut(f"nothing answers at {self.url}; mammofed site join opens the window") from error
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            raise WindowShut(f"the window at {self.url} does not know the secret in {self.token_file}")
        if not answer.is_success:
            raise WindowShut(problem_of(answer).detail)
        return answer.content

    def secret(self) -> str:
        """What the file holds now."""
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            said = f"{self.token_file} cannot be read ({error.strerror})"
            raise WindowShut(f"{said}; mammofed site join makes it, for the user who runs it") from error


def window_of(environment: Mapping[str, str], host: str | None) -> Window | None:
    """The window that a dashboard on `host` was given, or None; refused where others could look in."""
    url, token_file = environment.get(WINDOW), environment.get(TOKEN_FILE)
    if not url and not token_file:
        return None
    if not url or not token_file:
        raise BadSetting(
            "a site's window needs both --site-window and --site-token-file, as site join prints them"
        )
    if urlsplit(url).scheme != "http" or urlsplit(url).hostname not in LOOPBACK:
        raise BadSetting(f"site window {url!r}: it is at http://127.0.0.1:PORT, as mammofed site join prints it")
    if host not in LOOPBACK:
        raise BadSetting(f"host {host!r}: a dashboard with a site's window listens on 127.0.0.1 only")
    if COORDINATOR not in environment:  # else anyone here could name a coordinator that calls them the operator
        raise BadSetting("a dashboard with a site's window needs --url, the study's own coordinator")
    return Window(url.rstrip("/"), Path(token_file))
