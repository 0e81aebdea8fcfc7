"""A run → about how much memory it takes, and so how many run side by side."""

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from app.study.plan import Run
from fl_core.evaluate import BATCH
from fl_core.models import build_model
from mammofed.errors import BadSetting

PROCESS = 700e6  # bytes of a process with torch and MONAI loaded
SPARE = 0.85  # share of the free memory that is used
CLASSES = 10


def jobs_for(runs: tuple[Run, ...], cores: int, free: float) -> int:
    """Runs side by side: as many as the cores and the free memory hold, one at least; one on a GPU."""
    if not runs or on_gpu(runs[0].plan.device):
        return 1
    largest = max(estimate(run) for run in representatives(runs))
    return max(1, min(len(runs), cores // runs[0].plan.threads, int(SPARE * free // largest)))


def on_gpu(device: str) -> bool:
    """Whether runs of this device share one GPU."""
    if device == "auto":
        return torch.cuda.is_available() or torch.backends.mps.is_available()
    return device != "cpu"


def representatives(runs: tuple[Run, ...]) -> list[Run]:
    """A run that has the batches of all sites in one process, and one that has not."""
    return list({at_once(run): run for run in runs}.values())


def at_once(run: Run) -> bool:
    """Whether the batches of all sites are in one process at a time: pooled, or met layer by layer."""
    return run.plan.row.pooled or run.plan.row.meets_layerwise


def estimate(run: Run) -> float:
    """Bytes: the process, the patches, the states, and the activations of the larger of training and testing."""
    channels, size = 1, run.data.image_size if run.data.data == "synthetic" else 32
    model = build_model(run.plan.model, channels, CLASSES, 0)
    outputs = output_sizes(model, channels, size)
    batch = run.plan.batch * (run.data.sites if at_once(run) else 1)
    training = 2 * batch * sum(outputs)  # kept for the backward pass, and as much again for gradients and copies
    testing = 4 * BATCH * max(outputs)
    model_size = sum(parameter.numel() for parameter in model.parameters())
    states = (4 + 4 * run.data.sites) * model_size
    count = run.data.patches * (run.data.sites + 1) if run.data.data == "synthetic" else 70_000
    numbers = max(training, testing) + states + 2 * count * size * size
    return PROCESS + 4 * float(numbers)


def output_sizes(model: nn.Module, channels: int, size: int) -> list[int]:
    """Numbers in the output of each layer for one patch, from a forward pass without memory."""
    sizes: list[int] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        sizes.append(output.numel())

    for layer in model.modules():
        if not list(layer.children()):
            layer.register_forward_hook(note)
    try:
        model.to("meta").eval()(torch.empty(1, channels, size, size, device="meta"))
    except RuntimeError as error:
        raise BadSetting(f"patches of {size} pixels are too small for the model: use larger ones") from error
    return sizes


def free_memory() -> float:
    """Bytes that new processes may take."""
    table = Path("/proc/meminfo")
    if table.exists():
        lines = dict(line.split(":", 1) for line in table.read_text().splitlines())
        return float(lines["MemAvailable"].split()[0]) * 1024
    return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
