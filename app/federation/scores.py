"""The sites' own metrics and shared scores → what is shown of a round: pooled, or combined by test patches."""

from collections.abc import Mapping
from typing import Any

from app.federation.remote import SiteScores
from app.federation.terms import Terms
from fl_core.evaluate import Evaluation, report
from fl_core.intervals import HEADLINES


def combined(scores: Mapping[str, SiteScores], terms: Terms) -> tuple[Evaluation | None, dict[str, Any] | None]:
    """Pooled metrics where every site shares its scores; else the mean over sites, marked as such."""
    if not scores:
        return None, None
    shared = {site: found.scored for site, found in scores.items() if found.scored is not None}
    if len(shared) == len(scores):
        evaluation = Evaluation(shared, {})
        return evaluation, {**report(evaluation, terms.resamples, terms.plan.seed), "pooled": True}
    means: dict[str, Any] = {name: mean_over_sites(scores, name) for name in HEADLINES}
    sites = {site: {**found.metrics, "n": found.n} for site, found in scores.items()}
    return None, {**means, "n": sum(found.n for found in scores.values()), "sites": sites, "pooled": False}


def mean_over_sites(scores: Mapping[str, SiteScores], name: str) -> dict[str, float | None]:
    """Weighted by the test patches above each site's floor; it has no interval, since scores stay at the sites."""
    known = [(found.n, found.metrics[name]["value"]) for found in scores.values()]
    known = [(n, value) for n, value in known if n and value is not None]
    total = sum(n for n, _ in known)
    value = sum(n * value for n, value in known) / total if total else None
    return {"value": value, "low": None, "high": None}
