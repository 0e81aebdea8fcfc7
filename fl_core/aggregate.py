"""Updates of the sites, one at a time → the server's next state.

Sums run in the order in which the updates come, which the caller keeps fixed, and hold one sum and one update in
memory whatever the number of sites.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_core.family import Algorithm
from fl_core.roles import Roles, Tensors
from fl_core.state import ServerState, SiteState, Update
from mammofed.errors import TrainingFailed


class BadUpdate(TrainingFailed):
    """An update that does not count; the message names site and tensor."""


class WeightedMean:
    """Σ P_i x_i over named tensors: weights in their own precision, statistics in float64, integers by maximum."""

    def __init__(self, double: frozenset[str] = frozenset()) -> None:
        self.double = double
        self.sums: Tensors = {}
        self.dtypes: dict[str, torch.dtype] = {}

    def add(self, tensors: Tensors, weight: float) -> None:
        """Take in one site's tensors, which are not kept."""
        first = not self.sums
        for name, tensor in tensors.items():
            value = tensor.double() if name in self.double else tensor
            if first:
                self.dtypes[name] = tensor.dtype
                self.sums[name] = value * weight if value.is_floating_point() else value.clone()
            elif value.is_floating_point():
                self.sums[name].add_(value, alpha=weight)
            else:
                torch.maximum(self.sums[name], value, out=self.sums[name])

    def result(self) -> Tensors:
        """The means, each in the precision in which it came."""
        return {name: total.to(self.dtypes[name]) for name, total in self.sums.items()}


class PooledStatistics:
    """μ = Σ P_i μ_i and ν = Σ P_i (ν_i + (μ_i − μ)²): the statistics of the pooled data, in float64."""

    def __init__(self, means: Sequence[str], variances: Sequence[str]) -> None:
        self.pairs = list(zip(means, variances, strict=True))
        self.plain = WeightedMean(frozenset([*means, *variances]))
        self.squares = WeightedMean()

    def add(self, tensors: Tensors, weight: float) -> None:
        """Take in one site's statistics."""
        self.plain.add(tensors, weight)
        self.squares.add({mean: tensors[mean].double().square() for mean, _ in self.pairs if tensors}, weight)

    def result(self) -> Tensors:
        """(μ, ν) by name."""
        found = dict(self.plain.sums)
        for mean, variance in self.pairs if found else []:
            spread = self.squares.sums[mean] - found[mean].square()
            found[variance] = found[variance] + spread.clamp(min=0)
        return {name: tensor.to(self.plain.dtypes[name]) for name, tensor in found.items()}


@dataclass(frozen=True)
class Absent:
    """A site that is enrolled and has variates, but is not in this round: it keeps the old ones."""

    patches: int
    load: Callable[[], SiteState]


def aggregate(
    row: Algorithm,
    parts: Roles,
    server: ServerState,
    updates: Iterable[Update],
    patches: Mapping[str, int],
    absent: Sequence[Absent] = (),
) -> ServerState:
    """w, running statistics, c and k as means with P_i = n_i/Σn; `patches` holds the n_i of the sites that come.

    After every round c = Σ P_i c_i and k = Σ P_i k_i over all sites that have variates, absent ones included.
    """
    here = sum(patches.values())
    everyone = here + sum(site.patches for site in absent)
    model = WeightedMean(frozenset(parts.statistics))
    c = WeightedMean()
    k = variate_mean(row, parts)
    came = 0
    for update in updates:
        model.add(update.model, update.patches / here)
        c.add(update.c, update.patches / everyone)
        k.add(update.k, update.patches / everyone)
        came += update.patches
    if came != here:
        raise TrainingFailed(f"updates for {came} patches came, {here} were announced: aggregate them once more")
    for site in absent:
        kept = site.load()
        c.add(kept.c, site.patches / everyone)
        k.add(kept.k, site.patches / everyone)
    return ServerState(server.round + 1, {**server.model, **model.result()}, c.result(), k.result())


def variate_mean(row: Algorithm, parts: Roles) -> WeightedMean | PooledStatistics:
    """How the row's server combines the sites' k_i."""
    means, variances = parts.statistics[0::2], parts.statistics[1::2]
    return PooledStatistics(means, variances) if row.k == "pooled" else WeightedMean(frozenset(parts.statistics))


def check_update(row: Algorithm, parts: Roles, server: ServerState, update: Update) -> Update:
    """The update itself if it may count; else an error that names site, tensor and what is wrong."""
    who = f"update of site {update.site!r}"
    if update.round != server.round + 1:
        raise BadUpdate(f"{who}: of round {update.round}, while round {server.round + 1} is open")
    if update.patches < 1:
        raise BadUpdate(f"{who}: counts {update.patches} patches")
    private = row.private(parts)
    shared = {name: tensor for name, tensor in server.model.items() if name not in private}
    weights = {name: server.model[name] for name in parts.parameters if name not in private}
    statistics = {name: server.model[name] for name in parts.statistics}
    check_tensors(f"{who}, model", update.model, shared)
    check_tensors(f"{who}, variates c", update.c, weights if row.weight_grad else {})
    check_tensors(f"{who}, variates k", update.k, statistics if row.corrects_statistics else {})
    return update


def check_tensors(where: str, got: Tensors, wanted: Tensors) -> None:
    """Names, shapes, dtypes and finiteness."""
    for name in sorted(got.keys() ^ wanted.keys()):
        raise BadUpdate(f"{where}: tensor {name!r} is {'missing' if name in wanted else 'not asked for'}")
    for name, tensor in got.items():
        like = wanted[name]
        if tensor.shape != like.shape or tensor.dtype != like.dtype:
            raise BadUpdate(
                f"{where}: tensor {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                f"{like.dtype} of shape {tuple(like.shape)} is needed"
            )
        if not is_finite(tensor):
            raise BadUpdate(f"{where}: tensor {name!r} is not finite")


def is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite; one pass over memory in the usual case, since a sum passes NaN and ∞ on."""
    return not tensor.is_floating_point() or bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
