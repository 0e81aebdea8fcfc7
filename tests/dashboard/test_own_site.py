"""The Data page beside a site's agent: its operator sees the window's data and report, and nobody else does."""

import base64
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, expect

from app.commands.inspect import look_at
from app.schemas.shape import Role
from app.site.data import SiteSettings, open_site
from app.site.window import View, opened, view_of
from dashboard.window import Window, WindowShut, window_of
from dashboard.words import count, spaced, style_in_words
from mammofed.errors import BadSetting
from tests.dashboard.conftest import Study
from tests.dashboard.screens import PATIENCE, Screen, running_dashboard, screen
from tests.federation.stores import cut_store

pytestmark = pytest.mark.xdist_group("dashboard")
OWN = "At your site, for you alone"
SHUT = "Your site's window does not answer"


@dataclass
class Relay:
    """A wire to the coordinator on which every byte is written down, both ways."""

    target: tuple[str, int]
    heard: bytearray = field(default_factory=bytearray)
    place: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.place.getsockname()[1]}"

    def serve(self) -> None:
        """Connect each caller to the target, until the place is closed."""
        with suppress(OSError):
            while True:
                caller, _ = self.place.accept()
                callee = socket.create_connection(self.target)
                for one, other in ((caller, callee), (callee, caller)):
                    threading.Thread(target=self.pass_on, args=(one, other), daemon=True).start()

    def pass_on(self, one: socket.socket, other: socket.socket) -> None:
        """All that one says, to the other."""
        with suppress(OSError):
            while said := one.recv(1 << 16):
                self.heard += said
                other.sendall(said)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def relay_to(url: str) -> Iterator[Relay]:
    """A relay, as long as the block lasts."""
    found = httpx.URL(url)
    relay = Relay((found.host, found.port or 80))
    thread = threading.Thread(target=relay.serve, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.place.shutdown(socket.SHUT_RDWR)
        relay.place.close()
        thread.join()


@dataclass(frozen=True)
class Beside:
    """A dashboard at the hospital: its window, and the wire to the coordinator."""

    address: str
    view: View
    home: Path
    port: int
    relay: Relay


@pytest.fixture(scope="module")
def beside(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """A dashboard that was given the window of hospital-1; each test opens the window itself."""
    folder = tmp_path_factory.mktemp("hospital-1")
    settings = SiteSettings("hospital-1", str(cut_store(folder)), "sigmoid:0.4:0.3")
    report, _ = look_at(Path(settings.data), [], 1, pictures=False)
    view = view_of(settings, open_site(settings, 0), report)
    with opened(folder, view) as window:
        port = httpx.URL(window.url).port or 0
    words = ("--site-window", window.url, "--site-token-file", str(window.token))
    with relay_to(study.service.url) as relay, running_dashboard(relay.url, folder / "log", *words) as address:
        yield Beside(address, view, folder, port, relay)


def own_picture(tab: Screen) -> Locator:
    """The gallery of the window."""
    return tab.page.get_by_role("img", name="Patches of hospital-1 by class", exact=True)


def test_the_operator_sees_what_the_window_says_and_the_coordinator_hears_none_of_it(
    browser: Browser, study: Study, beside: Beside
) -> None:
    data, report = beside.view.data, beside.view.preflight
    assert report is not None
    with opened(beside.home, beside.view, beside.port) as window, screen(browser, beside.address) as tab:
        secret = window.token.read_text().strip()
        tab.sign_in(study.tokens["site"])
        tab.open("Data")
        expect(own_picture(tab)).to_be_visible(timeout=PATIENCE)
        shown = own_picture(tab).get_attribute("src") or ""
        assert base64.b64decode(shown.partition(",")[2]) == beside.view.gallery
        rows = tab.tables()
        for name, number in data.train.items():
            assert [spaced(name), count(number), count(data.test[name])] in rows
        styles = {style_in_words(name): number for name, number in data.styles.items()}
        for counts in (data.vendors, styles, *report.counts.values()):
            assert all([spaced(name), count(number)] in rows for name, number in counts.items())
        before, after = tab.plotted("own-histogram")
        assert before["y"] == pytest.approx(data.histogram_before)
        assert after["y"] == pytest.approx(data.histogram)
        tab.see(report.verdict)
        for finding in report.warnings:
            tab.see(finding)
        assert tab.accessible() == []
        tab.healthy()
    heard = bytes(beside.relay.heard)
    assert study.run.id.encode() in heard  # the record is whole and plain
    for private in (
        secret.encode(),
        beside.view.gallery[:64],
        report.verdict.encode(),
        *map(str.encode, data.vendors),
    ):
        assert private not in heard
    assert secret not in (beside.home / "log").read_text()


@pytest.mark.parametrize("role", ["coordinator", "viewer"])
def test_nobody_else_does(browser: Browser, study: Study, beside: Beside, role: Role) -> None:
    with opened(beside.home, beside.view, beside.port), screen(browser, beside.address) as tab:
        tab.sign_in(study.tokens[role])
        tab.open("Data")
        tab.see("stays there")
        sees_nothing(tab, beside.view)
        expect(tab.page.get_by_text(OWN)).to_have_count(0)


def test_nor_does_the_operator_of_another_site(browser: Browser, study: Study, beside: Beside) -> None:
    with opened(beside.home, beside.view, beside.port), screen(browser, beside.address) as tab:
        tab.sign_in(study.service.token("site", "hospital-2"))
        tab.open("Data")
        tab.see("is that of hospital-1; you are the operator of hospital-2")
        sees_nothing(tab, beside.view)


def sees_nothing(tab: Screen, view: View) -> None:
    """Neither picture nor number of the window is on the page."""
    expect(own_picture(tab)).to_have_count(0)
    expect(tab.page.locator(".st-key-chart-own-histogram")).to_have_count(0)
    assert not any(vendor in tab.page.content() for vendor in view.data.vendors)
    tab.healthy()


def test_a_shut_window_is_said_plainly_and_opens_by_itself(browser: Browser, study: Study, beside: Beside) -> None:
    with screen(browser, beside.address) as tab:
        tab.sign_in(study.tokens["site"])
        tab.open("Data")
        tab.stays(SHUT)
        with opened(beside.home, beside.view, beside.port):
            expect(own_picture(tab)).to_be_visible(timeout=PATIENCE)
            expect(tab.page.get_by_text(SHUT)).to_have_count(0)
            tab.healthy()


def test_without_a_window_the_operator_is_told_how_to_get_it(browser: Browser, study: Study) -> None:
    with screen(browser, study.address) as tab:
        tab.sign_in(study.tokens["site"])
        tab.open("Data")
        tab.see(OWN)
        tab.see("--site-window ADDRESS --site-token-file FILE")
        tab.healthy()


GIVEN = {
    "MAMMOFED_SITE_WINDOW": "http://127.0.0.1:8410",
    "MAMMOFED_SITE_TOKEN_FILE": "window.token",
    "MAMMOFED_URL": "https://coordinator.example",
}


@pytest.mark.parametrize(
    ("changed", "host", "why"),
    [
        ({"MAMMOFED_SITE_WINDOW": "http://192.0.2.1:8410"}, "127.0.0.1", "it is at http://127.0.0.1:PORT"),
        ({"MAMMOFED_SITE_WINDOW": "http://127.0.0.1.example:8410"}, "127.0.0.1", "it is at http://127.0.0.1:PORT"),
        ({"MAMMOFED_SITE_TOKEN_FILE": ""}, "127.0.0.1", "needs both"),
        ({"MAMMOFED_SITE_WINDOW": ""}, "127.0.0.1", "needs both"),
        ({"MAMMOFED_URL": ""}, "127.0.0.1", "needs --url"),
        ({}, "0.0.0.0", "listens on 127.0.0.1 only"),
        ({}, None, "listens on 127.0.0.1 only"),
    ],
)
def test_a_dashboard_that_others_could_look_into_gets_no_window(
    changed: Mapping[str, str], host: str | None, why: str
) -> None:
    with pytest.raises(BadSetting, match=re.escape(why)):
        window_of({name: value for name, value in {**GIVEN, **changed}.items() if value}, host)


def test_the_window_is_found_in_the_environment() -> None:
    assert window_of(GIVEN, "127.0.0.1") == Window("http://127.0.0.1:8410", Path("window.token"))
    assert window_of({"MAMMOFED_URL": "http://coordinator.example"}, "0.0.0.0") is None


def test_what_is_no_window_or_has_another_secret_is_said_in_words(
    beside: Beside, study: Study, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    with pytest.raises(WindowShut, match="cannot be read"):
        Window(study.service.url, token).data()
    token.write_text("guessed")
    with pytest.raises(WindowShut, match="no site's window"):
        Window(f"{study.service.url}/readyz?", token).data()
    with (
        opened(beside.home, beside.view, beside.port) as window,
        pytest.raises(WindowShut, match="does not know the secret"),
    ):
        Window(window.url, token).gallery()
