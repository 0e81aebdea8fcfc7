"""Models: batch norm found by type; other normalisations work where they make sense, and are refused elsewhere."""

import pytest
import torch
from torch import nn

from fl_core.family import ALGORITHMS
from fl_core.models import MODELS, build_model, check_fit, for_one_process
from fl_core.roles import batch_norms, roles
from fl_core.traffic import traffic
from mammofed.errors import BadSetting
from tests.laws.toy import CLASSES, DIFFERENT, effective_model, plan, train

ABOUT_BN = [name for name, row in ALGORITHMS.items() if row.needs_batch_norm]
NOT_ABOUT_BN = [name for name in ALGORITHMS if name not in ABOUT_BN]


@pytest.mark.parametrize(("name", "layers"), [("densenet121", 121), ("resnet18", 20), ("densenet-small", 28)])
def test_every_batch_norm_layer_is_found(name: str, layers: int) -> None:
    model = build_model(name, 1, 5, seed=0)
    assert len(batch_norms(model)) == layers
    found = roles(model)
    assert {*found.parameters, *found.statistics, *found.counters, *found.buffers} == set(model.state_dict())
    assert len(found.statistics) == 2 * layers
    assert len(found.bn_parameters) == 2 * layers
    assert set(MODELS) == {"densenet121", "resnet18", "densenet-small"}


def test_a_model_has_its_weights_from_the_seed_and_leaves_torch_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one, same, other = (build_model("densenet-small", 1, 5, seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    key = "features.conv0.weight"
    assert torch.equal(one[key], same[key])
    assert not torch.equal(one[key], other[key])


def test_an_unknown_model_raises() -> None:
    with pytest.raises(BadSetting, match="choose one of densenet121"):
        build_model("vgg", 1, 5, 0)


def net_with(norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), norm, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, len(CLASSES))
    ).double()


NORMS = {
    "GroupNorm": nn.GroupNorm(2, 4),
    "InstanceNorm2d": nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "nothing": nn.Identity(),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", NOT_ABOUT_BN)
def test_other_normalisations_train_where_it_makes_sense(name: str, norm: str) -> None:
    last = train(DIFFERENT, plan(name, rounds=2), lambda: net_with(NORMS[norm]))
    assert all(tensor.isfinite().all() for tensor in effective_model(last).values())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ABOUT_BN)
def test_rows_about_batch_norm_refuse_a_model_without_it(name: str, norm: str) -> None:
    with pytest.raises(BadSetting, match=f"the model has none.*{norm}"):
        check_fit(ALGORITHMS[name], net_with(NORMS[norm]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sync_batch_norm_is_batch_norm_at_a_site(name: str) -> None:
    def sync() -> nn.Module:
        return for_one_process(net_with(nn.SyncBatchNorm(4)))

    got = train(DIFFERENT, plan(name), sync)
    wanted = train(DIFFERENT, plan(name), lambda: net_with(nn.BatchNorm2d(4)))
    assert all(torch.equal(t, effective_model(wanted)[n]) for n, t in effective_model(got).items())


def test_batch_norm_without_running_statistics_is_refused_where_they_are_needed() -> None:
    bare = net_with(nn.BatchNorm2d(4, track_running_stats=False))
    with pytest.raises(BadSetting, match="layer '1' keeps none"):
        check_fit(ALGORITHMS["bn-scaffold"], bare)
    check_fit(ALGORITHMS["fedavg"], bare)


@pytest.mark.parametrize("name", ["bn-scaffold", "bn-scaffold-std", "fixbn", "fedtan"])
def test_batch_norm_without_weights_trains(name: str) -> None:
    last = train(DIFFERENT, plan(name), lambda: net_with(nn.BatchNorm2d(4, affine=False)))
    assert last.record["loss"] < 2


def test_traffic_is_counted_from_the_model() -> None:
    model = build_model("densenet121", 1, 5, 0)
    parts, state = roles(model), model.state_dict()
    w, s = (sum(state[n].numel() * 4 for n in names) for names in (parts.parameters, parts.statistics))
    counters = 8 * len(parts.counters)
    assert traffic(ALGORITHMS["fedavg"], model).bytes == w + s + counters
    assert traffic(ALGORITHMS["bn-scaffold"], model).bytes == 2 * w + 2 * s + counters
    assert traffic(ALGORITHMS["bn-scaffold"], model).formula == "2|W| + 2|S|"
    assert traffic(ALGORITHMS["silobn+scaffold"], model).formula == "2|W|"
    assert traffic(ALGORITHMS["fedtan"], model).exchanges == 1 + 363
    assert traffic(ALGORITHMS["local"], model).bytes == 0
