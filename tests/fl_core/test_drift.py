"""Drift by layer: hand-computed distances, and none between twins."""

import math

import pytest
import torch
from torch import Tensor

from fl_core.drift import distance, drift, mean_of, relative, weights_by_layer
from fl_core.models import build_model
from fl_core.roles import roles
from fl_core.state import ServerState, SiteState, Update

PARTS = roles(build_model("densenet-small", 1, 3, 0))


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_distance_counts_shift_in_standard_deviations() -> None:
    one = vector(1.0, 1.0)
    assert distance(vector(2.0, 2.0), one * 4, vector(0.0, 0.0), one * 4) == pytest.approx(1.0, rel=1e-3)


def test_distance_counts_stretch_in_logarithms() -> None:
    zero = vector(0.0)
    assert distance(zero, vector(4.0), zero, vector(1.0)) == pytest.approx(math.log(2), rel=1e-3)
    assert distance(zero, vector(0.25), zero, vector(1.0)) == pytest.approx(math.log(2), rel=1e-3)


def test_relative_distance_of_gradients() -> None:
    own, centre = {"a": vector(3.0), "b": vector(0.0)}, {"a": vector(0.0), "b": vector(2.0)}
    assert relative(own, centre, ["a", "b"]) == pytest.approx(math.sqrt(9 + 4) / 2, rel=1e-3)
    assert relative(own, centre, ["c"]) is None
    assert relative(own, {"a": vector(0.0)}, ["a"]) is None


def test_every_weight_belongs_to_one_layer() -> None:
    layers = [name.removesuffix(".running_mean") for name in PARTS.statistics[0::2]]
    groups = weights_by_layer(PARTS, layers)
    assert sorted(name for names in groups for name in names) == sorted(PARTS.parameters)
    assert groups[0][:3] == ["features.conv0.weight", "features.norm0.weight", "features.norm0.bias"]


def test_variates_are_compared_where_there_are_some_else_what_was_sent() -> None:
    model = {name: tensor.clone() for name, tensor in build_model("densenet-small", 1, 3, 0).state_dict().items()}
    moved = {name: tensor + 1 for name, tensor in model.items() if name in PARTS.statistics[0::2]}
    sent = {name: moved.get(name, model[name]) for name in PARTS.statistics}
    update = Update("a", 1, 4, 2, 1.0, sent, {}, {})
    server = ServerState(1, model)
    found = drift(PARTS, server, {"a": SiteState(), "b": SiteState()}, [update])
    assert found.statistics["a"] == pytest.approx([1.0] * len(found.layers), rel=1e-3)
    assert found.statistics["b"] == [None] * len(found.layers)
    assert found.gradient["a"] == [None] * len(found.layers)
    k = {name: model[name] for name in PARTS.statistics}
    twin = drift(PARTS, ServerState(1, model, k=k), {"a": SiteState(k=k)}, [update])
    assert twin.statistics["a"] == [0.0] * len(found.layers)


def test_the_mean_leaves_out_layers_without_a_distance() -> None:
    assert mean_of([1.0, None, 3.0]) == 2.0
    assert mean_of([None]) is None
