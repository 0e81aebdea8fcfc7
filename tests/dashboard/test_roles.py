"""Each role on each of its pages: nothing breaks, all is accessible, nothing forbidden works."""

import pytest
from playwright.sync_api import Browser, Locator, expect

from app.schemas.shape import Role
from tests.app.coordinator.services import SMALL, ended, wait_until
from tests.dashboard.conftest import Study
from tests.dashboard.screens import PATIENCE, Screen, screen

pytestmark = pytest.mark.xdist_group("dashboard")
ALL = ["Overview", "Run", "Results", "Compare", "Drift", "Data"]
CHARTS = {"Run": "metric", "Results": "roc", "Drift": "drift-statistics", "Data": "counts", "Compare": "bars"}
TABLETS = ({"width": 1024, "height": 768}, {"width": 820, "height": 1180})
PAGES: dict[Role, list[str]] = {"coordinator": [*ALL, "New run", "Audit"], "site": ALL, "viewer": ALL}


@pytest.mark.parametrize(
    ("role", "dark"), [("coordinator", False), ("coordinator", True), ("site", True), ("viewer", False)]
)
def test_every_page_is_whole_and_accessible(browser: Browser, study: Study, role: Role, dark: bool) -> None:
    with screen(browser, study.address, dark) as tab:
        tab.page.goto(study.address)
        tab.page.get_by_role("button", name="Sign in").wait_for()
        assert tab.accessible() == []
        tab.sign_in(study.tokens[role])
        shown = [name.split("\n")[-1] for name in tab.links().all_inner_texts()]
        assert shown == PAGES[role]
        tab.open_run(study.run.id)
        for title in PAGES[role]:
            tab.open(title)
            if title in CHARTS:
                tab.plotted(CHARTS[title])
            assert tab.accessible() == [], title
            assert unsaved(tab) == {}, title
            tab.healthy()


def unsaved(tab: Screen) -> dict[str, int]:
    """Formats in which some chart of the page cannot be saved, and how many charts."""
    charts = tab.page.locator(".stMain [class*='st-key-chart-']")
    missing = {
        form: charts.count() - charts.get_by_role("button", name=form, exact=True).count()
        for form in ("CSV", "PNG", "SVG")
    }
    return {form: number for form, number in missing.items() if number}


def test_what_can_be_opened_is_accessible_too(browser: Browser, study: Study) -> None:
    with study.service.client() as client:
        run = client.create(SMALL.model_copy(update={"name": "opened run"}))
        client.act(run.id, "step")
        assert ended(client, run.id).round == 1
    with screen(browser, study.address) as tab:
        tab.sign_in(study.tokens["coordinator"])
        tab.open_run(run.id)
        tab.page.get_by_text("Each site by itself").click()
        tab.page.get_by_text("What happened", exact=True).click()
        tab.see("round 1 of 2 committed")
        assert tab.accessible() == []
        press(tab, "Stop")
        tab.see("cannot be resumed")
        assert tab.accessible() == []
        press(tab, "Cancel")
        tab.open("Results")
        tab.page.get_by_text("Decide by a threshold").click()
        tab.page.get_by_text("Each pair of classes").click()
        tab.page.get_by_text("Model card", exact=True).click()
        tab.see("Intended use and limits")
        assert tab.accessible() == []
        tab.open("New run")
        tab.page.get_by_text("More settings", exact=True).click()
        expect(tab.page.get_by_label("Momentum", exact=True)).to_be_visible()
        assert tab.accessible() == []
        tab.healthy()


@pytest.mark.parametrize(
    ("role", "why"),
    [("viewer", "your token may read only"), ("site", "only the study's coordinator controls runs")],
)
def test_who_may_not_control_runs_is_told_so(browser: Browser, study: Study, role: Role, why: str) -> None:
    with screen(browser, study.address) as tab:
        tab.sign_in(study.tokens[role])
        tab.open_run(study.run.id)
        for name in ("Start", "Pause", "Resume", "One round", "Stop"):
            expect(tab.page.get_by_role("button", name=name, exact=True)).to_be_disabled()
        tab.see(why)
        tab.healthy()


def test_an_operator_sees_the_own_site_alone(browser: Browser, study: Study) -> None:
    with screen(browser, study.address) as tab:
        tab.sign_in(study.tokens["site"])
        tab.see_rows("hospital-1")
        titles = tab.page.get_by_role("heading").all_inner_texts()
        assert [title.split(" (")[0] for title in titles] == ["Overview", "Your site", "Runs"]
        tab.open_run(study.run.id)
        tab.open("Data")
        tab.see_rows("hospital-1", "hospital-1")
        tab.healthy()


def test_an_operator_pauses_resumes_and_withdraws_the_own_site(browser: Browser, study: Study) -> None:
    def condition() -> str:
        with study.service.client() as client:
            return next(site.condition for site in client.sites() if site.name == "hospital-3")

    with study.service.client() as client:
        client.enrol("hospital-3")
    with screen(browser, study.address) as tab:
        tab.sign_in(study.service.token("site", "hospital-3"))
        press(tab, "Pause site")
        wait_until(lambda: condition() == "paused", "the pause")
        tab.see("Off now. Pause site: the site is paused already")
        press(tab, "Resume site")
        wait_until(lambda: condition() == "active", "the return")
        tab.see("Resume site: the site is not paused")
        press(tab, "Withdraw site")
        tab.stays("This cannot be undone")
        press(tab, "Cancel")
        assert condition() == "active"
        press(tab, "Withdraw site")
        press(tab, "Withdraw for good")
        wait_until(lambda: condition() == "withdrawn", "the withdrawal")
        tab.healthy()


def press(tab: Screen, name: str) -> None:
    """A button, as soon as it can be pressed."""
    tab.page.get_by_role("button", name=name, exact=True).click()


def test_a_withdrawn_site_stays_listed_with_its_controls_off(lead: Screen, study: Study) -> None:
    with study.service.client() as client:
        client.enrol("hospital-4")
        client.act_on_site("hospital-4", "withdraw")
    row = lead.page.locator("tr", has_text="hospital-4")
    expect(row).to_contain_text("Withdrawn", timeout=PATIENCE)
    lead.choose("Site", "hospital-4")
    for name in ("Pause site", "Resume site", "Withdraw site"):
        expect(lead.page.get_by_role("button", name=name, exact=True)).to_be_disabled()
    lead.see("the site has withdrawn")


def test_a_withdrawn_site_is_left_out_of_its_run_and_the_page_says_why(lead: Screen, study: Study) -> None:
    data = SMALL.data.model_copy(update={"sites": 6})
    wanted = SMALL.model_copy(update={"name": "run with a gap", "rounds": 1000, "quorum": 1, "data": data})
    with study.service.client() as client:
        client.enrol("hospital-6")
        run = client.create(wanted)
        client.act(run.id, "step")
        assert ended(client, run.id).round == 1
        client.act_on_site("hospital-6", "withdraw")
        client.act(run.id, "step")
        assert ended(client, run.id).round == 2
        lead.open_run(run.id)
        crosses = lead.plotted("timeline")[1]
        drawn = zip(crosses["x"], crosses["y"], strict=True)
        assert [round for round, site in drawn if site == "hospital-6"] == [2]
        assert [row for row in lead.tables() if row[1] == "hospital-6"] == [["2", "hospital-6", "withdrawn"]]
        client.act(run.id, "stop")


@pytest.mark.parametrize("size", TABLETS, ids=lambda size: f"{size['width']}x{size['height']}")
def test_a_tablet_shows_whole_pages(browser: Browser, study: Study, size: dict[str, int]) -> None:
    with screen(browser, study.address) as tab:
        tab.page.set_viewport_size({"width": size["width"], "height": size["height"]})
        tab.sign_in(study.tokens["coordinator"])
        tab.open_run(study.run.id)
        for title in PAGES["coordinator"]:
            tab.open(title)
            wide = "part => part.scrollWidth - part.clientWidth"
            assert tab.page.get_by_test_id("stMain").evaluate(wide) == 0, title
            assert tab.page.locator("html").evaluate(wide) == 0, title
            cut = "tables => tables.map(one => one.scrollWidth - one.clientWidth)"
            assert not any(tab.page.get_by_test_id("stTable").evaluate_all(cut)), title
            names = "parts => parts.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
            assert tab.page.get_by_test_id("stPageLink").locator("*").evaluate_all(names) == [], title
        tab.healthy()


def test_a_run_is_paused_by_keyboard_alone(browser: Browser, study: Study) -> None:
    with study.service.client() as client, screen(browser, study.address) as tab:
        run = client.create(SMALL.model_copy(update={"name": "typed run", "rounds": 10_000}))
        client.act(run.id, "start")
        tab.page.goto(study.address)
        tab.page.get_by_role("button", name="Sign in").wait_for()
        go_to(tab, tab.page.get_by_label("Token", exact=True))
        tab.page.keyboard.type(study.tokens["coordinator"])
        tab.page.keyboard.press("Enter")
        tab.see_title("Overview")
        go_to(tab, tab.page.locator(f".st-key-run-{run.id}").get_by_role("link"))
        tab.page.keyboard.press("Enter")
        tab.see_title("Run")
        go_to(tab, tab.page.get_by_role("button", name="Pause", exact=True))
        tab.page.keyboard.press("Enter")
        assert ended(client, run.id).state == "paused"
        client.act(run.id, "stop")
        tab.healthy()


def go_to(tab: Screen, wanted: Locator, most: int = 100) -> None:
    """Press Tab until the wanted part has the focus."""
    wanted.wait_for()
    for _ in range(most):
        tab.page.keyboard.press("Tab")
        if wanted.evaluate("part => part === document.activeElement"):
            return
    pytest.fail(f"{wanted} is not reached by {most} presses of Tab")


def test_an_invited_site_gets_its_own_token(lead: Screen, browser: Browser, study: Study) -> None:
    lead.page.get_by_label("Name of the site", exact=True).fill("hospital-5")
    press(lead, "Enrol")
    once = lead.page.get_by_test_id("stCode").inner_text().strip()
    with screen(browser, study.address) as tab:
        tab.page.goto(study.address)
        tab.page.get_by_text("I have a one-time token").click()
        tab.page.get_by_label("One-time token").fill(once)
        press(tab, "Get my own token")
        lasting = tab.page.get_by_test_id("stCode").inner_text().strip()
        tab.sign_in(lasting)
        tab.see("Site operator of hospital-5")
        tab.healthy()


def test_a_revoked_token_signs_out_in_words(browser: Browser, study: Study) -> None:
    secret = study.service.token("viewer")
    with screen(browser, study.address) as tab:
        tab.sign_in(secret)
        with study.service.client() as client:
            client.revoke(secret.split("_")[1])
        tab.see("Your token is no longer accepted")
        expect(tab.links()).to_have_count(0)
        tab.healthy()
