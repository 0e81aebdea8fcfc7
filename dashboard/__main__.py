"""`python -m dashboard`: an address to listen on → the dashboard, until it is told to stop."""

import argparse
import os

from dashboard.api import DEFAULT_URL
from dashboard.server import serve
from dashboard.window import COORDINATOR, TOKEN_FILE, WINDOW, window_of
from mammofed.errors import BadSetting


def options() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m dashboard", description="Serve the dashboard.")
    parser.add_argument("--url", help=f"address of the coordinator; {COORDINATOR}, or {DEFAULT_URL}")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8501, help="port to listen on")
    parser.add_argument(
        "--site-window", help=f"address of the own site's window, as site join prints it; {WINDOW}"
    )
    parser.add_argument("--site-token-file", help=f"file with the window's secret; {TOKEN_FILE}")
    return parser


def main() -> None:
    """Serve the dashboard."""
    parser = options()
    given = parser.parse_args()
    told = {COORDINATOR: given.url, WINDOW: given.site_window, TOKEN_FILE: given.site_token_file}
    os.environ.update({name: value for name, value in told.items() if value})
    try:
        window_of(os.environ, given.host)
    except BadSetting as error:
        parser.error(str(error))
    serve(given.host, given.port)


if __name__ == "__main__":
    main()
