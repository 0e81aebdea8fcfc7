"""One function and many items → results as they come, over some cores; a decoder that dies takes one item."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def over_cores(work: Callable[[A], B], items: Iterable[A], workers: int, crashed: Callable[[A], B]) -> Iterator[B]:
    """Run in this process with one worker; else in several, with few items waiting at a time."""
    if workers <= 1:
        yield from map(work, items)
        return
    queue = iter(items)
    while True:
        taken: list[A] = []  # handed out, and without a result yet
        try:
            with _pool(workers) as pool:
                yield from _drain(pool, work, queue, taken, 2 * workers)
            return
        except BrokenProcessPool:
            for item in taken:
                yield _alone(work, item, crashed)


def _drain(
    pool: ProcessPoolExecutor, work: Callable[[A], B], queue: Iterator[A], taken: list[A], ahead: int
) -> Iterator[B]:
    """Results of the queue as they come, until it is empty or a process dies."""
    running: dict[Future[B], A] = {}
    while True:
        for item in islice(queue, ahead - len(running)):
            taken.append(item)
            running[pool.submit(work, item)] = item
        if not running:
            return
        ready, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in ready:
            result = future.result()
            taken.remove(running.pop(future))
            yield result


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _alone(work: Callable[[A], B], item: A, crashed: Callable[[A], B]) -> B:
    """Run one item in a process of its own: a second death is the item's fault."""
    with _pool(1) as pool:
        try:
            return pool.submit(work, item).result()
        except BrokenProcessPool:
            return crashed(item)
