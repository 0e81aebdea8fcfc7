"""One function and many items → results as they come, over some cores; a decoder that dies takes one item."""

import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

from mammofed.processes import leave_with_parent, without_main

A = TypeVar("A")
B = TypeVar("B")


DEADLINE = 300.0  # seconds for one item: some mammograms take two, so only a decoder that hangs is ended
MAX_DATA = 2**33  # bytes that one process may ask for: several times what the largest file needs
DIED = "the decoder crashed, hung or ran out of memory: export it again"


def over_cores(work: Callable[[A], B], items: Iterable[A], workers: int, crashed: Callable[[A], B]) -> Iterator[B]:
    """Run in this process with one worker; else in several, each item within bounds, and few of them waiting."""
    if workers <= 1:
        yield from map(work, items)
        return
    queue = iter(items)
    task, module = partial(_in_time, work, DEADLINE), getattr(work, "func", work).__module__
    while True:
        taken: list[A] = []  # handed out, and without a result yet
        try:
            with _pool(module, workers) as pool:
                yield from _drain(pool, task, queue, taken, 2 * workers)
            return
        except BrokenProcessPool:
            for item in taken:
                yield _alone(module, task, item, crashed)


def _drain(
    pool: ProcessPoolExecutor, work: Callable[[A], B], queue: Iterator[A], taken: list[A], ahead: int
) -> Iterator[B]:
    """Results of the queue as they come, until it is empty or a process dies."""
    running: dict[Future[B], A] = {}
    while True:
        for item in islice(queue, ahead - len(running)):
            taken.append(item)
            with without_main():
                running[pool.submit(work, item)] = item
        if not running:
            return
        ready, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in ready:
            result = future.result()
            taken.remove(running.pop(future))
            yield result


def _in_time(work: Callable[[A], B], seconds: float, item: A) -> B:
    """Work on one item in a process that ends if it takes longer: a decoder that hangs hears nothing else."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return work(item)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _pool(module: str, workers: int) -> ProcessPoolExecutor:
    """Up to so many processes, as they are needed, forked from one that has imported the work's module alone."""
    context = get_context("forkserver")
    context.set_forkserver_preload([module])
    return ProcessPoolExecutor(workers, context, initializer=_begin)


def _begin() -> None:
    """What each process does first: leave with its parent, and ask for no more memory than any file needs."""
    leave_with_parent()
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = MAX_DATA if hard == resource.RLIM_INFINITY else min(MAX_DATA, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _alone(module: str, work: Callable[[A], B], item: A, crashed: Callable[[A], B]) -> B:
    """Run one item in a process of its own: a second death is the item's fault."""
    with _pool(module, 1) as pool, without_main():
        try:
            return pool.submit(work, item).result()
        except BrokenProcessPool:
            return crashed(item)
