"""The laws of the algorithm family over every row of the table, and bugs planted to see them fail."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_core.data import SiteData, draw
from fl_core.family import ALGORITHMS, Algorithm, NormTask, Phi, local_statistics, nothing, recorded
from fl_core.local import first_state, train_round
from fl_core.norm import Correction, linear, uncorrected
from fl_core.roles import Tensors
from fl_core.schedule import Schedule
from fl_core.state import SiteState
from tests.laws import laws
from tests.laws.toy import (
    ALICE,
    BOB,
    DIFFERENT,
    assert_same,
    distance,
    effective_model,
    linear_net,
    patches,
    place_for,
    plan,
    site,
    tiny_net,
    train,
)

ROWS = list(ALGORITHMS)
SITES_APART = [name for name in ROWS if not ALGORITHMS[name].pooled]
ALONE = [name for name in SITES_APART if not ALGORITHMS[name].meets_layerwise]
WITH_VARIATES = [name for name in ROWS if ALGORITHMS[name].weight_grad]


def test_the_table_has_its_sixteen_rows() -> None:
    assert len(ROWS) == 16
    assert all(name == row.name for name, row in ALGORITHMS.items())


@pytest.mark.parametrize("name", ROWS)
def test_one_site_is_fedavg(name: str) -> None:
    laws.one_site_is_fedavg(name)


@pytest.mark.parametrize("name", SITES_APART)
def test_twin_sites_are_fedavg(name: str) -> None:
    laws.twin_sites_are_fedavg(name)


@pytest.mark.parametrize("name", ALONE)
def test_a_round_is_the_formula_in_plain_autograd(name: str) -> None:
    laws.path_is_the_formula(name)


@pytest.mark.parametrize("name", ROWS)
def test_private_tensors_never_leave(name: str) -> None:
    laws.private_tensors_stay(name)


@pytest.mark.parametrize("name", WITH_VARIATES)
def test_server_variates_are_means_of_the_sites(name: str) -> None:
    laws.variates_are_means(name)


@pytest.mark.parametrize("name", [name for name in WITH_VARIATES if ALGORITHMS[name].private is nothing])
def test_the_first_round_is_fedavg_bit_for_bit(name: str) -> None:
    laws.first_round_is_fedavg(name)


def test_all_rows_differ_on_different_sites() -> None:
    ends = {name: effective_model(train(DIFFERENT, plan(name))) for name in ROWS}
    alike = [pair for pair in combinations(ROWS, 2) if distance(ends[pair[0]], ends[pair[1]]) < 1e-6]
    assert not alike


@pytest.mark.parametrize("channels_last", [False, True])
def test_fedavg_is_plain_torch_bit_for_bit(channels_last: bool) -> None:
    planned = plan("fedavg", rounds=2, channels_last=channels_last)
    model = tiny_net(torch.float32)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(6):
        chosen = draw(ALICE, planned.batch, step)
        x = torch.from_numpy(ALICE.train.read(chosen))
        optimiser.param_groups[0]["lr"] = planned.schedule(step)
        loss = F.cross_entropy(
            model(x.to(memory_format=torch.channels_last) if channels_last else x),
            torch.from_numpy(ALICE.train.labels[chosen]),
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    got = train((ALICE,), planned, lambda: tiny_net(torch.float32)).server.model
    assert_same(got, dict(model.state_dict()))


def test_fedtan_with_one_step_is_one_centralized_step() -> None:
    sites = (ALICE, site("b", 2, gain=2.5, offset=1.0))
    whole = {"local_steps": 1, "batch": 16, "rounds": 3}
    pooled = train(sites, plan("centralized", **whole)).server.model
    assert_same(train(sites, plan("fedtan", **whole)).server.model, pooled, 1e-9)
    assert distance(train(sites, plan("fedavg", **whole)).server.model, pooled) > 1e-3


def test_fedtan_weighs_unequal_batches_by_their_size() -> None:
    whole = {"local_steps": 1, "batch": 24, "rounds": 2}  # a batch holds all 16 and all 24 patches
    pooled = train(DIFFERENT, plan("centralized", **whole)).server.model
    assert_same(train(DIFFERENT, plan("fedtan", **whole)).server.model, pooled, 1e-9)


def test_fedtan_meets_three_times_a_layer_in_the_first_step_only() -> None:
    meetings: list[int] = []

    def exchange(values: Tensor, weight: int) -> tuple[Tensor, int]:
        meetings.append(weight)
        return values, weight

    place = place_for(plan("fedtan"))
    train_round(place, ALICE, first_state(place.model), SiteState(), exchange)
    assert len(meetings) == 3 * len(place.norms.layers)


def faint(name: str, seed: int, gain: float) -> SiteData:
    """A site for logistic regression: many patches with a faint sign of their class, so the optimum is finite."""
    found = patches(300, seed, gain, stripe=0.2)
    return SiteData(name, found, found, seed)


CONVEX = (faint("a", 1, 1.0), faint("b", 2, 2.0))
WHOLE = {"local_steps": 10, "batch": 300, "schedule": Schedule(0.3), "rounds": 40}


def test_scaffold_reaches_the_optimum_and_a_flipped_sign_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    optimum = train(CONVEX, plan("centralized", **WHOLE), linear_net).server.model
    apart = {}
    for name in ("fedavg", "scaffold"):
        apart[name] = distance(train(CONVEX, plan(name, **WHOLE), linear_net).server.model, optimum)
    monkeypatch.setitem(ALGORITHMS, "scaffold", replace(ALGORITHMS["scaffold"], weight_grad=more_drift))
    flipped = distance(train(CONVEX, plan("scaffold", **WHOLE), linear_net).server.model, optimum)
    assert apart["scaffold"] < 1e-3 * apart["fedavg"]
    assert flipped > 1.2 * apart["fedavg"]


def test_frozen_fixbn_is_training_in_eval_mode() -> None:
    planned = plan("fixbn", freeze_from=0)
    start = train((ALICE,), plan("fedavg")).server  # running statistics that are not the initial ones
    update, _ = train_round(place_for(planned), ALICE, start, SiteState())
    model = tiny_net()
    model.load_state_dict(start.model)
    model.eval()
    for step in range(planned.local_steps):
        chosen = draw(ALICE, planned.batch, step)
        x = torch.from_numpy(ALICE.train.read(chosen)).double()
        loss = F.cross_entropy(model(x), torch.from_numpy(ALICE.train.labels[chosen]))
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads, strict=True):
                parameter.sub_(planned.schedule(start.round * planned.local_steps + step) * grad)
    assert_same(update.model, dict(model.state_dict()), 1e-12)


@pytest.mark.parametrize("name", ["scaffold-1", "bn-scaffold-1"])
def test_option_one_measures_at_the_servers_weights_over_all_data(name: str) -> None:
    planned = plan(name, batch=16)  # one batch holds all of the site's patches
    place = place_for(planned)
    update, _ = train_round(place, ALICE, first_state(place.model), SiteState())
    model = tiny_net()
    raw: dict[str, Tensor] = {}
    for layer_name, layer in model.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_hook(remember(raw, layer_name))
    x = torch.from_numpy(ALICE.train.read(np.arange(ALICE.patches))).double()
    F.cross_entropy(model(x), torch.from_numpy(ALICE.train.labels)).backward()
    assert_same(update.c, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, 1e-12)
    for key, tensor in update.k.items():
        torch.testing.assert_close(tensor, raw[key], atol=1e-12, rtol=1e-12)
    assert bool(update.k) == (name == "bn-scaffold-1")


def remember(raw: dict[str, Tensor], name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        raw[f"{name}.running_mean"] = inputs[0].mean((0, 2, 3))
        raw[f"{name}.running_var"] = inputs[0].var((0, 2, 3), correction=0)

    return hook


def test_the_papers_closed_formula_holds_without_clipping() -> None:
    """k_i⁺ = k_i − k + (ŝ_E − ρ^E ŝ_0)/(1 − ρ^E), with torch's running variance made the biased one."""
    planned = plan("bn-scaffold", variance_floor=1e-12)
    server, states = laws.round_two("bn-scaffold")
    own = states["b"]
    update, _ = train_round(place_for(planned), BOB, server, own)
    decay = 0.9**planned.local_steps
    for key, k in update.k.items():
        n = planned.batch * (16 if key.startswith("norm1") else 4)  # 4 × 4 and 2 × 2 pixels
        bessel = (n - 1) / n if key.endswith("running_var") else 1.0
        run = bessel * (update.model[key] - decay * server.model[key]) / (1 - decay)
        torch.testing.assert_close(own.k[key] - server.k[key] + run, k, atol=1e-12, rtol=1e-12)


def test_clipping_bounds_the_corrected_variance_and_never_enters_k() -> None:
    planned = plan("bn-scaffold", variance_floor=50.0)
    server, states = laws.round_two("bn-scaffold")
    update, _ = train_round(place_for(planned), ALICE, server, states["a"])
    assert all((update.model[key] > 10).all() for key in update.k if key.endswith("running_var"))
    assert all((update.k[key] < 50).all() for key in update.k if key.endswith("running_var"))


def test_the_standardised_form_does_not_see_the_scale_of_the_weights() -> None:
    server, states = laws.round_two("bn-scaffold-std")
    planned = plan("bn-scaffold-std", rounds=9)
    losses = []
    for scale in (1.0, 7.0):
        scaled = {key: value * scale if key == "first.weight" else value for key, value in server.model.items()}
        grown = {"norm1.running_mean": scale, "norm1.running_var": scale**2}
        k = {key: value * grown.get(key, 1.0) for key, value in server.k.items()}
        own = replace(states["a"], c={}, k={key: v * grown.get(key, 1.0) for key, v in states["a"].k.items()})
        seen: list[float] = []
        train_round(
            place_for(replace(planned, local_steps=1)),
            ALICE,
            replace(server, model=scaled, k=k),
            own,
            progress=lambda step, loss, seen=seen: seen.append(loss),  # type: ignore[misc]
        )
        losses += seen
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)  # up to eps in the square roots


def more_drift(own: Tensors, server: Tensors) -> Tensors:
    return {name: c_i - server[name] for name, c_i in own.items()}


def no_phi(task: NormTask) -> Phi:
    return recorded(task, uncorrected(task.norms))


def no_psi(task: NormTask) -> Phi:
    """The linear φ, but the statistics carry no gradient."""
    if not task.own:
        return no_phi(task)
    right = linear(task.norms, task.own, task.server, task.floor)

    def forward(index: int, x: Tensor) -> Tensor:
        right.forward(index, x.detach())
        layer, (mean, var) = task.norms.layers[index], task.norms.raw[index]
        n = task.norms.counts[index]
        keys = [f"{task.norms.names[index]}.{name}" for name in ("running_mean", "running_var")]
        shift, spread = (task.server[key] - task.own[key] for key in keys)
        clipped = (var * (n - 1) / n + spread).clamp(min=task.floor)
        return F.batch_norm(x, mean + shift, clipped, layer.weight, layer.bias, False, 0.0, layer.eps)

    return recorded(task, Correction(forward, right.running))


LAWS = [
    laws.one_site_is_fedavg,
    laws.twin_sites_are_fedavg,
    laws.path_is_the_formula,
    laws.private_tensors_stay,
    laws.variates_are_means,
]
BUGS: dict[str, Algorithm] = {
    "scaffold": replace(ALGORITHMS["scaffold"], weight_grad=more_drift),
    "scaffold without its variates": replace(ALGORITHMS["scaffold"], weight_grad=None),
    "bn-scaffold": replace(ALGORITHMS["bn-scaffold"], statistics=no_phi),
    "bn-scaffold without psi": replace(ALGORITHMS["bn-scaffold"], statistics=no_psi),
    "bn-scaffold-std": replace(ALGORITHMS["bn-scaffold-std"], statistics=no_phi),
    "bn-scaffold-std with the mean variance": replace(ALGORITHMS["bn-scaffold-std"], k="mean"),
    "fedbn": replace(ALGORITHMS["fedbn"], private=nothing),
    "silobn": replace(ALGORITHMS["silobn"], private=ALGORITHMS["fedbn"].private),
    "bn-scaffold-1 by plain statistics": replace(
        ALGORITHMS["bn-scaffold-1"], statistics=local_statistics, k="none"
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_breaks_a_law(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = BUGS[bug].name
    monkeypatch.setitem(ALGORITHMS, name, BUGS[bug])
    assert any(breaks(law, name) for law in LAWS)


def breaks(law: Callable[[str], None], name: str) -> bool:
    try:
        law(name)
    except (AssertionError, KeyError):
        return True
    return False
