"""Batch-norm layers and control variates → layers that normalise with corrected batch statistics (φ, ψ).

A correction replaces the `forward` of the layers for a step; the layers themselves, their names and their tensors
stay torch's own. All layers share one flat record of raw statistics, so that the bookkeeping of a step is a few
vector operations whatever the depth of the network.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fl_core.roles import Tensors, batch_norms, statistic_names
from mammofed.errors import BadSetting

Forward = Callable[[int, Tensor], Tensor]  # (layer index, its input) → its output
Pair = tuple[Tensor, Tensor]  # (mean, variance), flat over all layers


@dataclass(frozen=True)
class Correction:
    """One φ with its ψ: how a layer normalises, and what its running statistics then take in."""

    forward: Forward
    # (mean, unbiased var, (n − 1)/n) → (mean~, var~·n/(n − 1)); None: the forward sees to them itself
    running: Callable[[Tensor, Tensor, Tensor], Pair] | None = None


class BatchNorms:
    """The batch-norm layers of one model, and the raw statistics of the batch they saw last."""

    def __init__(self, model: nn.Module) -> None:
        found = batch_norms(model)
        self.names = tuple(found)
        self.layers = tuple(found.values())
        self.sizes = [layer.num_features for layer in self.layers]
        self.counts = [0] * len(self.layers)  # values a channel in the last batch, B·H·W
        like = next(iter(model.parameters()))
        self.mean = torch.zeros(sum(self.sizes), dtype=like.dtype, device=like.device)
        self.var = torch.zeros_like(self.mean)  # unbiased, as torch's kernel leaves it
        self.raw = list(zip(self.mean.split(self.sizes), self.var.split(self.sizes), strict=True))

    def flat(self, variates: Tensors) -> Pair:
        """Statistics by name → (mean, variance), each flat over all layers."""
        names = [statistic_names(layer) for layer in self.names]
        mean, var = (torch.cat([variates[pair[i]] for pair in names]).to(self.mean) for i in (0, 1))
        return mean, var

    def named(self, mean: Tensor, var: Tensor) -> Tensors:
        """The reverse of `flat`."""
        parts = zip(self.names, mean.split(self.sizes), var.split(self.sizes), strict=True)
        return {
            name: tensor.clone()
            for layer, *tensors in parts
            for name, tensor in zip(statistic_names(layer), tensors, strict=True)
        }

    def per_channel(self, values: list[float]) -> Tensor:
        """One value a layer → one value a channel, in float64."""
        sizes = torch.tensor(self.sizes)
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(sizes).to(self.mean.device)

    @contextmanager
    def using(self, forward: Forward | None) -> Iterator[None]:
        """Let every layer normalise by `forward` inside the block; None leaves torch's own."""
        if forward is None:
            yield
            return
        for index, layer in enumerate(self.layers):
            layer.forward = partial(forward, index)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for layer in self.layers:
                del layer.forward

    def bessel(self) -> Tensor:
        """(n − 1)/n of the last batch, one value a channel."""
        return self.per_channel([(n - 1) / n for n in self.counts])

    def biased_var(self) -> Tensor:
        """The variance that normalised the last batch."""
        return self.bessel().to(self.var.dtype) * self.var

    def note(self, index: int, x: Tensor) -> int:
        """Remember and return how many values a channel has."""
        self.counts[index] = x.numel() // x.shape[1]
        return self.counts[index]


def affine(layer: _BatchNorm) -> Pair:
    """Weight α and bias β of a layer, ones and zeros where it has none."""
    if layer.affine:
        return layer.weight, layer.bias
    mean, _ = running_statistics(layer)
    return torch.ones_like(mean), torch.zeros_like(mean)


def uncorrected(norms: BatchNorms) -> Correction:
    """Plain batch normalisation: torch's kernel updates the running statistics itself, so its bits are met."""

    def forward(index: int, x: Tensor) -> Tensor:
        layer, n = norms.layers[index], norms.note(index, x)
        running = running_statistics(layer)
        y, mean, inverse = torch.native_batch_norm(
            x, layer.weight, layer.bias, *running, True, momentum(layer), layer.eps
        )
        raw_mean, raw_var = norms.raw[index]
        raw_mean.copy_(mean.detach())
        raw_var.copy_((inverse.detach() ** -2 - layer.eps) * (n / (n - 1)))
        return y

    return Correction(forward)


def standardised(norms: BatchNorms, own: Tensors, server: Tensors) -> Correction:
    """mean~ = m + (μ − μ_i)·sqrt(v/ν_i), var~ = v·ν/ν_i: torch's kernel with other affine parameters.

    (x − mean~)/sqrt(var~) = a·(x − m)/sqrt(v) + b with a = sqrt(ν_i/ν), b = (μ_i − μ)/sqrt(ν).
    """
    eps = norms.per_channel([layer.eps for layer in norms.layers]).to(norms.mean.dtype)
    (mu_i, nu_i), (mu, nu) = norms.flat(own), norms.flat(server)
    ratio = (nu + eps) / (nu_i + eps)
    a, b = ratio.rsqrt().split(norms.sizes), ((mu_i - mu) * (nu + eps).rsqrt()).split(norms.sizes)
    shift = (mu - mu_i) * (nu_i + eps).rsqrt()

    def forward(index: int, x: Tensor) -> Tensor:
        layer = norms.layers[index]
        norms.note(index, x)
        alpha, beta = affine(layer)
        weight, bias = alpha * a[index], torch.addcmul(beta, alpha, b[index])
        return F.batch_norm(x, *norms.raw[index], weight, bias, True, 1.0, layer.eps)

    def running(mean: Tensor, var: Tensor, bessel: Tensor) -> Pair:
        return mean + shift * (var * bessel + eps).sqrt(), var * ratio + eps * (ratio - 1) / bessel

    return Correction(forward, running)


def linear(norms: BatchNorms, own: Tensors, server: Tensors, floor: float) -> Correction:
    """s~ = s − k_i + k with the variance clipped at σ²_ths (the paper's Algorithm 1 and appendix A)."""
    (mu_i, nu_i), (mu, nu) = norms.flat(own), norms.flat(server)
    shifts = mu - mu_i, nu - nu_i
    parts = list(zip(*(shift.split(norms.sizes) for shift in shifts), strict=True))

    def forward(index: int, x: Tensor) -> Tensor:
        layer = norms.layers[index]
        norms.note(index, x)
        y: Tensor = ShiftedNorm.apply(  # type: ignore[no-untyped-call]
            x, *affine(layer), *parts[index], *norms.raw[index], floor, layer.eps
        )
        return y

    def running(mean: Tensor, var: Tensor, bessel: Tensor) -> Pair:
        return mean + shifts[0], (var * bessel + shifts[1]).clamp(min=floor) / bessel

    return Correction(forward, running)


def batch_statistics(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Leave the mean and unbiased variance of a batch in the buffers; return the biased variance."""
    if x.device.type == "mps":  # has no kernel for the statistics alone
        F.batch_norm(x, mean, var, training=True, momentum=1.0)
        n = x.numel() // x.shape[1]
        return var * ((n - 1) / n)
    biased: Tensor = torch.batch_norm_update_stats(x, mean, var, 1.0)[1]
    return biased.to(var.dtype)


def over_channels(vector: Tensor, like: Tensor) -> Tensor:
    """(C,) → (1, C, 1, ...) in the dtype of `like`."""
    return vector.view(1, -1, *(1,) * (like.dim() - 2)).to(like.dtype)


class ShiftedNorm(torch.autograd.Function):
    """y = α(x − m − Δm)·i~ + β with i~ = 1/sqrt(max(v + Δv, floor) + eps), and the gradient through m and v.

    Forward costs what torch's kernel costs; backward is torch's kernel plus one term c·(x − m): with r = i~/I,
    I = 1/sqrt(v + eps) and x̂ = (x − m)·I, g_x = αi~(g − ⟨g⟩ − x̂·r²·(⟨g·x̂⟩ − Δm·I·⟨g⟩)), where torch's kernel takes
    x̂·⟨g·x̂⟩ off instead; where the variance is clipped, nothing is due.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, x: Tensor, weight: Tensor, bias: Tensor, dm: Tensor, dv: Tensor, mean: Tensor, var: Tensor,
        floor: float, eps: float,
    ) -> Tensor:  # fmt: skip
        v = batch_statistics(x, mean, var)
        corrected = (v + dv).clamp_(min=floor)
        inverse = (v + eps).rsqrt_()
        r = (corrected + eps).rsqrt_().div_(inverse)
        due = (r * r).mul_(corrected > floor)
        ctx.save_for_backward(x, weight, mean.clone(), inverse, r, due, dm * inverse)
        return F.batch_norm(x, mean + dm, corrected, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        x, weight, mean, inverse, r, due, shift = ctx.saved_tensors
        scaled = weight * r
        grad_x, sum_gx, sum_g = torch.ops.aten.native_batch_norm_backward(
            grad, x, scaled, None, None, mean, inverse, True, 0.0, [True, True, True]
        )
        shifted = sum_gx - shift * sum_g
        slope = (sum_gx - due * shifted).mul_(scaled).mul_(inverse).mul_(inverse).div_(x.numel() // x.shape[1])
        grad_x.addcmul_(x, over_channels(slope, x)).sub_(over_channels(slope * mean, x))
        return grad_x, r * shifted, sum_g, None, None, None, None, None, None


class PathRecord:
    """The ρ-weighted mean of a round's raw statistics (k_i⁺, option II), and the running statistics."""

    def __init__(self, norms: BatchNorms) -> None:
        self.norms = norms
        self.steps = 0
        self.momentum = norms.per_channel([momentum(layer) for layer in norms.layers])
        self.mean = torch.zeros_like(norms.mean, dtype=torch.float64)
        self.var = torch.zeros_like(self.mean)
        norms.mean.zero_()
        norms.var.zero_()

    def take(self, correction: Correction) -> None:
        """Take in the batch just seen, in float64."""
        norms, m = self.norms, self.momentum
        bessel = norms.bessel()
        if correction.running is not None:
            self.update_running(*correction.running(norms.mean, norms.var, bessel.to(norms.mean.dtype)))
        count_batch(norms.layers)
        self.mean = (1 - m) * self.mean + m * norms.mean.double()
        self.var = (1 - m) * self.var + m * bessel * norms.var.double()
        self.steps += 1

    def update_running(self, mean: Tensor, var: Tensor) -> None:
        """ŝ ← ρ ŝ + (1 − ρ) s~ for all layers at once."""
        norms, m = self.norms, self.momentum
        pairs = [running_statistics(layer) for layer in norms.layers]
        for new, buffers in zip((mean, var), map(list, zip(*pairs, strict=True)), strict=True):
            blended = m * new.double() + (1 - m) * torch.cat(buffers).double()
            torch._foreach_copy_(buffers, list(blended.to(norms.mean.dtype).split(norms.sizes)))

    def variates(self) -> Tensors:
        """k_i⁺ = (1 − ρ)/(1 − ρ^E) Σ_t ρ^(E−1−t) s_t with the biased variance."""
        weight = 1 - (1 - self.momentum) ** self.steps
        dtype = self.norms.mean.dtype
        return self.norms.named((self.mean / weight).to(dtype), (self.var / weight).to(dtype))


def running_statistics(layer: _BatchNorm) -> Pair:
    """Running mean and variance of a layer, or an error where it keeps none."""
    if layer.running_mean is None or layer.running_var is None:
        raise BadSetting("a batch-norm layer keeps no running statistics: give it track_running_stats=True")
    return layer.running_mean, layer.running_var


def momentum(layer: _BatchNorm) -> float:
    """torch's batch-norm momentum m = 1 − ρ, which the variates need as a number."""
    if layer.momentum is None:
        raise BadSetting("a batch-norm layer has momentum=None: give it a number such as 0.1")
    return float(layer.momentum)


def count_batch(layers: Sequence[_BatchNorm]) -> None:
    """One more batch seen: an integer that stays one."""
    torch._foreach_add_([layer.num_batches_tracked for layer in layers], 1)  # type: ignore[misc]


def differ(own: Mapping[str, Tensor], server: Mapping[str, Tensor]) -> bool:
    """Whether there is anything to correct: a site without variates, or with the server's own, is plain."""
    return bool(own) and any(not torch.equal(own[name], server[name].to(own[name])) for name in own)
