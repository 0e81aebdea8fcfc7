"""One function and many items → results as they come, over some cores; a decoder that dies takes one item."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def over_cores(
    work: Callable[[A], B], items: Iterable[A], workers: int, crashed: Callable[[A], B]
) -> Iterator[B]:
    """Run in this process with one worker; else in several, with few items waiting at a time."""
    if workers <= 1:
        yield from map(work, items)
        return
    queue = iter(items)
    broken: list[A] = []
    while True:
        for item in broken:
            yield _alone(work, item, crashed)
        broken = []
        with _pool(workers) as pool:
            running: dict[Future[B], A] = {}
            while not broken:
                for item in islice(queue, 2 * workers - len(running)):
                    running[pool.submit(work, item)] = item
                if not running:
                    return
                ready, _ = wait(running, return_when=FIRST_COMPLETED)
                if any(isinstance(future.exception(), BrokenProcessPool) for future in ready):
                    broken = list(running.values())
                    break
                for future in ready:
                    del running[future]
                    yield future.result()


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _alone(work: Callable[[A], B], item: A, crashed: Callable[[A], B]) -> B:
    """Run one item in a process of its own: a second death is the item's fault."""
    with _pool(1) as pool:
        try:
            return pool.submit(work, item).result()
        except BrokenProcessPool:
            return crashed(item)
