"""Labels, a look and a seed → patches in [0, 1], chunk by chunk, the same bits on any number of workers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from mammo.style import NO_STYLE, Style, sigmoid
from mammofed.errors import BadSetting
from synthetic.lesions import CLASSES, Grid, draw_fibres, draw_lesions
from synthetic.textures import power_law_spectra

CHUNK = 64  # patches drawn from one seed
LABELS, CHUNKS = 0, 1  # branches of a seed: what is drawn, and how it looks

Patches = NDArray[np.float32]  # (B, size, size), in [0, 1]
Labels = NDArray[np.int64]  # (B,), indices of CLASSES


@dataclass(frozen=True)
class Look:
    """How a scanner and its patients look, before any style."""

    size: int = 64  # pixels a side
    field: float = 14.0  # mm a side: 256 pixels of a mammogram resized as by Shen et al.
    density: float = 0.58  # mean grey level of the tissue
    noise: float = 0.12  # white noise, in standard deviations of the tissue's texture

    def __post_init__(self) -> None:
        if not 0.2 <= self.density <= 0.7 or not 0 <= self.noise <= 2:
            raise BadSetting(f"density {self.density}, noise {self.noise}: use 0.2 to 0.7, and 0 to 2")

    @property
    def grid(self) -> Grid:
        """Pixels and spacing."""
        return Grid(self.size, self.field / self.size)


def synthetic_patches(
    n: int,
    size: int,
    seed: int,
    style: Style = NO_STYLE,
    workers: int = 2,
) -> tuple[Patches, Labels]:
    """Draw n patches (n, size, size) in [0, 1], and their labels, the five classes in equal parts."""
    labels = balanced_labels(n, np.ones(len(CLASSES)), seed)
    return draw_patches(labels, Look(size), seed, Styling((style,), np.zeros(n, np.int64)), workers), labels


@dataclass(frozen=True, eq=False)
class Styling:
    """Which of some styles each patch has."""

    styles: tuple[Style, ...]
    index: NDArray[np.int64]  # (n,), into styles


def draw_patches(labels: Labels, look: Look, seed: int, styling: Styling, workers: int = 2) -> Patches:
    """Draw one patch a label into one array."""
    patches = np.empty((len(labels), look.size, look.size), np.float32)
    for number, chunk in enumerate(patch_chunks(labels, look, seed, styling, workers)):
        patches[number * CHUNK : (number + 1) * CHUNK] = chunk
    return patches


def patch_chunks(labels: Labels, look: Look, seed: int, styling: Styling, workers: int = 2) -> Iterator[Patches]:
    """Draw chunks of patches in order; no more than two chunks a worker are alive at a time."""
    if workers < 1 or len(labels) < 1:
        raise BadSetting(f"{len(labels)} patches by {workers} workers: at least one of each is needed")

    def chunk(number: int) -> Patches:
        here = slice(number * CHUNK, (number + 1) * CHUNK)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(CHUNKS, number)))
        return apply_styles(draw_chunk(labels[here], look, rng), styling.styles, styling.index[here])

    numbers = range(-(-len(labels) // CHUNK))
    if workers == 1:
        yield from map(chunk, numbers)
        return
    with ThreadPoolExecutor(workers) as pool:
        for first in range(0, len(numbers), 2 * workers):
            yield from pool.map(chunk, numbers[first : first + 2 * workers])


def draw_chunk(labels: Labels, look: Look, rng: np.random.Generator) -> Patches:
    """Draw tissue, add lesions blurred by imaging, and set brightness and contrast at random."""
    count, grid = len(labels), look.grid
    maps = draw_lesions(labels, grid, rng)
    maps += draw_fibres(count, grid, rng)
    beta = rng.uniform(2.6, 3.2, count).astype(np.float32)
    turn = rng.uniform(0, 2 * np.pi, count)
    grain = rng.uniform(0, 1.2, (count, 1)) * np.column_stack([np.cos(turn), np.sin(turn)])
    noise = rng.uniform(0.6, 1.4, count).astype(np.float32) * np.float32(look.noise)
    spectra = power_law_spectra(grid.size, beta, grain.astype(np.float32), noise, rng)
    blur = rng.uniform(0.08, 0.2, count).astype(np.float32)  # mm, standard deviation
    spectra += blurred(scipy.fft.rfft2(maps), blur / np.float32(grid.spacing))
    spectra[:, 0, 0] = 0
    return _expose(scipy.fft.irfft2(spectra, s=(grid.size, grid.size)), look, rng)


def apply_styles(patches: Patches, styles: tuple[Style, ...], index: NDArray[np.int64]) -> Patches:
    """Give each patch the style it has."""
    for number, style in enumerate(styles):
        rows = np.flatnonzero(index == number)
        if style.kind == "voi":
            raise BadSetting(f"style {style}: a synthetic patch has no file; use none or sigmoid:CENTRE:WIDTH")
        if style.kind == "sigmoid" and len(rows):
            patches[rows] = sigmoid(patches[rows], style)
    return patches


def balanced_labels(n: int, weights: NDArray[np.float64], seed: int) -> Labels:
    """Return labels in the proportions of the weights, by largest remainder, in random order."""
    if n < 1:
        raise BadSetting(f"{n} patches: at least one is needed")
    share = n * weights / weights.sum()
    counts = np.floor(share).astype(np.int64)
    counts[np.argsort(counts - share, kind="stable")[: n - counts.sum()]] += 1
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(LABELS,)))
    return rng.permutation(np.repeat(np.arange(len(weights)), counts))


def blurred(spectra: NDArray[np.complex64], sigma: NDArray[np.float32]) -> NDArray[np.complex64]:
    """Multiply by the transfer function of a Gaussian blur of sigma (B,) pixels."""
    size = spectra.shape[1]
    f = np.arange(size // 2 + 1, dtype=np.float32) / np.float32(size)
    half = np.exp(-2 * np.square(np.float32(np.pi) * sigma[:, None] * f))
    whole = np.concatenate([half, half[:, (size - 1) // 2 : 0 : -1]], axis=1)
    spectra *= whole[:, :, None] * half[:, None, :]
    return spectra


def _expose(tissue: Patches, look: Look, rng: np.random.Generator) -> Patches:
    """Give tissue of mean 0 its mean, contrast and tone curve, at random: grey levels tell no class."""
    draw = rng.random((3, len(tissue), 1, 1), dtype=np.float32)
    tone = np.float32(0.8) * (draw[0] - np.float32(0.5))
    contrast = np.float32(0.04) + np.float32(0.04) * draw[1]
    mean = np.float32(look.density) + np.float32(0.1) * (draw[2] - np.float32(0.5))
    variance = np.einsum("bij,bij->b", tissue, tissue) / np.float32(look.size**2)
    deviation = np.sqrt(variance)[:, None, None]
    # mean + contrast (z + t z² / (1 + |z|)) with z = tissue / deviation: it rises everywhere for |t| < 1,
    # and hides how skewed the tissue is
    curve = np.abs(tissue)
    curve += deviation
    np.divide(tissue, curve, out=curve)
    curve *= tone * contrast / deviation
    curve += contrast / deviation
    curve *= tissue
    curve += mean
    return np.asarray(curve.clip(0, 1, out=curve), dtype=np.float32)
