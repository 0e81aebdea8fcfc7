"""The algorithms as the formulas have them: slow, plain autograd, and written apart from the product's code."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_core.data import SiteData, draw
from fl_core.plan import Plan
from fl_core.roles import Tensors
from fl_core.state import ServerState, SiteState

Correct = Callable[[Tensor, Tensor, str], tuple[Tensor, Tensor]]  # (mean, biased var, layer) → corrected


def column(vector: Tensor) -> Tensor:
    return vector[None, :, None, None]


@dataclass
class Walk:
    """What was met along the local steps."""

    rates: list[float]
    gradients: list[Tensors]
    statistics: list[dict[str, tuple[Tensor, Tensor]]]  # raw, biased


def linear_form(own: Tensors, server: Tensors, floor: float) -> Correct:
    def correct(mean: Tensor, var: Tensor, layer: str) -> tuple[Tensor, Tensor]:
        m, v = f"{layer}.running_mean", f"{layer}.running_var"
        return mean - own[m] + server[m], (var - own[v] + server[v]).clamp(min=floor)

    return correct


def standard_form(own: Tensors, server: Tensors, eps: float = 1e-5) -> Correct:
    """mean~ and var~ + eps as the formula has them, the local projection kept: factors carry no gradient."""

    def correct(mean: Tensor, var: Tensor, layer: str) -> tuple[Tensor, Tensor]:
        m, v = f"{layer}.running_mean", f"{layer}.running_var"
        nu_i, nu = own[v] + eps, server[v] + eps
        return mean + (server[m] - own[m]) * ((var + eps) / nu_i).sqrt(), (var + eps) * nu / nu_i - eps

    return correct


def walk(
    model: nn.Module, data: SiteData, plan: Plan, server: ServerState, site: SiteState, correct: Correct | None
) -> Walk:
    """E steps of w ← w − γ_t(g − c_i + c), each batch normalised by the corrected statistics."""
    model.load_state_dict({**server.model, **site.private})
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    met = Walk([], [], [])
    for step in range(plan.local_steps):
        chosen = draw(data, plan.batch, site.batches + step)
        x = torch.from_numpy(data.train.read(chosen)).to(next(model.parameters()).dtype)
        raw: dict[str, tuple[Tensor, Tensor]] = {}
        for name, layer in layers.items():
            layer.forward = naive_norm(layer, name, raw, correct)  # type: ignore[method-assign,assignment]
        loss = F.cross_entropy(model(x), torch.from_numpy(data.train.labels[chosen]))
        model.zero_grad()
        loss.backward()
        rate = plan.schedule(server.round * plan.local_steps + step)
        met.rates.append(rate)
        met.statistics.append(raw)
        met.gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        with torch.no_grad():
            for name, p in model.named_parameters():
                drift = server.c[name] - site.c[name] if name in site.c else torch.zeros_like(p)
                p.sub_(rate * (met.gradients[-1][name] + drift))
    return met


def naive_norm(
    layer: nn.BatchNorm2d, name: str, raw: dict[str, tuple[Tensor, Tensor]], correct: Correct | None
) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        raw[name] = (mean.detach(), var.detach())
        if correct is not None:
            mean, var = correct(mean, var, name)
        n = x.numel() / x.shape[1]
        with torch.no_grad():
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.lerp_(mean.detach(), 0.1)
            layer.running_var.lerp_(var.detach() * n / (n - 1), 0.1)
        normed = (x - column(mean)) / column((var + layer.eps).sqrt())
        return normed * column(layer.weight) + column(layer.bias)

    return forward


def mean_gradient(met: Walk) -> Tensors:
    """Σ γ_t g_t / Σ γ_t."""
    return {
        name: torch.stack([rate * g[name] for rate, g in zip(met.rates, met.gradients, strict=True)]).sum(0)
        / sum(met.rates)
        for name in met.gradients[0]
    }


def mean_statistics(met: Walk, rho: float = 0.9) -> Tensors:
    """(1 − ρ)/(1 − ρ^E) Σ ρ^(E−1−t) s_t."""
    steps = len(met.statistics)
    weights = [(1 - rho) / (1 - rho**steps) * rho ** (steps - 1 - t) for t in range(steps)]
    found: Tensors = {}
    for layer in met.statistics[0]:
        for i, name in enumerate(("running_mean", "running_var")):
            parts = [weight * raw[layer][i] for weight, raw in zip(weights, met.statistics, strict=True)]
            found[f"{layer}.{name}"] = torch.stack(parts).sum(0)
    return found
