"""`mammofed coordinator`: settings → the service, until it is told to stop."""

from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn

from app.coordinator.logs import log_as_json
from app.coordinator.main import create_app, opened
from app.settings import Settings


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
    serve(Settings(**{name: value for name, value in given.items() if value is not None}))


def serve(settings: Settings) -> None:
    """Run the service in this process."""
    log_as_json(lambda: {"service": "coordinator"})
    with opened(settings) as service:
        config = uvicorn.Config(
            create_app(service),
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        uvicorn.Server(config).run()
