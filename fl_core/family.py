"""Algorithm name → one row of the table: three corrections (φ and ψ, Φ) and three choices.

φ corrects the batch statistics that normalise a batch, ψ the gradient that flows into them, Φ the descent
direction of the weights. The choices: where a site measures its next control variates, which tensors leave it,
and whether the data are pooled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fl_core.exchange import Exchange, layerwise
from fl_core.norm import (
    BatchNorms,
    Correction,
    Forward,
    PathRecord,
    affine,
    differ,
    linear,
    running_statistics,
    standardised,
    uncorrected,
)
from fl_core.roles import Roles, Tensors
from mammofed.errors import BadSetting

MEMORY = 0.7  # M, of the standardised form: a round's path alone is led astray by its own steps (docs/LOG.md)


@dataclass(frozen=True)
class NormTask:
    """What φ may look at when a site starts a round."""

    norms: BatchNorms
    own: Tensors = field(default_factory=dict)  # k_i
    server: Tensors = field(default_factory=dict)  # k
    floor: float = 1e-2  # σ²_ths
    frozen: bool = False  # the round starts at or after iteration T*
    exchange: Exchange | None = None


@dataclass(frozen=True)
class Phi:
    """How the batches of one round are normalised, step by step."""

    forward: Callable[[int], Forward | None] = lambda step: None  # None: torch's own batch normalisation
    after_step: Callable[[], None] = lambda: None
    variates: Callable[[], Tensors] = dict  # k_i⁺ along the path (option II)


def local_statistics(task: NormTask) -> Phi:
    """Each batch by its own statistics: plain batch normalisation."""
    return Phi()


def server_statistics_late(task: NormTask) -> Phi:
    """φ = the server's running statistics and ψ = 0 from iteration T* on (FixBN)."""

    def frozen(index: int, x: Tensor) -> Tensor:
        layer = task.norms.layers[index]
        return F.batch_norm(x, *running_statistics(layer), *affine(layer), False, 0.0, layer.eps)

    return Phi(forward=lambda step: frozen) if task.frozen else Phi()


def mean_statistics_first(task: NormTask) -> Phi:
    """φ = ψ = the mean over the sites, layer by layer, in the first local step of a round (FedTAN)."""
    if task.exchange is None:
        raise BadSetting("fedtan needs the layer-wise exchange between sites, and none was given")
    first = layerwise(task.norms, task.exchange)
    return Phi(forward=lambda step: None if step else first)


def recorded(task: NormTask, correction: Correction) -> Phi:
    """Every step by the correction, with the raw statistics recorded along the path."""
    record = PathRecord(task.norms)
    return Phi(lambda step: correction.forward, lambda: record.take(correction), record.variates)


def less_linear_drift(task: NormTask) -> Phi:
    """φ = s − k_i + k, the variance clipped at σ²_ths (BN-SCAFFOLD, the paper's form)."""
    if not differ(task.own, task.server):
        return recorded(task, uncorrected(task.norms))
    return recorded(task, linear(task.norms, task.own, task.server, task.floor))


def less_standardised_drift(task: NormTask) -> Phi:
    """φ in standardised form: scale-free, and towards the statistics of the pooled data."""
    corrected = differ(task.own, task.server)
    phi = recorded(task, standardised(task.norms, task.own, task.server) if corrected else uncorrected(task.norms))
    return replace(phi, variates=lambda: remembered(task.own, phi.variates()))


def remembered(own: Tensors, new: Tensors) -> Tensors:
    """k_i⁺ = M k_i + (1 − M) k, with k along this round's path; a site without variates takes k itself."""
    return {name: torch.lerp(k, own[name].to(k), MEMORY) for name, k in new.items()} if own else new


def less_drift(own: Tensors, server: Tensors) -> Tensors:
    """Φ − g = c − c_i for each weight (SCAFFOLD); nothing for a site without variates of its own."""
    return {name: server[name].to(c_i) - c_i for name, c_i in own.items()}


def nothing(roles: Roles) -> frozenset[str]:
    """Every tensor leaves the site."""
    return frozenset()


def bn_tensors(roles: Roles) -> frozenset[str]:
    """Batch-norm weight, bias and running statistics stay (FedBN)."""
    return frozenset(roles.bn_tensors)


def bn_statistics(roles: Roles) -> frozenset[str]:
    """Only the running statistics stay (SiloBN)."""
    return frozenset(roles.statistics + roles.counters)


def everything(roles: Roles) -> frozenset[str]:
    """No tensor leaves the site."""
    return frozenset(roles.parameters + roles.bn_tensors + roles.buffers)


@dataclass(frozen=True)
class Algorithm:
    """One row of the table."""

    name: str
    differs: str  # from fedavg, in one line
    bn_policy: str  # what happens to batch normalisation, in one line
    statistics: Callable[[NormTask], Phi] = local_statistics  # φ and ψ
    weight_grad: Callable[[Tensors, Tensors], Tensors] | None = None  # Φ − g; None: the raw gradient
    measured_at_start: bool = False  # option I: at the server's weights over all data; else II: along the path
    private: Callable[[Roles], frozenset[str]] = nothing
    pooled: bool = False
    k: Literal["none", "mean", "pooled"] = (
        "none"  # what the server makes of the k_i: Σ P_i k_i, or pooled statistics
    )

    @property
    def corrects_statistics(self) -> bool:
        """Whether the row has variates k."""
        return self.k != "none"

    @property
    def meets_layerwise(self) -> bool:
        """Whether the sites must train at the same time, and meet in every layer."""
        return self.statistics is mean_statistics_first

    @property
    def freezes(self) -> bool:
        """Whether the row has an iteration T*."""
        return self.statistics is server_statistics_late

    @property
    def needs_batch_norm(self) -> bool:
        """Whether the row would silently be another one on a model without batch normalisation."""
        return self.statistics is not local_statistics or self.private in (bn_tensors, bn_statistics)


FEDAVG = Algorithm("fedavg", "–", "batch statistics at each site; running statistics averaged")
FEDBN = Algorithm(
    "fedbn",
    "BN weight, bias and running statistics stay at the site",
    "all BN tensors private: one model a site",
    private=bn_tensors,
)
SILOBN = Algorithm(
    "silobn",
    "only the BN running statistics stay at the site",
    "running statistics private: one model a site",
    private=bn_statistics,
)
FIXBN = Algorithm(
    "fixbn",
    "from iteration T* on: φ = the server's running statistics, ψ = 0",
    "as fedavg, then frozen at the server's running statistics",
    statistics=server_statistics_late,
)
SCAFFOLD = replace(
    FEDAVG, name="scaffold", differs="Φ = g − c_i + c, option II: c_i along the path", weight_grad=less_drift
)
BN_SCAFFOLD = replace(
    SCAFFOLD,
    name="bn-scaffold",
    differs="SCAFFOLD, and φ = s − k_i + k with the variance clipped, option II",
    bn_policy="batch statistics shifted by k − k_i; running statistics of the shifted ones averaged",
    statistics=less_linear_drift,
    k="mean",
)


BN_STD = Algorithm(
    "bn-std",
    "φ in standardised form, option II; the gradient as it is",
    "batch statistics rescaled to those of the pooled data; running ones likewise averaged",
    statistics=less_standardised_drift,
    k="pooled",
)


def with_scaffold(row: Algorithm) -> Algorithm:
    """The row with Φ and option II of SCAFFOLD; a private tensor has no variate."""
    return replace(
        row, name=f"{row.name}+scaffold", differs=f"{row.name}, and Φ of scaffold", weight_grad=less_drift
    )


ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        replace(
            FEDAVG,
            name="centralized",
            differs="all data pooled, batch N × B",
            bn_policy="plain BN",
            pooled=True,
        ),
        replace(
            FEDAVG,
            name="local",
            differs="nothing is shared: one model a site",
            bn_policy="plain BN at each site",
            private=everything,
        ),
        FEDAVG,
        FEDBN,
        SILOBN,
        FIXBN,
        Algorithm(
            "fedtan",
            "first local step of a round: φ = ψ = the mean over the sites, layer by layer",
            "batch statistics of all sites in the first step, then local; running statistics averaged",
            statistics=mean_statistics_first,
        ),
        replace(SCAFFOLD, name="scaffold-1", differs="Φ = g − c_i + c, option I", measured_at_start=True),
        SCAFFOLD,
        with_scaffold(FEDBN),
        with_scaffold(SILOBN),
        with_scaffold(FIXBN),
        replace(
            BN_SCAFFOLD,
            name="bn-scaffold-1",
            differs="SCAFFOLD, and φ = s − k_i + k with the variance clipped, option I",
            measured_at_start=True,
        ),
        BN_SCAFFOLD,
        BN_STD,
        replace(
            BN_STD,
            name="bn-scaffold-std",
            differs="SCAFFOLD, and φ in standardised form, option II",
            weight_grad=less_drift,
        ),
    )
}


def algorithm_named(name: str) -> Algorithm:
    """The row of that name, or an error that lists all names."""
    if name not in ALGORITHMS:
        raise BadSetting(f"algorithm {name!r}: choose one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]
