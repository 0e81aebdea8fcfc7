"""`mammofed coordinator`: settings → the service, until it is told to stop."""

import logging
import os
import socket
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn

from app.commands.connection import checked
from app.coordinator.logs import log_as_json
from app.coordinator.main import create_app, opened
from app.federation.provision import read_federation
from app.settings import Settings
from mammofed.errors import BadSetting

log = logging.getLogger(__name__)


def command(
    home: Annotated[Path | None, typer.Option(help="Folder of the database, the models and the keys.")] = None,
    database_url: Annotated[
        str | None, typer.Option(help="postgresql://... ; SQLite in the home folder by default.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 8400 by default.")] = None,
) -> None:
    """Serve the REST interface and train the runs; each option is also MAMMOFED_OPTION in the environment."""
    given: dict[str, Any] = {"home": home, "database_url": database_url, "host": host, "port": port}
    serve(checked(Settings, {name: value for name, value in given.items() if value is not None}))


def serve(settings: Settings) -> None:
    """Run the service in this process."""
    if settings.federation is not None:
        read_federation(settings.federation.expanduser())  # where there is none, nothing has begun
    os.umask(0o077)  # what it writes is its owner's alone, also in a folder that others may read
    log_as_json(lambda: {"service": "coordinator"})
    with listening(settings.host, settings.port) as place, opened(settings) as service:
        config = uvicorn.Config(
            create_app(service),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        log.info("listening on http://%s:%d", settings.host, place.getsockname()[1])
        uvicorn.Server(config).run(sockets=[place])


def listening(host: str, port: int) -> socket.socket:
    """The address, taken before anything else is done: where it cannot be, nothing has begun."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise BadSetting(f"cannot listen: {error.strerror}; give another --host or --port") from error
