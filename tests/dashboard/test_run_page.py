"""The pages Overview and Run: numbers equal to the API's, controls that do what they say."""

import pytest
from playwright.sync_api import Browser, Locator, expect

from dashboard.words import interval
from tests.app.coordinator.services import SMALL, ended, wait_until
from tests.dashboard.conftest import Reader, Study
from tests.dashboard.screens import PATIENCE, Screen, screen

pytestmark = pytest.mark.xdist_group("dashboard")


def test_a_wrong_token_is_refused_in_words(browser: Browser, study: Study) -> None:
    with screen(browser, study.address) as tab:
        tab.page.goto(study.address)
        tab.page.get_by_label("Token", exact=True).fill("mf_0_wrong")
        tab.page.get_by_role("button", name="Sign in").click()
        tab.see("this token is not valid")
        expect(tab.links()).to_have_count(0)


def test_a_token_in_the_address_signs_in_and_is_taken_out_of_it(browser: Browser, study: Study) -> None:
    with screen(browser, study.address) as tab:
        tab.page.goto(f"{study.address}/?token={study.tokens['viewer']}")
        tab.see_title("Overview")
        assert "token" not in tab.page.url
        tab.healthy()


def test_the_overview_says_what_failed_first_and_how_each_run_stands(lead: Screen, study: Study) -> None:
    first = lead.page.get_by_role("alert").first
    expect(first).to_contain_text(f"failed run failed after round 0: {study.failed.reason}")
    row = lead.page.locator(f".st-key-run-{study.run.id}")
    expect(row).to_contain_text("small run · bn-scaffold-std")
    expect(row).to_contain_text("Completed")
    expect(row).to_contain_text("Round 3 of 3, finished")
    assert study.run.best is not None
    expect(row).to_contain_text(interval(study.run.best.auc_ovo).replace("\xa0", " "))
    with study.service.client() as client:
        lead.see_rows(*(site.name for site in client.sites()))


def test_the_curves_are_those_of_the_api(reader: Reader, study: Study) -> None:
    lead = reader.tab
    lead.open_run(study.run.id)
    metrics = reader.client.metrics(study.run.id)
    shade, line = lead.plotted("metric")[:2]
    assert line["name"] == f"small run · bn-scaffold-std (n = {metrics.test.n[-1]})"
    assert line["y"] == pytest.approx(metrics.test.auc_ovo.value)
    assert line["x"] == list(metrics.rounds)
    assert shade["y"] == pytest.approx([*metrics.test.auc_ovo.high, *metrics.test.auc_ovo.low[::-1]])
    shade, line = lead.plotted("loss")
    assert line["name"] == f"mean of the sites (n = {metrics.loss_n[-1]})"
    assert line["y"] == pytest.approx(metrics.loss)
    assert shade["y"] == pytest.approx([*metrics.loss_high, *metrics.loss_low[::-1]])
    assert study.run.latest is not None
    shown = [box.inner_text() for box in lead.page.get_by_test_id("stMetric").all()]
    for name, box in zip(("accuracy", "auc_ovo", "auc_ovr"), shown, strict=True):
        metric = getattr(study.run.latest, name)
        assert f"{metric.value:.3f}" in box
        assert f"{metric.low:.3f} to {metric.high:.3f}" in box


def test_rivals_and_sites_can_be_shown(lead: Screen, study: Study) -> None:
    lead.open_run(study.run.id)
    lead.choose("Against other runs on the same data", "rival run")
    wait_until(lambda: "rival run · fedavg (n = 100)" in names(lead), "the rival's curve", 30)
    lead.page.get_by_text("Each site by itself").click()
    wait_until(lambda: any("hospital-2" in str(name) for name in names(lead)), "the sites' curves", 30)
    with study.service.client() as client:
        sites = client.metrics(study.run.id).sites
    drawn = {trace["name"]: trace["y"] for trace in lead.plotted("metric")}
    for name, curves in sites.items():
        assert drawn[f"{name} (n = {curves.n[-1]})"] == pytest.approx(
            [value for value in curves.auc_ovo.value if value is not None]
        )


def names(tab: Screen) -> list[str]:
    """The curves in the main chart."""
    return [trace["name"] for trace in tab.plotted("metric")]


def test_a_chart_can_be_saved_in_three_formats(lead: Screen, study: Study) -> None:
    lead.open_run(study.run.id)
    lead.plotted("loss")
    with study.service.client() as client:
        loss = client.metrics(study.run.id).loss
    rows = lead.saved("loss", "CSV").decode().splitlines()
    assert [float(row.split(",")[2]) for row in rows[1:]] == list(loss)
    assert lead.saved("loss", "PNG").startswith(b"\x89PNG")
    assert b"<svg" in lead.saved("loss", "SVG")[:100]


def test_controls_take_a_run_from_draft_to_its_end(lead: Screen, study: Study) -> None:
    with study.service.client() as client:
        run = client.create(SMALL.model_copy(update={"rounds": 10_000, "name": "controlled run"}))
        lead.open_run(run.id)

        def press(name: str) -> None:
            lead.page.get_by_role("button", name=name, exact=True).click(timeout=PATIENCE)

        expect(lead.page.get_by_role("button", name="Pause", exact=True)).to_be_disabled()
        lead.see("Pause, Resume: it has not been started yet")
        press("One round")
        assert wait_until(lambda: client.run(run.id).state == "paused", "the pause after one round")
        assert client.run(run.id).round == 1
        press("Resume")
        wait_until(lambda: client.run(run.id).round >= 2, "one more round")
        wait_until(lambda: len(lead.plotted("metric")[-1]["x"]) >= 2, "a curve that grows by itself")
        press("Pause")
        assert ended(client, run.id).state == "paused"
        press("Stop")
        lead.stays("cannot be resumed")
        press("Cancel")
        assert client.run(run.id).state == "paused"
        press("Stop")
        press("Stop for good")
        wait_until(lambda: client.run(run.id).state == "stopped", "the stop")
        lead.see("the run is stopped")


WATCH = """plot => {
    plot.marked = true;
    plot.blank = 0;
    const look = () => { plot.blank += !plot.querySelector(".main-svg"); requestAnimationFrame(look); };
    look();
}"""
STATE = """plot => ({marked: plot.marked, blank: plot.blank, points: plot._fullData.at(-1).x.length,
    x: plot._fullLayout.xaxis.range, y: plot._fullLayout.yaxis.range})"""


def test_a_zoomed_chart_stays_as_it_is_when_a_round_comes_and_never_blinks(lead: Screen, study: Study) -> None:
    with study.service.client() as client:
        run = client.create(SMALL.model_copy(update={"rounds": 100, "name": "zoomed run"}))
        client.act(run.id, "step")
        assert ended(client, run.id).round == 1
        lead.open_run(run.id)
        lead.plotted("metric")
        chart = lead.page.locator(".st-key-chart-metric .js-plotly-plot")
        whole = chart.evaluate(STATE)
        zoom(lead, chart)
        chart.evaluate(WATCH)
        zoomed = chart.evaluate(STATE)
        assert zoomed["x"] != whole["x"]
        assert zoomed["y"] != whole["y"]
        client.act(run.id, "step")
        wait_until(lambda: chart.evaluate(STATE)["points"] == 2, "the second round in the curve", 30)
        assert chart.evaluate(STATE) == {**zoomed, "marked": True, "blank": 0, "points": 2}
        lead.page.get_by_text("Accuracy", exact=True).last.click()
        wait_until(lambda: chart.evaluate(STATE)["x"] != zoomed["x"], "the full view of another metric", 30)
        client.act(run.id, "stop")


def zoom(tab: Screen, chart: Locator) -> None:
    """Drag over the middle of a chart, as a person does."""
    area = chart.locator(".nsewdrag")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    places = [(box["x"] + share * box["width"], box["y"] + share * box["height"]) for share in (0.3, 0.7)]
    tab.page.mouse.move(*places[0])
    tab.page.mouse.down()
    tab.page.mouse.move(*places[1], steps=5)
    tab.page.mouse.up()


def test_a_run_is_opened_by_its_address_and_an_unknown_one_is_said(browser: Browser, study: Study) -> None:
    with screen(browser, study.address) as tab:
        tab.sign_in(study.tokens["viewer"])
        tab.page.goto(f"{study.address}/run?run=0000-nothing&token={study.tokens['viewer']}")
        tab.see("There is no run 0000-nothing: another one is shown.")
        tab.page.goto(f"{study.address}/run?run={study.rival.id}&token={study.tokens['viewer']}")
        tab.see_title("Run")
        chosen = tab.page.get_by_role("combobox", name="Run", exact=True)
        assert chosen.input_value() == "rival run · fedavg"
        expect(tab.page.get_by_test_id("stException")).to_have_count(0)  # Streamlit looks for its base path: 404s


def test_a_failed_run_says_why(lead: Screen, study: Study) -> None:
    lead.open_run(study.failed.id)
    lead.see("Failed")
    lead.see(str(study.failed.reason))
    lead.see("This run ended before its first round was committed")
    expect(lead.page.get_by_test_id("stMetric")).to_have_count(0)
