"""`make pictures` (python -m tests.dashboard.pictures): a small federation, trained → a picture of every page."""

import argparse
import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from app.client import Coordinator
from app.commands.inspect import look_at
from app.schemas.runs import DataSettings, Run, RunSettings
from app.site.data import SiteSettings, open_site
from app.site.window import opened, view_of
from tests.app.coordinator.services import Service, running_coordinator, trained, wait_until
from tests.dashboard.browser import FLAGS, SKIPPED, installed
from tests.dashboard.screens import Screen, running_dashboard, screen
from tests.federation.stores import cut_store

PAGES = ("Overview", "Run", "Results", "Compare", "Drift", "Data", "New run", "Audit")
DARK = ("Run",)
WIDTH, HEIGHT = 1280, 1000
GROWTH = 1000  # milliseconds within which a page that still grows has grown
ROWS = {"centralized": "all data pooled", "fedavg": "plain averaging", "scaffold": "scaffold"}
SETTINGS = RunSettings(  # long enough to learn something that is worth a look
    model="densenet-small",
    rounds=60,
    local_steps=10,
    batch=32,
    rate=0.1,
    schedule="multi-step:320:0.1",
    resamples=1000,
    data=DataSettings(image_size=48, patches=2000),
)


def federation(lead: Coordinator) -> Run:
    """Three finished runs and one that is being trained, on the same synthetic data."""
    for site in ("hospital-1", "hospital-2"):
        lead.enrol(site)
    for algorithm, name in ROWS.items():
        trained(lead, SETTINGS.model_copy(update={"algorithm": algorithm, "name": name}))
    run = lead.create(SETTINGS.model_copy(update={"name": "two hospitals"}))
    lead.act(run.id, "start")
    wait_until(lambda: lead.run(run.id).round >= 38, "enough rounds for a picture")
    return run


def take(tab: Screen, title: str, path: Path) -> None:
    """One page, opened."""
    tab.open(title)
    save(tab, path)


def save(tab: Screen, path: Path) -> None:
    """The page as it stands, without transparency."""
    tab.page.wait_for_load_state("networkidle")
    tab.page.mouse.move(WIDTH - 5, HEIGHT - 5)
    fit_height(tab)
    taken = Image.open(io.BytesIO(tab.page.screenshot(animations="disabled")))
    taken.convert("RGB").save(path, optimize=True)
    tab.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    print(path)


def fit_height(tab: Screen) -> None:
    """Make the window as high as the page, which scrolls within it and would be cut, until it grows no more."""
    before, high = 0, HEIGHT
    while high > before:
        tab.page.set_viewport_size({"width": WIDTH, "height": high})
        tab.settle()
        tab.page.wait_for_timeout(GROWTH)
        before, high = high, tab.page.get_by_test_id("stMain").evaluate("part => part.scrollHeight")


def take_all(browser: Browser, address: str, token: str, out: Path) -> None:
    """Some pages in dark first, as long as the run trains, then all in light."""
    out.mkdir(parents=True, exist_ok=True)
    for dark, pages in ((True, DARK), (False, PAGES)):
        with screen(browser, address, dark) as tab:
            tab.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            tab.sign_in(token)
            for title in pages:
                name = f"dashboard-{title.lower().replace(' ', '-')}{'-dark' if dark else ''}.png"
                take(tab, title, out / name)


def take_hospital(browser: Browser, service: Service, folder: Path, out: Path) -> None:
    """What the operator of a site alone sees, beside the site's agent."""
    settings = SiteSettings("hospital-1", str(cut_store(folder, 24)), "sigmoid:0.6:0.4")
    report, _ = look_at(Path(settings.data), [], 1, pictures=False)
    view = view_of(settings, open_site(settings, 0), report)
    with opened(folder, view) as window:
        words = ("--site-window", window.url, "--site-token-file", str(window.token))
        with (
            running_dashboard(service.url, folder / "log", *words) as address,
            screen(browser, address) as tab,
        ):
            tab.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            tab.sign_in(service.token("site", "hospital-1")).open("Data")
            tab.page.get_by_role("heading", name="At your site, for you alone").wait_for()
            save(tab, out / "dashboard-data-operator.png")


def main() -> None:
    """Take the pictures of a dashboard that is there, or of one made for them."""
    parser = argparse.ArgumentParser(prog="python -m tests.dashboard.pictures")
    parser.add_argument("--dashboard", help="address of a dashboard; without it, a federation is made and trained")
    parser.add_argument("--token", help="a coordinator's token, for --dashboard")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    given = parser.parse_args()
    path = installed()
    if path is None:
        raise SystemExit(SKIPPED)
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=list(FLAGS)) as browser,
    ):
        if given.dashboard:
            take_all(browser, given.dashboard, given.token, given.out)
            return
        with (
            tempfile.TemporaryDirectory() as folder,
            running_coordinator(Path(folder) / "home") as service,
            running_dashboard(service.url, Path(folder) / "log") as address,
            service.client() as lead,
        ):
            federation(lead)
            take_all(browser, address, service.secret(), given.out)
            take_hospital(browser, service, Path(folder) / "hospital-1", given.out)


if __name__ == "__main__":
    main()
