"""Model cards and tables over REST: filled from the run, in plain words, each choice usable as it stands."""

import re

import pytest

from app.client import Coordinator
from app.coordinator.cards import MEANS, figures, in_words, plain
from app.coordinator.db import RunRow
from app.coordinator.results import Shown
from app.schemas.runs import Run
from fl_core.family import ALGORITHMS
from fl_core.models import MODELS
from tests.app.coordinator.services import Service

pytestmark = pytest.mark.xdist_group("results")


def section(card: str, title: str) -> str:
    return card.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_card_holds_the_figures_of_the_best_round(lead: Coordinator, run: Run) -> None:
    card = lead.model_card(run.id)
    assert run.best is not None
    metric = run.best.auc_ovo
    assert f"{metric.value:.3f} ({metric.low:.3f} – {metric.high:.3f})" in section(card, "Results")
    assert MEANS not in card
    assert f"round {run.best_round} of 2" in section(card, "What it is")
    for row in lead.results(run.id).classes:
        assert re.search(
            rf"\| {re.escape(plain(row.name))} \| {row.n} \| {row.auc.value:.3f} \(", section(card, "Classes")
        )
    assert "| hospital-2 | 2 of 2 |" in section(card, "Who took part")


def test_the_card_says_what_the_model_must_not_be_used_for(lead: Coordinator, run: Run) -> None:
    limits = section(lead.model_card(run.id), "Intended use and limits")
    for words in ("not a medical device", "No differential privacy", "images were not", "synthetic"):
        assert words in limits


def test_small_counts_stay_withheld_and_others_are_shown(lead: Coordinator, run: Run) -> None:
    data = section(lead.model_card(run.id), "Data")
    sites = lead.run_sites(run.id)
    for site in sites:
        cells = [f"{n or '–'} / {site.test[name] or '–'}" for name, n in site.train.items()]
        assert f"| {' | '.join(cells)} |" in data
    assert all(number is None or number >= 10 for site in sites for number in site.test.values())


def test_an_operator_reads_the_own_site_in_the_card(service: Service, run: Run) -> None:
    with service.client(service.token("site", "hospital-1")) as operator:
        card = operator.model_card(run.id)
    assert "hospital-1" in card
    assert "hospital-2" not in card


def test_a_mean_of_the_sites_has_no_interval_and_says_why() -> None:
    metric = {"value": 0.216, "low": None, "high": None}
    kept = {"headline": {"accuracy": metric, "auc_ovo": metric, "auc_ovr": metric, "n": 20}, "sites": {}}
    results = figures(Shown(RunRow(), "best", (), kept), [])
    assert "| all sites | 20 | 0.216 | 0.216 | 0.216 |" in results
    assert results.endswith(MEANS)


def test_the_card_says_what_sets_an_algorithm_apart() -> None:
    assert in_words(ALGORITHMS["fedavg"]) == "`fedavg`"
    assert ALGORITHMS["fedbn"].differs in in_words(ALGORITHMS["fedbn"])


def test_names_cannot_break_the_card() -> None:
    assert plain("a|b\n# <script>") == "a\\|b \\# \\<script\\>"


def test_every_algorithm_is_explained_in_two_sentences(lead: Coordinator) -> None:
    rows = lead.algorithms()
    assert [row.name for row in rows] == list(ALGORITHMS)
    assert all(row.explained.count(". ") == 1 and row.explained.endswith(".") for row in rows)
    assert len({row.explained for row in rows}) == len(rows)
    by_name = {row.name: row for row in rows}
    assert by_name["centralized"].bytes == 0
    assert by_name["scaffold"].bytes > by_name["fedavg"].bytes > 0


def test_every_network_is_listed(lead: Coordinator) -> None:
    rows = {row.name: row for row in lead.models()}
    assert list(rows) == list(MODELS)
    assert all(row.bytes > 4 * row.parameters for row in rows.values())


def test_every_preset_can_be_run(lead: Coordinator) -> None:
    presets = lead.presets()
    assert len({preset.name for preset in presets}) == len(presets) == 5
    for preset in presets:
        assert lead.estimate(preset.settings).parameters > 0
    first, rival = presets[:2]
    assert first.settings.model_copy(update={"algorithm": "fedavg", "name": rival.name}) == rival.settings
