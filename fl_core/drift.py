"""States after a round → how far each site is from the server, layer by layer: by statistics and by gradient."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_core.roles import Roles, Tensors
from fl_core.state import ServerState, SiteState, Update

EPS = 1e-5  # of the variances, as in batch normalisation
Distances = dict[str, list[float | None]]  # by site, one number a layer; None: nothing to compare


@dataclass(frozen=True)
class Drift:
    """Distances of the sites from the server in each batch-norm layer."""

    layers: tuple[str, ...]
    statistics: Distances  # in standard deviations of the layer
    gradient: Distances  # ‖c_i − c‖ / ‖c‖ over the layer's weights, and those up to the next layer


def drift(parts: Roles, server: ServerState, states: Mapping[str, SiteState], updates: Sequence[Update]) -> Drift:
    """By the variates where the row has some; else the running statistics that the sites sent."""
    sent = {update.site: update.model for update in updates}
    layers = tuple(name.removesuffix("running_mean").rstrip(".") for name in parts.statistics[0::2])
    groups = weights_by_layer(parts, layers)
    statistics = {site: state.k or sent.get(site, {}) for site, state in states.items()}
    centre = server.k or server.model
    return Drift(
        layers,
        {site: by_layer(parts, own, centre) for site, own in statistics.items()},
        {site: [relative(state.c, server.c, names) for names in groups] for site, state in states.items()},
    )


def by_layer(parts: Roles, own: Tensors, centre: Tensors) -> list[float | None]:
    """The distance of one site's (μ_i, ν_i) from (μ, ν) in each layer."""
    pairs = zip(parts.statistics[0::2], parts.statistics[1::2], strict=True)
    return [
        distance(own[mean], own[var], centre[mean], centre[var]) if mean in own and mean in centre else None
        for mean, var in pairs
    ]


def distance(mean: Tensor, var: Tensor, centre_mean: Tensor, centre_var: Tensor) -> float:
    """Root mean square over the channels of (μ_i − μ)/σ and log(σ_i/σ): shift and stretch, both without unit."""
    shift = (mean - centre_mean).double().square() / (centre_var.double() + EPS)
    stretch = (0.5 * ((var.double() + EPS) / (centre_var.double() + EPS)).log()).square()
    return rounded(float((shift + stretch).mean().sqrt()))


def relative(own: Tensors, centre: Tensors, names: Iterable[str]) -> float | None:
    """‖c_i − c‖ / ‖c‖ over those weights."""
    both = [name for name in names if name in own and name in centre]
    if not both:
        return None
    apart = norm([own[name] - centre[name] for name in both])
    whole = norm([centre[name] for name in both])
    return rounded(apart / whole) if whole > 0 else None


def norm(tensors: list[Tensor]) -> float:
    """The length of all tensors as one vector."""
    return math.sqrt(math.fsum(float(n) ** 2 for n in torch._foreach_norm(tensors, 2)))


def weights_by_layer(parts: Roles, layers: Sequence[str]) -> list[list[str]]:
    """Every weight with the batch-norm layer at or before it; those before the first layer with the first."""
    groups: list[list[str]] = [[] for _ in layers]
    position = {layer: index for index, layer in enumerate(layers)}
    current = 0
    for name in parts.parameters if layers else ():
        current = position.get(name.rpartition(".")[0], current)
        groups[current].append(name)
    return groups


def mean_of(distances: Sequence[float | None]) -> float | None:
    """The mean over the layers that have a distance."""
    known = [value for value in distances if value is not None]
    return rounded(math.fsum(known) / len(known)) if known else None


def rounded(value: float) -> float:
    """Four digits: these numbers are looked at, and there are many."""
    return float(f"{value:.4g}")
