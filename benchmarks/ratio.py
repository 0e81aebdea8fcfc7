"""Two functions → the ratio of their times, from interleaved repeats: these machines are noisy."""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context


@dataclass(frozen=True)
class Ratio:
    """One line of `make bench`: what was compared, the ratio, and the bound it is held to."""

    name: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    detail: str = ""

    @property
    def bound(self) -> str:
        """The bound in words; empty where the ratio is only shown."""
        above = f"≤ {self.at_most:g}" if self.at_most is not None else ""
        return above or (f"≥ {self.at_least:g}" if self.at_least is not None else "")

    @property
    def holds(self) -> bool:
        """Whether the ratio lies within its bound."""
        above = self.at_most is None or self.value <= self.at_most
        return above and (self.at_least is None or self.value >= self.at_least)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best_times(*works: Callable[[], object], repeats: int = 7) -> list[float]:
    """Minimum wall time of each work, taken in turns after one warm-up each."""
    for work in works:
        work()
    rounds = [[seconds(work) for work in works] for _ in range(repeats)]
    return [min(column) for column in zip(*rounds, strict=True)]


def own_process() -> ProcessPoolExecutor:
    """A fresh process: its memory is not what another work has left, and what it starts is started anew."""
    return ProcessPoolExecutor(1, get_context("spawn"))


def best_times_apart(*works: Callable[[], object], repeats: int = 7) -> list[float]:
    """As `best_times`, each work in a process of its own."""
    processes = [own_process() for _ in works]
    try:
        for process, work in zip(processes, works, strict=True):
            process.submit(work).result()
        rounds = [
            [process.submit(seconds, work).result() for process, work in zip(processes, works, strict=True)]
            for _ in range(repeats)
        ]
    finally:
        for process in processes:
            process.shutdown()
    return [min(column) for column in zip(*rounds, strict=True)]
