"""Updates of the sites, one at a time → the server's next state.

Sums run in the order in which the updates come, which the caller keeps fixed, and hold one sum and one update in
memory whatever the number of sites.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_core.family import Algorithm
from fl_core.roles import Roles, Tensors
from fl_core.state import ServerState, SiteState, Update, without
from mammofed.errors import TrainingFailed


class BadUpdate(TrainingFailed):
    """An update that does not count; the message names site and tensor."""


class MissingUpdate(TrainingFailed):
    """Fewer updates came than were announced; the sum does not count."""


class WeightedMean:
    """Σ P_i x_i over named tensors: weights in their own precision, statistics in float64, integers by maximum."""

    def __init__(self, double: frozenset[str] = frozenset()) -> None:
        self.double = double
        self.sums: Tensors = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.floats: list[str] = []
        self.integers: list[str] = []

    def add(self, tensors: Tensors, weight: float) -> None:
        """Take in one site's tensors, which are not kept; one call a kind: many small ones would cost more."""
        values = {**tensors, **{name: tensors[name].double() for name in self.double if name in tensors}}
        if not self.sums:
            self.dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
            self.floats = [name for name, value in values.items() if value.is_floating_point()]
            self.integers = [name for name, value in values.items() if not value.is_floating_point()]
            self.sums = {name: values[name] * weight for name in self.floats}
            self.sums.update({name: values[name].clone() for name in self.integers})
            return
        if self.floats:
            sums, added = ([group[name] for name in self.floats] for group in (self.sums, values))
            torch._foreach_add_(sums, added, alpha=weight)
        if self.integers:
            largest, others = ([group[name] for name in self.integers] for group in (self.sums, values))
            torch._foreach_maximum_(largest, others)

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
        del update  # before the next one is made
    if came != here:
        raise MissingUpdate(f"updates for {came} patches came, {here} were announced: aggregate them once more")
    for site in absent:
        kept = site.load()
        c.add(kept.c, site.patches / everyone)
        k.add(kept.k, site.patches / everyone)
    return ServerState(server.round + 1, {**server.model, **model.result()}, c.result(), k.result())


def variate_mean(row: Algorithm, parts: Roles) -> WeightedMean | PooledStatistics:
    """How the row's server combines the sites' k_i."""
    means, variances = parts.statistics[0::2], parts.statistics[1::2]
    return PooledStatistics(means, variances) if row.k == "pooled" else WeightedMean(frozenset(parts.statistics))


Shapes = dict[str, tuple[torch.Size, torch.dtype]]


@dataclass(frozen=True)
class Expected:
    """What an update of the open round must look like."""

    round: int
    groups: dict[str, Shapes]  # of model, c and k
    variances: frozenset[str]  # names of those that are never negative


def expected(row: Algorithm, parts: Roles, server: ServerState) -> Expected:
    """The names, shapes and dtypes that the row lets out of a site."""
    private = row.private(parts)
    shared = without(server.model, private)
    weights = {name: shared[name] for name in parts.parameters if name in shared}
    statistics = {name: server.model[name] for name in parts.statistics}
    groups = {
        "model": shapes(shared),
        "c": shapes(weights) if row.weight_grad else {},
        "k": shapes(statistics) if row.corrects_statistics else {},
    }
    return Expected(server.round + 1, groups, frozenset(parts.statistics[1::2]))


def shapes(tensors: Tensors) -> Shapes:
    """Shape and dtype of each tensor."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def check_update(wanted: Expected, update: Update) -> Update:
    """The update itself if it may count; else an error that names site, tensor and what is wrong."""
    who = f"update of site {update.site!r}"
    if update.round != wanted.round:
        raise BadUpdate(f"{who}: of round {update.round}, while round {wanted.round} is open")
    if update.patches < 1:
        raise BadUpdate(f"{who}: counts {update.patches} patches")
    for group, like in wanted.groups.items():
        tensors: Tensors = getattr(update, group)
        if shapes(tensors) != like:
            raise BadUpdate(f"{who}, {group}: {first_difference(shapes(tensors), like)}")
        bad = first_not_finite(tensors)
        if bad is not None:
            raise BadUpdate(f"{who}, {group}: tensor {bad!r} is not finite after step {update.steps}")
        negative = first_negative({name: tensors[name] for name in wanted.variances if name in tensors})
        if negative is not None:
            raise BadUpdate(f"{who}, {group}: the variance {negative!r} is negative")
    return update


def first_difference(got: Shapes, wanted: Shapes) -> str:
    """In words, how two sets of tensors differ."""
    for name in sorted(got.keys() ^ wanted.keys()):
        return f"tensor {name!r} is {'missing' if name in wanted else 'not asked for'}"
    name = next(name for name in got if got[name] != wanted[name])
    (shape, dtype), (right_shape, right_dtype) = got[name], wanted[name]
    return f"tensor {name!r} is {dtype} of shape {tuple(shape)}, {right_dtype} of {tuple(right_shape)} is needed"


def first_not_finite(tensors: Tensors) -> str | None:
    """The name of a tensor with NaN or ∞ in it; one pass over memory where there is none: norms pass both on."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    if not floats or all_finite_norms(list(floats.values())):
        return None
    return next((name for name, tensor in floats.items() if not tensor.isfinite().all()), None)


def first_negative(tensors: Tensors) -> str | None:
    """The name of a tensor with a negative number in it; one look at all of them where there is none."""
    if not tensors or torch.cat([tensor.reshape(-1) for tensor in tensors.values()]).min() >= 0:
        return None
    return next(name for name, tensor in tensors.items() if (tensor < 0).any())


def all_finite_norms(tensors: list[Tensor]) -> bool:
    """Whether no norm is NaN or ∞; a finite tensor may still overflow its norm, so False is not the last word."""
    return all(math.isfinite(norm) for norm in torch._foreach_norm(tensors, 2))
