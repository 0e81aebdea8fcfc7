"""Model → what each of its tensors is: weight, batch-norm weight, running statistic, counter.

Layers are found by module type, never by name: MONAI's DenseNet-121 has 121 batch-norm modules and not one
key with "bn" in it.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Tensors = dict[str, Tensor]  # by the name that the tensor has in the model's state_dict


@dataclass(frozen=True)
class Roles:
    """The names of a model's tensors by role; together they are its state_dict."""

    parameters: tuple[str, ...]  # W, the batch-norm weights and biases among them
    bn_parameters: tuple[str, ...]
    statistics: tuple[str, ...]  # S: running_mean and running_var of the batch-norm layers, in layer order
    counters: tuple[str, ...]  # integers: num_batches_tracked
    buffers: tuple[str, ...]  # other floating-point buffers, averaged as weights are

    @property
    def bn_tensors(self) -> tuple[str, ...]:
        """All that belongs to batch normalisation."""
        return self.bn_parameters + self.statistics + self.counters


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Every batch-norm layer by name, in the order of the model."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}


def statistic_names(layer: str) -> tuple[str, str]:
    """Names of a batch-norm layer's running mean and variance."""
    prefix = f"{layer}." if layer else ""
    return f"{prefix}running_mean", f"{prefix}running_var"


def roles(model: nn.Module) -> Roles:
    """Sort the tensors of a model's state_dict by role."""
    state = model.state_dict()
    norms = batch_norms(model)
    parameters = tuple(name for name, _ in model.named_parameters() if name in state)
    statistics = tuple(name for layer in norms for name in statistic_names(layer) if name in state)
    counters = tuple(name for name, tensor in state.items() if not tensor.is_floating_point())
    known = {*parameters, *statistics, *counters}
    owner = {name: name.rpartition(".")[0] for name in parameters}
    return Roles(
        parameters=parameters,
        bn_parameters=tuple(name for name in parameters if owner[name] in norms),
        statistics=statistics,
        counters=counters,
        buffers=tuple(name for name in state if name not in known),
    )
