"""Server state, site state and the site's patches → one round of training: an update and the next site state.

The next state is only proposed: the site keeps it if the server commits the round with this site in it.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_core.data import Augment, Images, Indices, SiteData, draw, whole_batches
from fl_core.device import Bench, pick_device, seeded
from fl_core.exchange import Exchange
from fl_core.family import NormTask, Phi
from fl_core.models import check_fit
from fl_core.norm import BatchNorms
from fl_core.plan import Plan
from fl_core.roles import Roles, Tensors, roles
from fl_core.state import ServerState, SiteState, Update, without
from mammofed.errors import TrainingFailed

Progress = Callable[[int, float], None]  # (steps done in this round, loss of the last one)


@dataclass(frozen=True)
class Workplace:
    """A model on a device, at which any site's round can be trained; it holds nothing between rounds."""

    plan: Plan
    model: nn.Module
    parameters: tuple[nn.Parameter, ...]  # in the order of roles.parameters
    bench: Bench
    norms: BatchNorms
    roles: Roles
    augment: Augment | None = None


def workplace(plan: Plan, model: nn.Module, augment: Augment | None = None) -> Workplace:
    """Set up a place to train: the model on its device, its layers found, its fit with the row checked."""
    check_fit(plan.row, model)
    bench = Bench(pick_device(plan.device), plan.precision, plan.channels_last)
    placed = bench.place(model)
    parts = roles(placed)
    named = dict(placed.named_parameters())
    parameters = tuple(named[name] for name in parts.parameters)
    return Workplace(plan, placed, parameters, bench, BatchNorms(placed), parts, augment)


def first_state(model: nn.Module) -> ServerState:
    """The server before round 1: the model's initial tensors, and no variates."""
    return ServerState(0, snapshot(model))


def snapshot(model: nn.Module) -> Tensors:
    """A copy of a model's tensors on the CPU, in torch's default memory format."""
    state = model.state_dict()
    return {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}


def train_round(
    place: Workplace,
    data: SiteData,
    server: ServerState,
    site: SiteState,
    exchange: Exchange | None = None,
    progress: Progress = lambda steps, loss: None,
) -> tuple[Update, SiteState]:
    """One round at one site: receive, train E steps, measure the next variates, propose."""
    plan, row = place.plan, place.plan.row
    torch.set_num_threads(plan.threads)
    start = {**server.model, **site.private}
    place.model.load_state_dict(start)
    place.model.train()
    phi = row.statistics(norm_task(place, server, site, exchange))
    with seeded([plan.seed, data.seed, server.round], place.bench.device):
        at_start = measure_at_start(place, data, phi, start) if row.measured_at_start else None
        path = descend(place, data, server, site, phi, progress)
    c, k = at_start or (mean_gradient(place, start, path), phi.variates())
    private = row.private(place.roles)
    end = snapshot(place.model)
    update = Update(
        site=data.name,
        round=server.round + 1,
        patches=data.patches,
        steps=path.steps,
        loss=path.loss,
        model=without(end, private),
        c=without(c, private) if row.weight_grad else {},
        k={name: tensor.cpu() for name, tensor in k.items()} if row.corrects_statistics else {},
        loss_error=path.loss_error,
    )
    proposed = replace(
        site,
        batches=site.batches + plan.local_steps,
        loss_scale=path.loss_scale,
        c=update.c,
        k=update.k,
        private={name: end[name] for name in end if name in private},
    )
    return update, proposed


def norm_task(place: Workplace, server: ServerState, site: SiteState, exchange: Exchange | None) -> NormTask:
    """What the row's φ is told of this round."""
    frozen = server.round * place.plan.local_steps >= place.plan.freeze_iteration
    return NormTask(place.norms, site.k, server.k, place.plan.variance_floor, frozen, exchange)


@dataclass(frozen=True)
class Path:
    """What is left of the local steps of a round."""

    steps: int  # really taken: fp16 skips a step whose gradient overflowed
    rates: float  # Σ_t γ_t over the steps taken
    drift: list[Tensor]  # c − c_i for each parameter, or nothing
    loss: float
    loss_error: float | None
    loss_scale: float


def descend(
    place: Workplace, data: SiteData, server: ServerState, site: SiteState, phi: Phi, progress: Progress
) -> Path:
    """E steps of w ← w − γ_t(g + c − c_i)."""
    plan = place.plan
    drift = drift_of(place, server, site)
    optimiser = torch.optim.SGD(place.parameters, plan.schedule.rate, momentum=plan.momentum, foreach=True)
    scaler = place.bench.scaler(site.loss_scale)
    rates: list[float] = []
    losses: list[float] = []
    for step in range(plan.local_steps):
        rate = plan.schedule(server.round * plan.local_steps + step)
        optimiser.param_groups[0]["lr"] = rate
        with place.norms.using(phi.forward(step)):
            loss = gradient(place, *load(place, data, site.batches + step), scaler)
        losses.append(finite(loss, place, f"site {data.name!r}, round {server.round + 1}, step {step + 1}"))
        phi.after_step()
        scaler.unscale_(optimiser)
        if drift:
            torch._foreach_add_(gradients(place), drift)
        if take_step(scaler, optimiser):
            rates.append(rate)
        progress(step + 1, losses[-1])
    optimiser.zero_grad()
    if not rates:
        raise TrainingFailed(
            f"site {data.name!r}, round {server.round + 1}: all steps overflowed in fp16; use bf16"
        )
    return Path(
        steps=len(rates),
        rates=math.fsum(rates),
        drift=drift,
        loss=math.fsum(losses) / len(losses),
        loss_error=standard_error(losses),
        loss_scale=float(scaler.get_scale()),
    )


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of these values; a single one tells nothing of it."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def load(place: Workplace, data: SiteData, number: int) -> tuple[Images, Indices]:
    """The site's batch of that number, augmented from a generator of its own."""
    chosen = draw(data, place.plan.batch, number)
    images = data.train.read(chosen)
    if place.augment is not None:
        images = place.augment(images, np.random.default_rng([data.seed, number, 1]))
    return images, data.train.labels[chosen]


def gradient(place: Workplace, images: Images, labels: Indices, scaler: torch.amp.GradScaler) -> Tensor:
    """Leave the gradient of the batch's mean cross-entropy in the parameters; return the loss."""
    x = place.bench.images(images, place.norms.mean.dtype)
    y = place.bench.labels(labels)
    place.model.zero_grad(set_to_none=True)
    with place.bench.autocast():
        loss = F.cross_entropy(place.model(x), y)
    scaler.scale(loss).backward()
    return loss.detach()


def gradients(place: Workplace) -> list[Tensor]:
    """The gradient of every parameter; zeros where the loss does not reach one."""
    for parameter in place.parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in place.parameters if parameter.grad is not None]


def take_step(scaler: torch.amp.GradScaler, optimiser: torch.optim.Optimizer) -> bool:
    """One step of the optimiser; False where fp16 overflowed and the step was skipped."""
    before = scaler.get_scale()
    scaler.step(optimiser)
    scaler.update()
    return scaler.get_scale() >= before


def drift_of(place: Workplace, server: ServerState, site: SiteState) -> list[Tensor]:
    """c − c_i for each parameter, zero for private ones; nothing before the site has variates."""
    if place.plan.row.weight_grad is None or not site.c:
        return []
    drift = place.plan.row.weight_grad(site.c, server.c)
    named = zip(place.roles.parameters, place.parameters, strict=True)
    with torch.no_grad():
        return [
            torch.empty_like(w).copy_(drift[name]) if name in drift else torch.zeros_like(w) for name, w in named
        ]


def mean_gradient(place: Workplace, start: Tensors, path: Path) -> Tensors:
    """Option II: c_i⁺ = (w_start − w_end)/Σγ_t − (c − c_i), the mean raw gradient along the path."""
    if place.plan.row.weight_grad is None:
        return {}
    ends = [parameter.detach() for parameter in place.parameters]
    starts = [torch.empty_like(w).copy_(start[name]) for name, w in zip(place.roles.parameters, ends, strict=True)]
    torch._foreach_sub_(starts, ends)
    torch._foreach_div_(starts, path.rates)
    if path.drift:
        torch._foreach_sub_(starts, path.drift)
    return by_name(place, starts)


def measure_at_start(place: Workplace, data: SiteData, phi: Phi, start: Tensors) -> tuple[Tensors, Tensors]:
    """Option I: gradient and raw statistics at the server's weights, the mean over all of the site's patches."""
    total = [torch.zeros_like(parameter) for parameter in place.parameters]
    mean, var = torch.zeros_like(place.norms.mean), torch.zeros_like(place.norms.var)
    unscaled = place.bench.scaler(1.0)
    with place.norms.using(phi.forward(0)):
        for batch in whole_batches(data, place.plan.batch):
            share = len(batch) / data.patches
            gradient(place, data.train.read(batch), data.train.labels[batch], unscaled)
            torch._foreach_add_(total, gradients(place), alpha=share)
            if place.plan.row.corrects_statistics:
                mean.add_(place.norms.mean, alpha=share)
                var.add_(place.norms.biased_var(), alpha=share)
    place.model.load_state_dict(start)  # the running statistics have moved
    return by_name(place, total), place.norms.named(mean, var)


def by_name(place: Workplace, tensors: list[Tensor]) -> Tensors:
    """One tensor a parameter → by name, on the CPU, in torch's default memory format."""
    pairs = zip(place.roles.parameters, tensors, strict=True)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in pairs}


def finite(loss: Tensor, place: Workplace, where: str) -> float:
    """The loss as a number, or an error that names site, round, step and the first tensor that is not finite."""
    value = float(loss)
    if not math.isfinite(value):
        named = ((name, tensor) for name, tensor in place.model.state_dict().items() if tensor.is_floating_point())
        bad = next((name for name, tensor in named if not tensor.isfinite().all()), "the loss")
        raise TrainingFailed(
            f"{where}: {bad} is not finite; lower the learning rate or lengthen the warm-up "
            "(the last good round stays)"
        )
    return value
