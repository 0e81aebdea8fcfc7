"""What is exported: a trained model's tensors, and all that must be known beside them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from fl_core.models import build_model
from fl_core.roles import Tensors


@dataclass(frozen=True)
class Subject:
    """One trained model."""

    network: str  # a key of MODELS
    tensors: Tensors  # its state_dict
    classes: tuple[str, ...]
    size: int  # pixels a side of the patches that it was trained on
    about: dict[str, str]  # run, round, algorithm, site: where it comes from

    @property
    def title(self) -> str:
        """What it is called."""
        return f"mammofed run {self.about['run']}, round {self.about['round']}"

    @cached_property
    def channels(self) -> int:
        """Channels of a patch, as the first layer's weight takes them."""
        stem, _ = next(build_model(self.network, 1, len(self.classes), seed=0).named_parameters())
        return int(self.tensors[stem].shape[1])

    def model(self, tensors: Tensors | None = None) -> nn.Module:
        """The network with its trained tensors, or with others in their place, ready to score."""
        model = build_model(self.network, self.channels, len(self.classes), seed=0)
        model.load_state_dict(self.tensors if tensors is None else tensors)
        return model.eval()

    def patches(self, count: int = 8) -> Tensor:
        """Random patches (B, C, H, W) in [0, 1], from coarse to fine, from dark to bright."""
        generator = torch.Generator().manual_seed(0)
        shape = (count, self.channels, self.size, self.size)
        fine = torch.rand(shape, generator=generator)
        coarse = torch.rand((count, self.channels, 4, 4), generator=generator)
        smooth = nn.functional.interpolate(coarse, shape[2:], mode="bilinear")
        share = torch.linspace(0, 1, count).view(-1, 1, 1, 1)
        return (share * fine + (1 - share) * smooth) * torch.linspace(0.3, 1, count).view(-1, 1, 1, 1)
