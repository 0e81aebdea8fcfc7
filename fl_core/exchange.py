"""What each site measures in a layer → the mean over the sites, layer by layer (FedTAN).

All sites meet three times a batch-norm layer in the first local step of a round: for the mean, for the variance
around that mean, and, backward, for the gradient of both. `Meeting` is the table they meet at: sites call it from
threads of one process, or from processes of their own through a manager.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.managers import BaseManager

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fl_core.norm import BatchNorms, affine, count_batch, momentum, over_channels, running_statistics
from mammofed.errors import TrainingFailed

Array = NDArray[np.floating]
Exchange = Callable[[Tensor, int], tuple[Tensor, int]]  # (values, weight) → (weighted mean, Σ weights)


class Meeting:
    """Weighted means over a fixed number of sites; a call waits until each site has brought its values."""

    def __init__(self, sites: int) -> None:
        self.barrier = threading.Barrier(sites)
        self.brought: list[tuple[Array, int] | None] = [None] * sites
        self.waiting: set[int] = set()

    def mean(self, site: int, values: Array, weight: int) -> tuple[Array, int]:
        """Σ w_i v_i / Σ w_i in the order of the sites, whoever came first, and Σ w_i."""
        self.brought[site] = (values, weight)
        self.waiting.add(site)
        self.wait()
        self.waiting.discard(site)
        pairs = [pair for pair in self.brought if pair is not None]
        self.wait()  # nobody brings the next values before all have read these
        self.check(values, [brought for brought, _ in pairs])
        total = sum(weight for _, weight in pairs)
        mean = sum((weight / total) * values.astype(np.float64) for values, weight in pairs)
        return np.asarray(mean, dtype=values.dtype), total

    def check(self, own: Array, brought: Sequence[Array]) -> None:
        """Refuse the values of a site that is in another layer than most; the others wait until it has left."""
        usual = Counter((values.shape, values.dtype) for values in brought).most_common(1)[0][0]
        if (own.shape, own.dtype) != usual:
            raise TrainingFailed(f"{own.dtype} values {own.shape} where most sites bring {usual[1]} {usual[0]}")
        if any((values.shape, values.dtype) != usual for values in brought):
            self.wait()

    def wait(self) -> None:
        """Wait for the others; an error where one of them has left."""
        try:
            self.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise TrainingFailed("another site left the layer-wise exchange of this round") from error

    def leave(self) -> None:
        """Let nobody wait any longer: a site has failed."""
        self.barrier.abort()


class MeetingManager(BaseManager):
    """A process that holds a `Meeting` for sites in processes of their own."""


MeetingManager.register("Meeting", Meeting)


def exchange_at(meeting: Meeting, site: int) -> Exchange:
    """One site's end of the meeting, from tensor to tensor."""

    def exchange(values: Tensor, weight: int) -> tuple[Tensor, int]:
        mean, total = meeting.mean(site, values.detach().cpu().numpy(), weight)
        return torch.from_numpy(mean).to(values.device), total

    return exchange


def layerwise(norms: BatchNorms, exchange: Exchange) -> Callable[[int, Tensor], Tensor]:
    """A forward in which φ and ψ are means over the sites; running statistics take the global values once."""

    def forward(index: int, x: Tensor) -> Tensor:
        layer = norms.layers[index]
        shared = SharedNorm.apply(x, *affine(layer), layer.eps, exchange)  # type: ignore[no-untyped-call]
        y, mean, var, total = shared
        with torch.no_grad():
            running_mean, running_var = running_statistics(layer)
            running_mean.lerp_(mean, momentum(layer))
            running_var.lerp_(var * (total / (total - 1)), momentum(layer))
            count_batch([layer])
        normalised: Tensor = y
        return normalised

    return forward


class SharedNorm(torch.autograd.Function):
    """Batch normalisation over the batches of all sites: g_x = g_direct + ḡ_mean/n + ḡ_var·2(x − mean)/n."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, eps: float, exchange: Exchange):  # type: ignore[no-untyped-def]
        n, dims = x.numel() // x.shape[1], [0, *range(2, x.dim())]
        values = x.to(weight.dtype)
        mean, total = exchange(values.mean(dims), n)
        var, _ = exchange((values - over_channels(mean, values)).square().mean(dims), n)
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps, ctx.exchange, ctx.n = eps, exchange, n
        ctx.mark_non_differentiable(mean, var)
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var, total

    @staticmethod
    def backward(ctx, grad: Tensor, *_unused: object):  # type: ignore[no-untyped-def]
        x, weight, mean, var = ctx.saved_tensors
        inv = (var + ctx.eps).rsqrt()
        direct, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, mean, var, None, None, False, ctx.eps, [True, True, True]
        )
        grad_mean, grad_var = -weight * inv * grad_bias, -0.5 * weight * inv**2 * grad_weight
        both, _ = ctx.exchange(torch.cat([grad_mean, grad_var]), ctx.n)
        shared_mean, shared_var = both.chunk(2)
        slope = 2 * shared_var / ctx.n
        direct.addcmul_(x, over_channels(slope, x)).add_(over_channels(shared_mean / ctx.n - slope * mean, x))
        return direct, grad_weight, grad_bias, None, None
