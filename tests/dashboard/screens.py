"""A coordinator's address → a dashboard process, and browser pages that remember every error."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Download, Error, Locator, Page, expect
from playwright.sync_api import TimeoutError as Late

from dashboard.api import POLL
from tests.app.coordinator.services import STARTED, wait_until

PATIENCE = 30_000  # milliseconds within which a page shows what it should, on a busy machine
GRAVE = ("serious", "critical")


@contextmanager
def running_dashboard(url: str, log: Path, *more: str) -> Iterator[str]:
    """A dashboard for that coordinator, on a free port of loopback; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "dashboard", "--url", url, "--port", str(port), *more],
            stdout=out,
            stderr=out,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(address), "the dashboard", STARTED)
        yield address
    finally:
        process.terminate()
        process.wait(STARTED)


def answers(address: str) -> bool:
    """Whether a dashboard is there."""
    with suppress(httpx.HTTPError):
        return httpx.get(f"{address}/_stcore/health", trust_env=False).is_success
    return False


@dataclass
class Screen:
    """One browser tab, signed in or not, with all that went wrong in it."""

    page: Page
    address: str
    errors: list[str] = field(default_factory=list)

    def listen(self) -> "Screen":
        """Remember errors of the console and of scripts."""
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", self.heard)
        self.page.on("pageerror", lambda error: self.errors.append(f"script: {error}"))
        return self

    def heard(self, message: ConsoleMessage) -> None:
        """Keep what the browser calls an error."""
        if message.type == "error":
            self.errors.append(f"console: {message.text} {message.location}")

    def sign_in(self, token: str) -> "Screen":
        """By the form, as a person does."""
        self.page.goto(self.address)
        self.page.get_by_label("Token", exact=True).fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.see_title("Overview")
        return self

    def open(self, title: str) -> "Screen":
        """By the navigation."""
        self.links().filter(has_text=title).first.click()
        self.see_title(title)
        return self

    def open_run(self, run: str) -> None:
        """The page of a run, by its link in the overview, where older runs are folded up."""
        self.open("Overview")
        row = self.page.locator(f".st-key-run-{run}")
        row.wait_for(state="attached", timeout=PATIENCE)
        if not row.is_visible():
            self.page.get_by_text(re.compile(r"^\d+ more runs?$")).click()
        row.get_by_role("link").click()
        self.see_title("Run")

    def links(self) -> Locator:
        """The pages that are offered."""
        return self.page.get_by_test_id("stSidebarNav").get_by_role("link")

    def see_title(self, title: str) -> None:
        """The page is there and has run to its end."""
        expect(self.page.get_by_role("heading", name=title, exact=True, level=1)).to_be_visible(timeout=PATIENCE)
        self.settle()

    def settle(self) -> None:
        """The script has stopped and every chart is drawn."""
        expect(self.page.get_by_test_id("stApp")).to_have_attribute(
            "data-test-script-state", "notRunning", timeout=PATIENCE
        )
        expect(self.page.get_by_test_id("stSkeleton")).to_have_count(0, timeout=PATIENCE)
        expect(self.page.locator(".plot:not(:has(.main-svg))")).to_have_count(0, timeout=PATIENCE)

    def choose(self, label: str, option: str) -> None:
        """An option of a drop-down list; it closes when the page scrolls, and is then opened again."""
        box = self.page.get_by_label(label, exact=True).first
        wanted = self.page.get_by_role("option", name=option).first

        def opened() -> bool:
            box.scroll_into_view_if_needed()
            box.click()
            with suppress(AssertionError):
                expect(wanted).to_be_visible(timeout=2000)
                return True
            self.page.keyboard.press("Escape")
            return False

        wait_until(opened, f"the option {option}", PATIENCE / 1000)
        wanted.click()
        self.settle()

    def see(self, text: str) -> None:
        """A text is on the page."""
        expect(self.page.get_by_text(text).first).to_be_visible(timeout=PATIENCE)

    def tables(self) -> list[list[str]]:
        """All rows of all tables, without their headers."""
        rows = self.page.get_by_test_id("stTable").locator("tbody tr").all()
        return [
            [cell.replace("\xa0", " ").strip() for cell in row.locator("td").all_inner_texts()] for row in rows
        ]

    def see_rows(self, *names: str) -> None:
        """The tables have these rows, by their first column."""
        wait_until(lambda: [row[0] for row in self.tables()] == list(names), f"the rows {names}", PATIENCE / 1000)

    def stays(self, text: str) -> None:
        """A text is on the page, and still is after the live parts have looked again."""
        self.see(text)
        self.page.wait_for_timeout(1000 * (POLL + 1))
        expect(self.page.get_by_text(text).first).to_be_visible()

    def plotted(self, key: str) -> list[dict[str, Any]]:
        """The traces that a chart shows, once it is drawn."""
        chart = self.page.locator(f".st-key-chart-{key} .js-plotly-plot:visible")
        expect(chart).to_have_count(1, timeout=PATIENCE)
        traces = "plot => plot._fullData?.map(t => ({name: t.name, x: Array.from(t.x), y: Array.from(t.y)}))"

        def drawn() -> list[dict[str, Any]] | None:
            with suppress(Error):  # a chart that is being drawn anew is gone, or without its numbers, for a moment
                return cast("list[dict[str, Any]] | None", chart.evaluate(traces))
            return None

        return wait_until(drawn, f"the chart {key}", PATIENCE / 1000)

    def saved(self, key: str, form: str) -> bytes:
        """What a chart's download button gives."""
        return self.downloaded(
            self.page.locator(f".st-key-chart-{key}").get_by_role("button", name=form, exact=True)
        )

    def downloaded(self, button: Locator) -> bytes:
        """What a button gives; a press while the page is being made anew is lost, and is given again."""

        def pressed() -> Download | None:
            self.settle()
            with suppress(Late):
                with self.page.expect_download(timeout=PATIENCE) as waiting:
                    button.click()
                return waiting.value
            return None

        return wait_until(pressed, "the download", 4 * PATIENCE / 1000).path().read_bytes()

    def accessible(self) -> list[str]:
        """Grave violations that axe-core finds."""
        found = Axe().run(self.page).response["violations"]
        return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found if v["impact"] in GRAVE]

    def healthy(self) -> None:
        """No exception box, no error in the console."""
        expect(self.page.get_by_test_id("stException")).to_have_count(0)
        if self.errors:
            pytest.fail("\n".join(self.errors))


@contextmanager
def screen(browser: Browser, address: str, dark: bool = False) -> Iterator[Screen]:
    """A fresh tab, without anything remembered of others."""
    context = browser.new_context(
        viewport={"width": 1366, "height": 768}, color_scheme="dark" if dark else "light", accept_downloads=True
    )
    try:
        yield Screen(context.new_page(), address).listen()
    finally:
        with suppress(Error):
            context.close()
