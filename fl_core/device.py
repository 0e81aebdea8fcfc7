"""Device name → where and in which precision a site trains: CPU, CUDA or Apple GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mammofed.errors import BadSetting

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda`, `cuda:1` or `mps`; an error where the machine has no such device."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind == "cpu" and not number:
        return torch.device("cpu")
    if kind == "mps" and not number and torch.backends.mps.is_available():
        return torch.device("mps")
    if kind == "cuda" and (number or "0").isdigit() and int(number or 0) < torch.cuda.device_count():
        return torch.device(name)
    raise BadSetting(f"device {name!r}: this machine has no such device; use auto, cpu, cuda[:n] or mps")


@dataclass(frozen=True)
class Bench:
    """A device, a precision and a memory format; weights, statistics and variates stay float32 on all of them."""

    device: torch.device
    precision: str = "fp32"
    channels_last: bool = True

    @property
    def memory_format(self) -> torch.memory_format:
        """How images lie in memory: channels_last is the faster on CPUs and tensor cores alike."""
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def autocast(self) -> torch.autocast:
        """Mixed precision, or nothing for fp32."""
        kind = self.device.type
        return torch.autocast(kind, PRECISIONS[self.precision], enabled=self.precision != "fp32")

    def scaler(self, scale: float) -> torch.amp.GradScaler:
        """Loss scaling for fp16, idle otherwise."""
        return torch.amp.GradScaler(self.device.type, init_scale=scale, enabled=self.precision == "fp16")

    def place(self, model: nn.Module) -> nn.Module:
        """The model on the device in this memory format; only 4-D weights have one."""
        return model.to(self.device).to(memory_format=self.memory_format)  # type: ignore[call-overload,no-any-return]

    def images(self, batch: NDArray[np.float32], dtype: torch.dtype) -> Tensor:
        """A batch on the device, through pinned memory where the device is a GPU of CUDA's."""
        return self._send(torch.from_numpy(batch).to(dtype)).contiguous(memory_format=self.memory_format)

    def labels(self, batch: NDArray[np.int64]) -> Tensor:
        """Labels on the device."""
        return self._send(torch.from_numpy(batch))

    def _send(self, tensor: Tensor) -> Tensor:
        pinned = tensor.pin_memory() if self.device.type == "cuda" else tensor
        return pinned.to(self.device, non_blocking=True)


def check_precision(precision: str) -> None:
    """Refuse an unknown precision."""
    if precision not in PRECISIONS:
        raise BadSetting(f"precision {precision!r}: choose one of {', '.join(PRECISIONS)}")


def release_memory(device: torch.device) -> None:
    """Give cached GPU memory back, so that the next site finds it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


@contextmanager
def seeded(seed: list[int], device: torch.device) -> Iterator[None]:
    """Torch's own generators (dropout, initial weights) from a seed inside the block, as before after it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1))
        yield
