"""Model name → a network with random weights; what a row of the table needs of it is checked here.

MONAI is imported where a network is built: it takes seconds, and a service that builds none need not wait.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from fl_core.device import seeded
from fl_core.family import Algorithm
from fl_core.roles import batch_norms
from mammofed.errors import BadSetting

Build = Callable[[int, int], nn.Module]  # (channels, classes) → network


def densenet121(channels: int, classes: int) -> nn.Module:
    """DenseNet-121 (MONAI), the paper's network for mammography."""
    from monai.networks.nets import DenseNet121

    return DenseNet121(spatial_dims=2, in_channels=channels, out_channels=classes)  # type: ignore[no-any-return]


def densenet_small(channels: int, classes: int) -> nn.Module:
    """A DenseNet for laptops and tests: three blocks of four layers."""
    from monai.networks.nets import DenseNet

    return DenseNet(  # type: ignore[no-any-return]
        2, channels, classes, init_features=16, growth_rate=12, block_config=(4, 4, 4), bn_size=4
    )


def resnet18(channels: int, classes: int) -> nn.Module:
    """ResNet-18 with projection shortcuts and its usual stem (MONAI), the paper's network for MNIST."""
    from monai.networks.nets import ResNet

    return ResNet(  # type: ignore[no-any-return]
        "basic",
        layers=[2, 2, 2, 2],
        block_inplanes=[64, 128, 256, 512],
        spatial_dims=2,
        n_input_channels=channels,
        conv1_t_size=7,
        conv1_t_stride=2,
        shortcut_type="B",
        num_classes=classes,
    )


MODELS: dict[str, Build] = {
    "densenet121": densenet121,
    "resnet18": resnet18,
    "densenet-small": densenet_small,
}


class OneProcessBatchNorm(_BatchNorm):
    """What SyncBatchNorm is at a site, which trains in one process: batch normalisation of any dimension."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        return


def build_model(name: str, channels: int, classes: int, seed: int) -> nn.Module:
    """The network of that name with weights from the seed."""
    if name not in MODELS:
        raise BadSetting(f"model {name!r}: choose one of {', '.join(MODELS)}")
    with seeded([seed], torch.device("cpu")):
        return for_one_process(MODELS[name](channels, classes))


def for_one_process(model: nn.Module) -> nn.Module:
    """Turn every SyncBatchNorm, which runs on GPUs only, into plain batch normalisation; tensors stay."""
    for layer in model.modules():
        if isinstance(layer, nn.SyncBatchNorm):
            layer.__class__ = OneProcessBatchNorm  # type: ignore[assignment]
    return model


def check_fit(algorithm: Algorithm, model: nn.Module) -> None:
    """Refuse a row that is about batch normalisation on a model that has none, or none that is tracked."""
    if not algorithm.needs_batch_norm:
        return
    norms = batch_norms(model)
    others = {type(m).__name__ for m in model.modules() if isinstance(m, nn.GroupNorm | nn.LayerNorm | _NormBase)}
    if not norms:
        raise BadSetting(
            f"algorithm {algorithm.name!r} is about batch normalisation, and the model has none "
            f"(it normalises by {', '.join(sorted(others)) or 'nothing'}): use fedavg or scaffold"
        )
    for name, layer in norms.items():
        if layer.running_mean is None or layer.momentum is None:
            raise BadSetting(
                f"algorithm {algorithm.name!r} needs running statistics, and layer {name!r} keeps none: "
                "give it track_running_stats=True and a momentum such as 0.1"
            )
