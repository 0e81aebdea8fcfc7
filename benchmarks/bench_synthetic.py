"""Synthetic patches against the bare FFTs they need: time, rate on two cores, and memory for any number."""

import tracemalloc

import numpy as np
import scipy.fft

from benchmarks.ratio import Ratio, best_times
from mammo.style import NO_STYLE
from synthetic.patches import CHUNK, Look, Styling, patch_chunks, synthetic_patches

SIZE, COUNT = 64, 20 * CHUNK


def bare_ffts(count: int) -> None:
    """Transform what `count` patches need: white noise and lesion maps forward, their sum back."""
    maps = np.ones((CHUNK, SIZE, SIZE), np.float32)
    for _ in range(count // CHUNK):
        scipy.fft.rfft2(maps)
        scipy.fft.irfft2(scipy.fft.rfft2(maps), s=(SIZE, SIZE))


def peak_megabytes(count: int) -> float:
    """Return the peak of allocated memory while `count` patches go by in chunks."""
    labels = np.arange(count) % 5
    tracemalloc.start()
    for _ in patch_chunks(labels, Look(SIZE), 0, Styling((NO_STYLE,), np.zeros_like(labels))):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def measure() -> list[Ratio]:
    """Compare one worker with the FFTs, take the rate of two workers, and memory at ten times the number."""
    ffts, alone, both = best_times(
        lambda: bare_ffts(COUNT),
        lambda: synthetic_patches(COUNT, SIZE, 0, workers=1),
        lambda: synthetic_patches(COUNT, SIZE, 0, workers=2),
    )
    few, many = peak_megabytes(20 * CHUNK), peak_megabytes(200 * CHUNK)
    per_patch = f"{1e6 * alone / COUNT:.0f} µs against {1e6 * ffts / COUNT:.0f} µs a patch of {SIZE} px"
    return [
        Ratio("synthetic patches / bare FFTs", alone / ffts, at_most=4, detail=per_patch),
        Ratio(
            "synthetic patches a second / 2,000",
            COUNT / both / 2000,
            at_least=1,
            detail="two workers, all in",
        ),
        Ratio("synthetic memory, 10 × patches", many / few, at_most=1.5, detail=f"{few:.0f} to {many:.0f} MB"),
    ]
