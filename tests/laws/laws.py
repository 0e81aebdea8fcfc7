"""The laws as functions of an algorithm's name, so that they can be held against planted bugs as well."""

import torch
from torch import nn

from fl_core.family import ALGORITHMS
from fl_core.local import first_state, train_round
from fl_core.plan import Plan
from fl_core.roles import batch_norms
from fl_core.state import ServerState, SiteState
from tests.laws import reference
from tests.laws.toy import ALICE, DIFFERENT, TWINS, assert_same, effective_model, place_for, plan, tiny_net, train

NEVER = 10**9  # an iteration T* that does not come: frozen statistics are another algorithm on one site too


def one_site_is_fedavg(name: str) -> None:
    """With one site there is no drift to correct, and nothing to keep private."""
    alone = train((ALICE,), plan(name, freeze_from=NEVER))
    tolerance = 1e-12 if ALGORITHMS[name].meets_layerwise else 0.0
    assert_same(effective_model(alone), effective_model(train((ALICE,), plan("fedavg"))), tolerance)


def twin_sites_are_fedavg(name: str) -> None:
    """Sites with equal data in equal order agree with each other, and with one of them alone."""
    twins = effective_model(train(TWINS, plan(name, freeze_from=NEVER)))
    wanted = effective_model(train((ALICE,), plan("fedavg")))
    if ALGORITHMS[name].meets_layerwise:  # n/(n − 1) of all sites' values is another running variance
        compared = [key for key in twins if not key.endswith("running_var")]
        assert_same({key: twins[key] for key in compared}, {key: wanted[key] for key in compared}, 1e-12)
    else:
        assert_same(twins, wanted)


STANDARDISED = ("bn-std", "bn-scaffold-std")


def round_two(name: str) -> tuple[ServerState, dict[str, SiteState]]:
    """A federation of different sites after one round: its variates are not zero."""
    moment = train(DIFFERENT, plan(name, rounds=1, freeze_from=NEVER))
    return moment.server, dict(moment.states)


def path_is_the_formula(name: str) -> None:
    """Weights, statistics and variates after a corrected round ≡ plain autograd on the formulas."""
    planned = plan(name, freeze_from=NEVER)
    server, states = round_two(name)
    for data in DIFFERENT:
        own = states[data.name]
        update, _ = train_round(place_for(planned), data, server, own)
        model = tiny_net()
        met = reference.walk(model, data, planned, server, own, formula(name, own, server, planned))
        end = model.state_dict()
        floats = [key for key in update.model if end[key].is_floating_point()]
        assert_same({key: update.model[key] for key in floats}, {key: end[key] for key in floats}, 1e-9)
        if not ALGORITHMS[name].measured_at_start:
            c, k = reference.mean_gradient(met), reference.mean_statistics(met)
            assert_same(update.c, {key: c[key] for key in update.c}, 1e-9)
            old = 0.7 if name in STANDARDISED else 0.0  # share of the rounds before
            assert_same(update.k, {key: old * own.k[key] + (1 - old) * k[key] for key in update.k}, 1e-9)


def formula(name: str, own: SiteState, server: ServerState, planned: Plan) -> reference.Correct | None:
    """The φ that the row of that name is described by."""
    if name in ("bn-scaffold", "bn-scaffold-1"):
        return reference.linear_form(own.k, server.k, planned.variance_floor)
    return reference.standard_form(own.k, server.k) if name in STANDARDISED else None


def private_tensors_stay(name: str) -> None:
    """What the row's description keeps at the site is in no update, and in no variate."""
    place = place_for(plan(name))
    model = place.model
    norms = batch_norms(model)
    of_norms = {key for key in model.state_dict() if key.rpartition(".")[0] in norms}
    statistics = {key for key in of_norms if not key.endswith(("weight", "bias"))}
    kept = {"local": set(model.state_dict()), "fedbn": of_norms, "silobn": statistics}
    private = kept.get(name.removesuffix("+scaffold"), set())
    start = first_state(model)
    update, proposed = (
        train_round(place, ALICE, start, SiteState())
        if not ALGORITHMS[name].meets_layerwise
        else train_round(place, ALICE, start, SiteState(), exchange=lambda values, weight: (values, weight))
    )
    assert not private & (update.model.keys() | update.c.keys() | update.k.keys())
    assert update.model.keys() | proposed.private.keys() == model.state_dict().keys()
    assert proposed.private.keys() == private


def variates_are_means(name: str) -> None:
    """c = Σ P_i c_i and k = Σ P_i k_i (pooled for the standardised rows), from the sites' own states."""
    moment = train(DIFFERENT, plan(name))
    shares = {data.name: data.patches / sum(d.patches for d in DIFFERENT) for data in DIFFERENT}
    sites = moment.states
    assert bool(moment.server.c) == ("scaffold" in name)
    assert bool(moment.server.k) == ("bn-scaffold" in name or name in STANDARDISED)
    for key, tensor in moment.server.c.items():
        wanted = sum(shares[n] * sites[n].c[key] for n in shares)
        torch.testing.assert_close(tensor, wanted, atol=1e-15, rtol=1e-14)
    for key, tensor in moment.server.k.items():
        wanted = torch.stack([shares[n] * sites[n].k[key] for n in shares]).sum(0)
        if name in STANDARDISED and key.endswith("running_var"):
            mean_key = key.replace("running_var", "running_mean")
            mean = moment.server.k[mean_key]
            wanted += torch.stack([shares[n] * (sites[n].k[mean_key] - mean).square() for n in shares]).sum(0)
        torch.testing.assert_close(tensor, wanted, atol=1e-14, rtol=1e-12)


def first_round_is_fedavg(name: str) -> None:
    """Variates start at zero: before they are measured nothing is corrected, bit for bit, in float32 too."""
    for dtype in (torch.float32, torch.float64):

        def net(dtype: torch.dtype = dtype) -> nn.Module:
            return tiny_net(dtype)

        got = train(DIFFERENT, plan(name, rounds=1, freeze_from=NEVER), net)
        wanted = train(DIFFERENT, plan("fedavg", rounds=1), net)
        assert_same(got.server.model, wanted.server.model)
