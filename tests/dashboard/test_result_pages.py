"""Results, Compare, Drift, Data, New run and Audit: numbers equal to the API's, controls that do what they say."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import expect

from app.schemas.runs import Run
from dashboard.words import count, interval, p_value, spaced, style_in_words
from tests.app.coordinator.services import trained, wait_until
from tests.dashboard.conftest import SETTINGS, Reader, Study
from tests.dashboard.screens import PATIENCE, Screen

pytestmark = pytest.mark.xdist_group("dashboard")


def plain(words: str) -> str:
    """As the browser shows it."""
    return words.replace("\xa0", " ")


def open_on(tab: Screen, title: str, study: Study, run: Run | None = None) -> None:
    """A page on the trained run, or another one."""
    tab.open_run((run or study.run).id)
    tab.open(title)


def test_results_are_those_of_the_api(reader: Reader, study: Study) -> None:
    lead = reader.tab
    open_on(lead, "Results", study)
    results = reader.client.results(study.run.id, "best")
    lead.see_rows(*(spaced(each.name) for each in results.classes), *results.sites)
    rows = lead.tables()
    for each in results.classes:
        shown = [each.auc, each.pr_auc, each.sensitivity, each.specificity]
        assert [spaced(each.name), count(each.n), *(plain(interval(metric)) for metric in shown)] in rows
    for name, own in results.sites.items():
        assert [
            name,
            count(own.n),
            *(plain(interval(m)) for m in (own.accuracy, own.auc_ovo, own.auc_ovr)),
        ] in rows
    curve = next(
        trace
        for trace in lead.plotted("roc")
        if str(trace["name"]).startswith(spaced(results.one_vs_rest[0].name))
    )
    assert curve["y"] == pytest.approx(results.one_vs_rest[0].true_positive_rate)
    cells = lead.page.locator(".st-key-chart-confusion .js-plotly-plot:visible").evaluate(
        "p => p._fullData[0].text"
    )
    assert [list(row) for row in cells] == [list(row) for row in results.confusion]


def test_each_class_is_shown_against_each_other_one(lead: Screen, study: Study) -> None:
    open_on(lead, "Results", study)
    lead.page.get_by_text("Each pair of classes").click()
    lead.choose("Class", "mass malignant")
    with study.service.client() as client:
        results = client.results(study.run.id, "best")
    wanted = [curve for curve in results.one_vs_one if curve.name.startswith("mass_malignant against")]
    assert len(wanted) == len(results.classes) - 1

    def drawn() -> bool:
        shown = lead.plotted("roc")[1:]
        return [trace["y"] for trace in shown] == [list(curve.true_positive_rate) for curve in wanted]

    wait_until(drawn, "the pairs' curves", 30)


def test_a_threshold_changes_sensitivity_and_specificity(lead: Screen, study: Study) -> None:
    open_on(lead, "Results", study)
    lead.page.get_by_text("Decide by a threshold").click()
    lead.see("at least 0.5")
    with study.service.client() as client:
        first = client.results(study.run.id, "best", 0.5).classes[0]
    row = next(row for row in lead.tables() if row[0] == spaced(first.name))
    assert row[4:] == [plain(interval(first.sensitivity)), plain(interval(first.specificity))]


def test_the_model_leaves_as_a_file_that_is_the_api_s(lead: Screen, study: Study) -> None:
    open_on(lead, "Results", study)
    given = lead.downloaded(lead.page.get_by_role("button", name="safetensors"))
    with study.service.client() as client:
        assert given == client.model(study.run.id, "best", "safetensors")
    lead.page.get_by_text("Model card", exact=True).click()
    expect(lead.page.get_by_role("button", name="Download", exact=True)).to_be_visible()


def test_where_each_site_has_its_own_model_the_chosen_site_s_leaves(lead: Screen, study: Study) -> None:
    with study.service.client() as client:
        run = trained(
            client, SETTINGS.model_copy(update={"name": "own models", "algorithm": "fedbn", "rounds": 1})
        )
        open_on(lead, "Results", study, run)
        lead.choose("Model of the site", "hospital-2")
        lead.see("here is that of hospital-2")
        given = lead.downloaded(lead.page.get_by_role("button", name="safetensors"))
        files = [client.model(run.id, "best", "safetensors", site) for site in ("hospital-1", "hospital-2")]
    assert given == files[1] != files[0]


def test_without_shared_scores_the_headline_the_sites_the_files_and_the_card_are_there(
    lead: Screen, study: Study
) -> None:
    with study.service.client() as client:
        run = trained(client, SETTINGS.model_copy(update={"name": "scores stay", "rounds": 1}))
        forget_scores(study.service.home, run.id)
        results = client.results(run.id)
    open_on(lead, "Results", study, run)
    lead.see("The sites' scores stay with them")
    assert results.headline.accuracy.value is not None
    expect(lead.page.get_by_test_id("stMetric").first).to_contain_text(f"{results.headline.accuracy.value:.3f}")
    lead.see_rows(*results.sites)
    expect(lead.page.get_by_role("button", name="safetensors")).to_be_enabled()
    expect(lead.page.locator(".js-plotly-plot")).to_have_count(0)
    lead.page.get_by_text("Model card", exact=True).click()
    lead.see("there are no figures by class here")


def forget_scores(home: Path, run: str) -> None:
    """Leave of the run's kept rounds what a federation without shared scores keeps."""
    with closing(sqlite3.connect(home / "mammofed.db")) as database, database:
        for part in ("best", "latest"):
            database.execute(f"UPDATE runs SET {part} = json_remove({part}, '$.scores') WHERE id = ?", (run,))


def test_runs_are_compared_with_the_api_s_p_values(lead: Screen, study: Study) -> None:
    lead.open("Compare")
    lead.choose("Reference for p-values", "small run")
    lead.see("small run · bn-scaffold-std (reference)")
    with study.service.client() as client:
        compared = client.compare((study.rival.id, study.run.id), study.run.id)
    rival = next(run for run in compared.runs if run.run == study.rival.id)
    row = next(row for row in lead.tables() if row[0] == "rival run · fedavg")
    assert rival.headline is not None
    assert row[1] == count(rival.headline.n)
    assert row[3] == plain(interval(rival.headline.auc_ovo))
    assert row[5] == plain(p_value(rival.p_value["auc_ovo"]))
    dots = lead.plotted("bars")[0]
    drawn = dict(zip(dots["y"], dots["x"], strict=True))
    for run in compared.runs:
        assert run.headline is not None
        assert drawn[f"{run.name} ({run.algorithm})<br>n = 100"] == pytest.approx(run.headline.auc_ovo.value)


def test_drift_is_that_of_the_api(reader: Reader, study: Study) -> None:
    lead = reader.tab
    open_on(lead, "Drift", study)
    drift = reader.client.drift(study.run.id)
    for kind in ("statistics", "gradient"):
        cells = lead.page.locator(f".st-key-chart-drift-{kind} .js-plotly-plot:visible").evaluate(
            "p => p._fullData[0].z.map(row => Array.from(row))"
        )
        wanted = [list(getattr(layer, kind).values()) for layer in drift.layers]
        assert [cell for row in cells for cell in row] == pytest.approx([cell for row in wanted for cell in row])
    line = lead.plotted("drift-mean-statistics")[0]
    assert line["y"] == pytest.approx(drift.mean_statistics[line["name"]])


def test_data_are_those_of_the_api(reader: Reader, study: Study) -> None:
    lead = reader.tab
    open_on(lead, "Data", study)
    sites = reader.client.run_sites(study.run.id)
    lead.see_rows(*(site.site for site in (*sites, *sites)))
    vendors = [", ".join(f"{name}: {number}" for name, number in site.vendors.items()) for site in sites]
    assert lead.tables() == [
        *([site.site, *map(count, site.train.values())] for site in sites),
        *([site.site, style_in_words(site.style), told] for site, told in zip(sites, vendors, strict=True)),
    ]
    assert [sum(site.vendors.values()) for site in sites] == [
        sum(filter(None, site.train.values())) for site in sites
    ]
    assert lead.plotted("histogram")[-1]["y"] == pytest.approx(sites[0].histogram)
    expect(lead.page.get_by_role("img", name="Synthetic patches of hospital-1")).to_be_visible()


def created_as_a_draft(lead: Screen, study: Study, name: str) -> Run:
    """Press the button of the filled form; the run that comes of it."""
    lead.page.get_by_role("button", name="Create as a draft").click()
    lead.see_title("Run")
    with study.service.client() as client:
        return wait_until(
            lambda: next((run for run in client.runs().items if run.name == name), None), "the new run", 30
        )


def test_a_new_run_is_created_as_filled_in(lead: Screen, study: Study) -> None:
    lead.open("New run")
    lead.page.get_by_label("Name", exact=True).fill("from the browser")
    lead.page.get_by_label("Rounds", exact=True).fill("7")
    lead.page.get_by_label("Rounds", exact=True).press("Tab")
    lead.settle()
    lead.choose("Algorithm", "fedbn")
    found = created_as_a_draft(lead, study, "from the browser")
    assert (found.state, found.settings.rounds, found.settings.algorithm) == ("draft", 7, found.settings.algorithm)
    assert found.settings.algorithm.startswith("fedbn")
    assert found.id in lead.page.url


def test_sites_can_be_made_all_alike_but_no_more_than_that(lead: Screen, study: Study) -> None:
    lead.open("New run")
    lead.page.get_by_label("Name", exact=True).fill("all alike")
    lead.page.get_by_label("Sites", exact=True).fill("3")
    lead.page.get_by_label("Sites", exact=True).press("Enter")
    lead.settle()
    lead.page.get_by_role("slider").press("Home")
    lead.see("0.33")
    lead.settle()
    found = created_as_a_draft(lead, study, "all alike")
    assert (found.settings.data.sites, found.settings.data.skew) == (3, 1 / 3)


def test_stores_that_nobody_named_do_not_become_synthetic_data(lead: Screen, study: Study) -> None:
    lead.open("New run")
    lead.page.get_by_text("Patch stores", exact=True).click()
    lead.see("Name the patch store of at least one site")
    expect(lead.page.get_by_role("button", name="Create and start")).to_have_count(0)
    lead.page.get_by_label("Sites, one a line: NAME=PATH[,style=STYLE]").fill("a=/data/a")
    lead.page.get_by_label("Path of the test patches that all share").click()
    expect(lead.page.get_by_role("button", name="Create and start")).to_be_enabled(timeout=PATIENCE)


def test_the_audit_page_shows_the_chain_and_filters_it(lead: Screen, study: Study) -> None:
    lead.open("Audit")
    lead.see("The chain holds")
    lead.see("algorithm: bn-scaffold-std, batch: 8, data: synthetic")
    lead.page.get_by_label("Did", exact=True).fill("site.enrol")
    lead.page.get_by_label("Did", exact=True).press("Enter")
    with study.service.client() as client:
        entries = client.audit(action="site.enrol").items
    wait_until(
        lambda: {cell for row in lead.tables() for cell in row[3:4]} == {"site.enrol"}, "the filtered entries", 30
    )
    assert [row[0] for row in lead.tables()] == [str(entry.id) for entry in entries]
    assert [row[4] for row in lead.tables()] == [entry.subject for entry in entries]
