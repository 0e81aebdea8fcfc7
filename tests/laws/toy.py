"""A tiny network and tiny sites in float64, on which the laws of the algorithm family hold exactly."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from fl_core.crew import Task
from fl_core.data import ArrayPatches, SiteData
from fl_core.local import Workplace
from fl_core.plan import Plan
from fl_core.roles import Tensors
from fl_core.rounds import Federation, Moment, run_rounds
from fl_core.schedule import Schedule

CLASSES = ("a", "b", "c")
DECAYING = Schedule(0.2, milestones=(1, 2, 4, 7), factor=0.7, warmup=3)


class TinyNet(nn.Module):
    """Two convolutions, each with batch normalisation, and a linear read-out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.second, self.norm2 = nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)
        self.out = nn.Linear(5, len(CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm1(self.first(x)))
        x = torch.tanh(self.norm2(self.second(x)))
        found: torch.Tensor = self.out(x.mean((2, 3)))
        return found


def linear_net() -> nn.Module:
    """A convex problem: multinomial logistic regression."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, len(CLASSES))).double()


def tiny_net(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(5)
    return TinyNet().to(dtype)


def patches(n: int, seed: int, gain: float = 1.0, offset: float = 0.0, stripe: float = 1.0) -> ArrayPatches:
    """Noise with a class-dependent stripe, in a site's own grey scale."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(CLASSES), n)
    images = rng.normal(size=(n, 1, 6, 6))
    images[np.arange(n), 0, 2 * labels] += stripe
    return ArrayPatches((gain * images + offset).astype(np.float32), labels, CLASSES)


def site(name: str, seed: int, n: int = 16, gain: float = 1.0, offset: float = 0.0) -> SiteData:
    return SiteData(name, patches(n, seed, gain, offset), patches(12, seed + 100, gain, offset), seed)


ALICE = site("a", 1)
BOB = site("b", 2, n=24, gain=2.5, offset=1.0)
TWINS = (ALICE, replace(ALICE, name="twin"))
DIFFERENT = (ALICE, BOB)


def plan(algorithm: str, **changes: Any) -> Plan:
    """Three rounds of three steps under a decaying rate; FixBN freezes in the second."""
    usual: dict[str, Any] = {
        "model": "tiny",
        "schedule": DECAYING,
        "rounds": 3,
        "local_steps": 3,
        "batch": 8,
        "device": "cpu",
        "freeze_from": 3,
        "evaluate_every": 99,
        "channels_last": False,
    }
    return Plan(algorithm, **{**usual, **changes})


def train(sites: tuple[SiteData, ...], planned: Plan, net: Any = tiny_net, workers: int = 0) -> Moment:
    """The last moment of a run."""
    federation = Federation(planned, partial(net), sites)
    *_, last = run_rounds(federation, report=lambda evaluation: {}, workers=workers)
    return last


def effective_model(moment: Moment, name: str = "a") -> Tensors:
    """The tensors that serve a site: the server's, and its own where they are private."""
    private = moment.states[name].private if name in moment.states else {}
    return {**moment.server.model, **private}


def place_for(planned: Plan, net: Any = tiny_net) -> Workplace:
    return Task(planned, net, ()).workplace()


def assert_same(got: Tensors, wanted: Tensors, tolerance: float = 0.0) -> None:
    """Equal names, and values equal to the last bit, or within the tolerance."""
    assert got.keys() == wanted.keys()
    for name, tensor in got.items():
        assert tensor.dtype == wanted[name].dtype, name
        if tolerance and tensor.is_floating_point():
            torch.testing.assert_close(tensor, wanted[name], atol=tolerance, rtol=tolerance, msg=name)
        else:
            assert torch.equal(tensor, wanted[name]), f"{name} differs by {(tensor - wanted[name]).abs().max()}"


def distance(one: Tensors, other: Tensors) -> float:
    """Largest difference over all floating-point tensors."""
    return max(float((one[n] - other[n]).abs().max()) for n in one if one[n].is_floating_point())
