"""A trained model and test patches → scores, and the metrics of the pooled test set and of each site."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_core.data import Indices, JoinedPatches, PatchSource, SiteData
from fl_core.intervals import as_json, bootstrap
from fl_core.local import Workplace
from fl_core.metrics import point_metrics, withhold
from fl_core.roles import Tensors
from fl_core.state import ServerState, SiteState
from mammofed.errors import TrainingFailed

Scores = NDArray[np.floating[Any]]  # (n, C), each row a probability
BATCH = 256  # patches scored at a time


@dataclass(frozen=True)
class Scored:
    """Scores beside the true classes."""

    scores: Scores
    labels: Indices


def score(place: Workplace, tensors: Tensors, patches: PatchSource) -> Scored:
    """Class probabilities of each patch by the model with these tensors, in eval mode."""
    torch.set_num_threads(place.plan.threads)
    place.model.load_state_dict(tensors)
    place.model.eval()
    n = len(patches.labels)
    parts = []
    with torch.inference_mode(), place.bench.autocast():
        for start in range(0, n, BATCH):
            chosen = np.arange(start, min(start + BATCH, n))
            x = place.bench.images(patches.read(chosen), place.norms.mean.dtype)
            parts.append(place.model(x).double().softmax(dim=1).cpu().numpy())
    scores = np.concatenate(parts)
    if not np.isfinite(scores).all():
        raise TrainingFailed(
            "the model's test scores are not finite: lower the learning rate or lengthen the warm-up "
            "(the last good round stays)"
        )
    return Scored(scores, patches.labels)


@dataclass(frozen=True)
class Evaluation:
    """A round's scores: of each site's test patches by the model that serves the site, and beyond."""

    by_site: Mapping[str, Scored]
    by_site_model: Mapping[str, Scored]  # rows with private tensors: the pooled test set by each site's model

    @property
    def pooled(self) -> Scored:
        """All test patches, each scored by its own site's model."""
        parts = list(self.by_site.values())
        return Scored(np.concatenate([p.scores for p in parts]), np.concatenate([p.labels for p in parts]))


def evaluate(
    place: Workplace, sites: Sequence[SiteData], server: ServerState, states: Mapping[str, SiteState]
) -> Evaluation:
    """Score all test patches with the global model, or with one model a site where tensors are private."""
    private = bool(place.plan.row.private(place.roles))
    by_site, by_model = {}, {}
    everything = JoinedPatches(tuple(site.test for site in sites))
    for site in sites:
        tensors = {**server.model, **states[site.name].private} if private else server.model
        by_site[site.name] = score(place, tensors, site.test)
        if private:
            by_model[site.name] = score(place, tensors, everything)
    return Evaluation(by_site, by_model)


def above_floor(evaluation: Evaluation) -> Evaluation:
    """What may be shown to others: a site's patches of a class of which it has few count in no sum either."""
    parts = evaluation.by_site.items()
    return Evaluation({name: Scored(*withhold(part.scores, part.labels)) for name, part in parts}, {})


def report(evaluation: Evaluation, resamples: int, seed: int) -> dict[str, Any]:
    """The metrics as JSON: pooled and per site with intervals, small per-site numbers withheld."""
    pooled = evaluation.pooled
    found: dict[str, Any] = headline(pooled, resamples, seed)
    found["detail"] = asdict(point_metrics(pooled.scores, pooled.labels))
    found["sites"] = {
        name: headline(Scored(*withhold(part.scores, part.labels)), resamples, seed)
        for name, part in evaluation.by_site.items()
    }
    if evaluation.by_site_model:
        models = {name: headline(part, resamples, seed) for name, part in evaluation.by_site_model.items()}
        found["site_models"] = models
    return found


def headline(scored: Scored, resamples: int, seed: int) -> dict[str, Any]:
    """Accuracy, OvO and OvR AUC, each with its interval, and how many patches are behind them."""
    found = as_json(bootstrap(scored.scores, scored.labels, resamples=resamples, seed=seed))
    return {**{str(name): interval for name, interval in found.items()}, "n": len(scored.labels)}
