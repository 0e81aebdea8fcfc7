"""A site's patches and its preflight report → a window on loopback, for whoever can read the site's folder.

Nothing of it passes through the coordinator: it listens on this machine alone, and its secret is a file that only
the operator can read, made anew each time the site joins.
"""

import hmac
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import numpy as np
import uvicorn
from fastapi import Depends, FastAPI, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.coordinator import problems
from app.coordinator.problems import Refused
from app.glance import before_style, by_style, by_vendor, gallery, histogram
from app.schemas.window import Preflight, WindowData
from app.secured import Secured
from app.site.data import SYNTHETIC, SiteSettings, parse_synthetic
from fl_core.data import PatchSource, SiteData
from mammo.quality import Report
from mammofed.errors import BadSetting
from mammofed.files import write_atomically

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")  # under which a caller on this machine knows it
TOKEN = "window.token"
bearer = HTTPBearer(auto_error=False)


@dataclass(frozen=True)
class View:
    """All that the window shows, as it was when the site joined."""

    data: WindowData
    gallery: bytes  # PNG
    preflight: Preflight | None  # drawn data have none


@dataclass(frozen=True)
class Window:
    """Where an open window is, and the file with its secret."""

    url: str
    token: Path


def view_of(settings: SiteSettings, site: SiteData, report: Report | None) -> View:
    """What there is to see of a site's data."""
    drawn = parse_synthetic(settings.data)[1] if settings.data.startswith(SYNTHETIC) else None
    data = WindowData(
        site=settings.name,
        style="as drawn" if drawn else settings.style,
        train=by_class(site.train),
        test=by_class(site.test),
        vendors=by_vendor(site.train),
        styles=by_style(site.train),
        histogram=histogram(site.train),
        histogram_before=before_style(site, drawn),
    )
    return View(data, gallery(site.train), preflight_of(report) if report else None)


def by_class(patches: PatchSource) -> dict[str, int]:
    """Patches of each class, none of the counts withheld."""
    numbers = np.bincount(patches.labels, minlength=len(patches.classes)).tolist()
    return dict(zip(patches.classes, numbers, strict=True))


def preflight_of(report: Report) -> Preflight:
    """The report as the window tells it."""
    told = {"exit_code": report.exit_code, "verdict": report.verdict, "made_at": datetime.now(UTC)}
    return Preflight.model_validate({**asdict(report), **told})


def create_app(view: View, secret: str) -> FastAPI:
    """The service: three things to see, for those who know the secret."""

    def operator(
        request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]
    ) -> None:
        if request.url.hostname not in NAMES:  # a page of elsewhere whose name was made to point here
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, f"this window is at {HOST} and has no other name")
        if given is None or not hmac.compare_digest(given.credentials.encode(), secret.encode()):
            why = (
                f"this window is for the site's operator: send the secret in the file {TOKEN} of the site's folder"
            )
            raise Refused(HTTPStatus.UNAUTHORIZED, why, WWW_Authenticate='Bearer realm="mammofed site"')

    app = FastAPI(
        title="mammofed site window",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(operator)],
    )
    problems.install(app)
    app.add_middleware(Secured)

    @app.get("/data")
    def data() -> WindowData:
        return view.data

    @app.get("/gallery")
    def patches() -> Response:
        return Response(view.gallery, media_type="image/png")

    @app.get("/preflight")
    def preflight() -> Preflight | None:
        return view.preflight

    return app


@contextmanager
def opened(home: Path, view: View, port: int = 0) -> Iterator[Window]:
    """Show the view on a port of loopback (0: any that is free) until the block ends, and the secret with it."""
    token, secret = home / TOKEN, secrets.token_urlsafe(32)
    with listening(port) as place:
        write_atomically(token, f"{secret}\n".encode(), mode=0o600)  # also over that of an agent that was killed
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(view, secret),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, name="window", daemon=True)
        thread.start()
        try:
            yield Window(f"http://{HOST}:{place.getsockname()[1]}", token)
        finally:
            server.should_exit = True
            thread.join()
            token.unlink(missing_ok=True)


def listening(port: int) -> socket.socket:
    """A socket of loopback on which callers may already wait."""
    place = socket.socket()
    try:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((HOST, port))
        place.listen()
    except OSError as error:
        place.close()
        raise BadSetting(
            f"port {port} of {HOST} cannot be used ({error.strerror}): name another --window-port, or 0 for any"
        ) from error
    return place
