"""What server and sites hold between rounds, and what travels: frozen values, never changed in place."""

from dataclasses import dataclass, field

from fl_core.roles import Tensors


@dataclass(frozen=True)
class ServerState:
    """The federation after `round` committed rounds."""

    round: int
    model: Tensors  # w, running statistics and counters, by state_dict name
    c: Tensors = field(default_factory=dict)  # Σ P_i c_i, by parameter name; empty: not measured yet
    k: Tensors = field(default_factory=dict)  # Σ P_i k_i (or pooled), by statistic name; empty: not measured yet


@dataclass(frozen=True)
class SiteState:
    """What one site keeps: its variates, its private tensors, and how far it is in its data."""

    batches: int = 0  # batches drawn so far: position in the site's endless, seeded order
    loss_scale: float = 2.0**16  # of fp16 training on GPUs
    c: Tensors = field(default_factory=dict)
    k: Tensors = field(default_factory=dict)
    private: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """What one site sends after a round; private tensors never appear in it."""

    site: str
    round: int  # the round that it was trained in, counted from 1
    patches: int  # n_i
    steps: int  # E, as really taken
    loss: float  # mean training loss over the steps
    model: Tensors
    c: Tensors
    k: Tensors
    loss_error: float | None = None  # standard error of `loss` over the steps' batches; None after a single one


def without(tensors: Tensors, names: frozenset[str]) -> Tensors:
    """The tensors that are not among the names."""
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def byte_size(tensors: Tensors) -> int:
    """Bytes that the tensors take in memory and on the wire."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
