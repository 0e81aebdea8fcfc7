"""The core against plain PyTorch and bare numpy: training steps, the loop, sums over sites, checkpoints."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.ratio import Ratio, best_times
from fl_core.aggregate import aggregate, check_update, expected
from fl_core.checkpoint import write_object
from fl_core.data import ArrayPatches, SiteData
from fl_core.family import ALGORITHMS
from fl_core.local import first_state, train_round, workplace
from fl_core.models import build_model
from fl_core.plan import Plan
from fl_core.roles import Tensors, roles
from fl_core.schedule import Schedule
from fl_core.state import ServerState, SiteState, Update, byte_size
from fl_core.wire import pack, packed_parts

SIZE, BATCH, SITES = 64, 32, 64
STEPS = 10  # of a round that is timed: what a round costs beside its steps is shared by them
THREADS = os.cpu_count() or 1


def patches() -> SiteData:
    """One site with noise for patches."""
    rng = np.random.default_rng(0)
    images = rng.random((STEPS * BATCH, 1, SIZE, SIZE), dtype=np.float32)
    source = ArrayPatches(images, rng.integers(0, 5, len(images)), tuple("abcde"))
    return SiteData("a", source, source, 0)


def plan(algorithm: str) -> Plan:
    """E steps on DenseNet-121 at 64 px, batch 32."""
    rate = Schedule(0.01)
    return Plan(algorithm, "densenet121", rate, local_steps=STEPS, batch=BATCH, device="cpu", threads=THREADS)


def corrected_round(algorithm: str, data: SiteData) -> Callable[[], object]:
    """A round in which the row's corrections are at work: the site has variates that differ from the server's."""
    place = workplace(plan(algorithm), build_model("densenet121", 1, 5, 0))
    server = first_state(place.model)
    update, state = train_round(place, data, server, SiteState())
    server = aggregate(place.plan.row, place.roles, server, [update], {"a": data.patches})
    server = replace(server, c=scaled(server.c, 1.01), k=scaled(server.k, 1.01))
    return lambda: train_round(place, data, server, state)


def scaled(tensors: Tensors, factor: float) -> Tensors:
    """Every tensor times a factor."""
    return {name: tensor * factor for name, tensor in tensors.items()}


def plain_round(data: SiteData) -> Callable[[], object]:
    """The same work by hand: nn.BatchNorm2d, SGD, channels_last, the loss read at each step."""
    torch.set_num_threads(THREADS)
    model = build_model("densenet121", 1, 5, 0).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = data.train.read(np.arange(data.patches)), data.train.labels

    def run() -> None:
        model.train()
        for step in range(STEPS):
            chosen = slice(step * BATCH, (step + 1) * BATCH)
            x = torch.from_numpy(images[chosen]).contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(model(x), torch.from_numpy(labels[chosen]))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            loss.item()

    return run


def measure_steps() -> list[Ratio]:
    """Rounds of each form against the hand-written loop, in turns."""
    data = patches()
    bounds = {"fedavg": 1.05, "bn-scaffold-std": 1.05, "scaffold": None, "bn-scaffold": 1.25}
    works = [plain_round(data), *(corrected_round(name, data) for name in bounds)]
    plain, *times = best_times(*works, repeats=5)
    setting = f"DenseNet-121, {SIZE} px, batch {BATCH}"
    return [
        Ratio(
            f"{name}: round of {STEPS} steps / plain PyTorch",
            seconds / plain,
            at_most=bound,
            detail=f"{setting}: {seconds / STEPS:.3f} s a step, plain {plain / STEPS:.3f}",
        )
        for (name, bound), seconds in zip(bounds.items(), times, strict=True)
    ]


def printed(job: str) -> float:
    """What a fresh process prints that does one job of this module alone."""
    words = [sys.executable, "-m", "benchmarks.bench_core", job]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def measure_memory() -> list[Ratio]:
    """Peak memory of a process that trains, against one that trains by hand."""
    plain = printed("plain")
    names = ("fedavg", "bn-scaffold-std", "bn-scaffold")
    detail = f"plain {plain / 1024:.0f} MiB"
    return [
        Ratio(f"{name}: peak memory / plain PyTorch", printed(name) / plain, at_most=1.1, detail=detail)
        for name in names
    ]


def updates(model: nn.Module, count: int) -> Iterator[Update]:
    """Updates that are made one at a time, each a copy of the model."""
    for i in range(count):
        yield Update(f"s{i}", 1, 100, 1, 0.0, first_state(model).model, {}, {})


def measure_aggregation() -> list[Ratio]:
    """64 sites' updates, checked and summed, against a bare numpy weighted sum of the same arrays."""
    model = build_model("densenet121", 1, 5, 0)
    row, parts, server = ALGORITHMS["fedavg"], roles(model), first_state(model)
    held = list(updates(model, 4))
    arrays = [[t.numpy() for t in update.model.values() if t.is_floating_point()] for update in held]

    def ours() -> ServerState:
        wanted = expected(row, parts, server)
        stream = (replace(held[i % 4], site=f"s{i}") for i in range(SITES))
        checked = (check_update(wanted, update) for update in stream)
        return aggregate(row, parts, server, checked, {f"s{i}": 100 for i in range(SITES)})

    def bare() -> object:
        weight = np.float32(1 / SITES)
        sums = [array * weight for array in arrays[0]]
        for i in range(1, SITES):
            for total, array in zip(sums, arrays[i % 4], strict=True):
                total += array * weight
        return sums

    torch.set_num_threads(THREADS)
    bare_time, our_time = best_times(bare, ours, repeats=5)
    name = f"sum of {SITES} DenseNet-121 updates"
    detail = f"{our_time:.2f} s, bare {bare_time:.2f} s"
    return [
        Ratio(f"{name}, checked / bare numpy sum", our_time / bare_time, at_most=2.0, detail=detail),
        Ratio(f"peak memory of a {name} / one model", printed("aggregate"), at_most=3.0),
    ]


def aggregate_stream() -> None:
    """Sum 64 updates, made on the way, and print by how many models the peak of this process has grown."""
    model = build_model("densenet121", 1, 5, 0)
    row, parts, server = ALGORITHMS["fedavg"], roles(model), first_state(model)
    before = peak_resident()
    aggregate(row, parts, server, updates(model, SITES), {f"s{i}": 100 for i in range(SITES)})
    print((peak_resident() - before) * 1024 / byte_size(server.model))


def peak_resident() -> int:
    """Largest resident memory of this process so far, in KiB (getrusage would carry over the parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def measure_checkpoint() -> list[Ratio]:
    """The server's full DenseNet-121 state, packed, hashed and synced, against a synced write of its bytes."""
    model = build_model("densenet121", 1, 5, 0)
    tensors, parts = first_state(model).model, roles(model)
    c, k = ({name: tensors[name].clone() for name in names} for names in (parts.parameters, parts.statistics))
    state = ServerState(1, tensors, c, k)
    data = pack(state)
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        (folder / "objects").mkdir()

        def plain() -> None:
            with (folder / "plain").open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

        plain_time, our_time = best_times(plain, lambda: write_object(folder, packed_parts(state)), repeats=9)
    detail = f"{len(data) / 1e6:.0f} MB: {our_time:.3f} s, plain {plain_time:.3f} s"
    return [Ratio("checkpoint write / plain write with fsync", our_time / plain_time, at_most=2.0, detail=detail)]


def measure() -> list[Ratio]:
    """All of the core's figures."""
    return [*measure_steps(), *measure_memory(), *measure_aggregation(), *measure_checkpoint()]


def train_twice(algorithm: str) -> None:
    """Train two rounds and print the peak memory of this process in KiB."""
    data = patches()
    work = plain_round(data) if algorithm == "plain" else corrected_round(algorithm, data)
    for _ in range(2):
        work()
    print(peak_resident())


if __name__ == "__main__":
    aggregate_stream() if sys.argv[1] == "aggregate" else train_twice(sys.argv[1])
