"""The dashboard's server: the script that draws is its own, comes early, and fits the figures."""

import gzip

import httpx
import pytest
from playwright.sync_api import Browser
from plotly.offline import get_plotlyjs_version

from dashboard.charts import PLOTLY
from dashboard.server import BUNDLE
from tests.dashboard.conftest import Study
from tests.dashboard.screens import screen

pytestmark = pytest.mark.xdist_group("dashboard")


def test_the_script_that_draws_is_of_the_version_that_makes_the_figures() -> None:
    assert f"v{get_plotlyjs_version()}\n" in BUNDLE.read_text()[:200]


def test_a_page_names_the_script_that_draws_and_the_server_has_it(study: Study) -> None:
    with httpx.Client(base_url=study.address, trust_env=False) as client:
        assert client.get("/run").headers["link"] == f"<{PLOTLY}>; rel=preload; as=script"
        given = client.get(f"/{PLOTLY}")
    assert given.content == BUNDLE.read_bytes()
    assert given.headers["content-encoding"] == "gzip"
    assert int(given.headers["content-length"]) == len(gzip.compress(BUNDLE.read_bytes()))


def test_no_page_loads_anything_from_elsewhere(browser: Browser, study: Study) -> None:
    asked: list[str] = []
    with screen(browser, study.address) as tab:
        tab.page.on("request", lambda request: asked.append(request.url))
        tab.sign_in(study.tokens["coordinator"])
        for title in ("Run", "Results", "Compare", "Drift", "Data", "New run", "Audit"):
            tab.open(title)
    here = (study.address, study.address.replace("http", "ws", 1), "data:", "blob:")
    assert [url for url in asked if not url.startswith(here)] == []
    assert f"{study.address}/{PLOTLY}" in asked
