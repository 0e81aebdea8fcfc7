"""An address to listen on → the dashboard's server: Streamlit's pages, and Plotly's script that draws charts."""

import gzip
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.starlette import App

from dashboard.charts import PLOTLY

SCRIPT = Path(__file__).parent / "streamlit_app.py"
BUNDLE = Path(__file__).parent / "plotly-cartesian.min.js"  # a third of the whole: drawn half a second earlier
YEAR = 365 * 86_400  # seconds


class ChartsEarly:
    """Tells the browser with the page itself that Plotly's script is needed: it comes while the rest starts."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on; a page gets one header more."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers.append("Link", f"<{PLOTLY}>; rel=preload; as=script")
            await send(message)

        await self.app(scope, receive, told)


def plotly_route() -> Route:
    """Plotly's script for charts between two axes, compressed once; its address names its version."""
    headers = {"Content-Encoding": "gzip", "Cache-Control": f"public, max-age={YEAR}, immutable"}
    answer = Response(gzip.compress(BUNDLE.read_bytes()), headers=headers, media_type="text/javascript")

    async def script(_: Request) -> Response:
        return answer

    return Route(f"/{PLOTLY}", script)


def serve(host: str, port: int) -> None:
    """Serve until told to stop."""
    app = App(SCRIPT, routes=[plotly_route()], middleware=[Middleware(ChartsEarly)])
    app.run(config={"server.address": host, "server.port": port})
