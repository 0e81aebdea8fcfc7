"""Updates that no honest site sends, and what is said of each."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from fl_core.state import Update

Change = Callable[[Update], Update]


def with_largest(update: Update, value: Callable[[torch.Tensor], torch.Tensor]) -> Update:
    """The update with another tensor in place of its largest."""
    name = max(update.model, key=lambda name: update.model[name].numel())
    return replace(update, model={**update.model, name: value(update.model[name])})


def with_variance(update: Update, value: Callable[[torch.Tensor], torch.Tensor]) -> Update:
    """The update with another of its variances."""
    name = next(name for name in update.model if name.endswith("running_var"))
    return replace(update, model={**update.model, name: value(update.model[name])})


def replaced(**fields: Any) -> Change:
    """Say something else."""
    return lambda update: replace(update, **fields)


LIES: Mapping[str, tuple[Change, str]] = {
    "shape": (lambda update: with_largest(update, lambda tensor: tensor[:1]), "is needed"),
    "nan": (lambda update: with_largest(update, lambda tensor: tensor * torch.nan), "is not finite"),
    "variance": (lambda update: with_variance(update, lambda tensor: -tensor), "is negative"),
    "norm": (lambda update: with_largest(update, lambda tensor: tensor + 1e3), "times the usual"),
    "round": (replaced(round=7), "of round 7"),
    "patches": (replaced(patches=10**6), "are enrolled"),
    "name": (replaced(site="hospital-1"), "it says that it comes from"),
    "loss": (replaced(loss=float("nan")), "loss nan"),
    "loss's error": (replaced(loss_error=-1.0), "± -1.0"),
    "size": (lambda update: with_largest(update, lambda tensor: tensor.repeat(50, 1, 1, 1)), "at most"),
}
