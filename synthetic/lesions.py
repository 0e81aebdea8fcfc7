"""Labels and a pixel grid → sharp maps of masses, calcifications and fibres, before the blur of imaging.

All sizes are in millimetres and become pixels by the grid's spacing. Classes differ by shape and number:
position is drawn alike, and size and contrast such that grey-level statistics hardly differ.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mammofed.errors import BadSetting

CLASSES = ("background", "mass_benign", "mass_malignant", "calc_benign", "calc_malignant")
BACKGROUND, MASS_BENIGN, MASS_MALIGNANT, CALC_BENIGN, CALC_MALIGNANT = range(5)
LINE_WIDTH = np.float32(0.28)  # mm, of spicules and fibres
TURN = 512  # entries of a tabled outline
BENIGN_OUTLINE = (0.16, 0.04, 0.0, 0.0, 0.0, 0.0, 0.0)  # largest |c_k|, k from 2: oval and hardly more
MALIGNANT_OUTLINE = (0.23, 0.18, 0.16, 0.14, 0.13, 0.12, 0.11)  # lobes of all sizes

Floats = NDArray[np.float32]
Maps = NDArray[np.float32]  # (B, H, W), in standard deviations of the tissue's texture


@dataclass(frozen=True)
class Grid:
    """A square patch: its pixels and their distance."""

    size: int  # pixels a side
    spacing: float  # mm a pixel

    def __post_init__(self) -> None:
        if self.size < 16 or self.spacing <= 0:
            raise BadSetting(
                f"patches of {self.size} px at {self.spacing} mm: at least 16 px and a spacing above 0"
            )

    @property
    def field(self) -> float:
        """Side of the patch in mm."""
        return self.size * self.spacing


def draw_lesions(labels: NDArray[np.int64], grid: Grid, rng: np.random.Generator) -> Maps:
    """Draw each label's lesion about the middle of its patch; a background stays empty."""
    centres = _uniform(rng, -0.12, 0.12, (len(labels), 2)) * np.float32(grid.field)
    maps = np.zeros((len(labels), grid.size, grid.size), np.float32)
    masses = np.flatnonzero((labels == MASS_BENIGN) | (labels == MASS_MALIGNANT))
    if len(masses):
        maps[masses] = draw_masses(labels[masses] == MASS_MALIGNANT, centres[masses], grid, rng)
    calcs = np.flatnonzero((labels == CALC_BENIGN) | (labels == CALC_MALIGNANT))
    if len(calcs):
        maps[calcs] = draw_calcifications(labels[calcs] == CALC_MALIGNANT, centres[calcs], grid, rng)
    return maps


def draw_masses(malignant: NDArray[np.bool_], centres: Floats, grid: Grid, rng: np.random.Generator) -> Maps:
    """Draw masses: round to oval and circumscribed, or irregular with spicules that leave its margin."""
    count = len(malignant)
    # Between lobes there is no body: a tenth more radius gives both classes the same grey levels.
    radius = _uniform(rng, 1.5, 3.2, count) * np.where(malignant, np.float32(1.1), np.float32(1))
    contrast = _uniform(rng, 2.0, 3.6, count)
    maps = _domes(centres, radius[:, None] * _outlines(malignant, rng), grid)
    rows = np.flatnonzero(malignant)
    if len(rows):
        maps[rows] += _spicules(centres[rows], radius[rows], grid, rng)
    maps *= contrast[:, None, None]
    return maps


def draw_calcifications(
    malignant: NDArray[np.bool_], centres: Floats, grid: Grid, rng: np.random.Generator
) -> Maps:
    """Draw clusters: few, larger and round, or many, fine and pleomorphic, some of them linear."""
    count, most = len(malignant), 20
    sick = malignant[:, None]
    number = np.where(malignant, rng.integers(9, most + 1, count), rng.integers(2, 6, count))
    present = np.arange(most) < number[:, None]
    reach = _uniform(rng, 1.2, 3.0, (count, 1))
    distance = reach * np.sqrt(rng.random((count, most), dtype=np.float32))
    angle = _uniform(rng, 0, 2 * np.pi, (count, most))
    stretch = np.where(sick, _uniform(rng, 1, 3, (count, most)), _uniform(rng, 1, 1.2, (count, most)))
    sigma = np.where(sick, _uniform(rng, 0.1, 0.18, (count, most)), _uniform(rng, 0.2, 0.32, (count, most)))
    peak = (
        np.where(sick, np.float32(1), np.float32(0.75))
        * _uniform(rng, 3.5, 7.0, (count, 1))
        * _uniform(rng, 0.6, 1.2, (count, most))
    )
    points = centres[:, None, :] + distance[..., None] * _direction(angle)
    root = np.sqrt(stretch)
    specks = Specks(points, sigma * root, np.divide(sigma, root, dtype=np.float32), peak * present)
    return stamp(specks, _uniform(rng, 0, np.pi, (count, most)), grid)


def draw_fibres(count: int, grid: Grid, rng: np.random.Generator, most: int = 3) -> Maps:
    """Draw Cooper's ligaments, ducts and vessels: faint curved lines across the whole patch.

    A line is one position a row (or a column, for the steeper half of all headings), shared by two pixels.
    """
    t = np.linspace(-0.5, 0.5, grid.size, dtype=np.float32)
    middle, slope, bend = (_uniform(rng, -w, w, (count, most, 1)) for w in (0.6, 1.0, 0.6))
    across = ((middle + slope * t + bend * t * t) + np.float32(0.5)) * np.float32(grid.size)
    strength = _uniform(rng, 0, 0.8, (count, most, 1)) * (LINE_WIDTH / np.float32(grid.spacing))
    value = strength * np.sqrt(1 + np.square(slope + 2 * bend * t))
    upright = rng.random((count, most, 1)) < 0.5
    floor = np.floor(across)
    share = across - floor
    along, near = np.arange(grid.size), floor.astype(np.int64)
    maps = np.zeros((count, grid.size, grid.size), np.float32)
    for pixel, part in ((near, 1 - share), (near + 1, share)):
        y, x = np.where(upright, along, pixel), np.where(upright, pixel, along)
        _scatter(maps, np.arange(count)[:, None, None], y, x, value * part)
    return maps


@dataclass(frozen=True)
class Specks:
    """Small bright ellipses."""

    centres: Floats  # (B, K, 2), mm from the middle of the patch
    long: Floats  # (B, K), standard deviation in mm along the axis
    short: Floats  # (B, K), across it
    peak: Floats  # (B, K), zero where there is none


def stamp(specks: Specks, angle: Floats, grid: Grid) -> Maps:
    """Add each speck's Gaussian profile to the few pixels around its centre."""
    here = np.nonzero(specks.peak)
    at = specks.centres[here] / np.float32(grid.spacing) + np.float32((grid.size - 1) / 2)
    # Specks finer than a pixel keep their mass and lose their height.
    pixel = np.float32(0.4)
    long, short = (np.hypot(s[here] / np.float32(grid.spacing), pixel) for s in (specks.long, specks.short))
    mass = specks.peak[here] * specks.long[here] * specks.short[here] / np.float32(grid.spacing**2)
    reach = int(np.ceil(2.5 * long.max(initial=pixel)))
    pixels = np.rint(at)[:, :, None] + np.arange(-reach, reach + 1, dtype=np.float32)  # (n, 2, 2 reach + 1)
    offset = pixels - at[:, :, None]
    dy, dx = offset[:, 0, :, None], offset[:, 1, None, :]
    y, x = (pixels[:, axis].astype(np.int64) for axis in (0, 1))
    axis = _direction(angle[here])
    along = dy * axis[:, 0, None, None] + dx * axis[:, 1, None, None]
    across = dx * axis[:, 0, None, None] - dy * axis[:, 1, None, None]
    exponent = np.square(along / long[:, None, None]) + np.square(across / short[:, None, None])
    value = np.exp(-0.5 * exponent) * (mass / (long * short))[:, None, None]
    maps = np.zeros((len(angle), grid.size, grid.size), np.float32)
    _scatter(maps, here[0][:, None, None], y[:, :, None], x[:, None, :], value)
    return maps


def splat(points: Floats, weight: Floats, grid: Grid) -> Maps:
    """Spread points (B, K, 2) in mm over their four nearest pixels; weights (B, K) are height × mm²."""
    at = points / np.float32(grid.spacing) + np.float32((grid.size - 1) / 2)
    corner = np.floor(at)
    part = at - corner
    y, x = corner[..., 0].astype(np.int64), corner[..., 1].astype(np.int64)
    weight = weight / np.float32(grid.spacing**2)
    row = np.arange(len(points))[:, None]
    maps = np.zeros((len(points), grid.size, grid.size), np.float32)
    for down, share_y in ((0, 1 - part[..., 0]), (1, part[..., 0])):
        for right, share_x in ((0, 1 - part[..., 1]), (1, part[..., 1])):
            value = weight * share_y * share_x
            _scatter(maps, row, y + down, x + right, value)
    return maps


def _scatter(
    maps: Maps, row: NDArray[np.int64], y: NDArray[np.int64], x: NDArray[np.int64], value: Floats
) -> None:
    """Add values to pixels of the maps; what falls outside is dropped."""
    size = maps.shape[1]
    inside = (y.view(np.uint64) < size) & (x.view(np.uint64) < size)
    flat = np.where(inside, (row * size + y) * size + x, 0)
    np.add.at(maps.reshape(-1), flat.reshape(-1), (value * inside).reshape(-1))


def _outlines(malignant: NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    """Draw outlines r = 1 + Re Σ c_k e^{ikθ}, tabled (B, TURN + 1) over a whole turn."""
    largest = np.where(malignant[:, None], MALIGNANT_OUTLINE, BENIGN_OUTLINE).astype(np.float32)
    modulus = largest * _uniform(rng, 0.4, 1.0, largest.shape)
    phase = _uniform(rng, 0, 2 * np.pi, largest.shape)
    parts = np.concatenate([modulus * np.cos(phase), -modulus * np.sin(phase)], axis=1)
    return np.maximum(1 + parts @ _harmonics(), np.float32(0.25))


@cache
def _harmonics() -> Floats:
    """Return cos kθ and sin kθ over a turn of the diamond |x| + |y| = 1: pixels need no arctangent."""
    u = np.arange(TURN + 1) * 4 / TURN
    x = np.where(u < 2, 1 - u, u - 3)
    y = np.where(u < 2, 1, -1) * (1 - np.abs(x))
    turns = np.arange(2, 2 + len(MALIGNANT_OUTLINE))[:, None] * np.arctan2(y, x)
    return np.concatenate([np.cos(turns), np.sin(turns)]).astype(np.float32)


def _domes(centres: Floats, outlines: Floats, grid: Grid) -> Maps:
    """Return the thickness √(1 − (ρ/r(θ))²) of rounded bodies, of outlines (B, TURN + 1) in mm."""
    middle = np.float32((grid.size - 1) / 2)
    axis = (np.arange(grid.size, dtype=np.float32) - middle) * np.float32(grid.spacing)
    y = axis[:, None] - centres[:, 0, None, None]
    x = axis - centres[:, 1, None, None]
    # on the diamond, u = 1 − x above and 3 + x below, and a quarter of a turn is 1
    place = x / (np.abs(x) + np.abs(y) + np.float32(1e-6))
    half = np.where(y < 0, np.float32(TURN / 4), np.float32(-TURN / 4))
    place *= half
    place += np.float32(TURN / 2) + half
    place += np.arange(len(centres), dtype=np.float32)[:, None, None] * np.float32(TURN + 1)
    thickness = (1 / np.square(outlines)).reshape(-1)[place.astype(np.intp)]
    thickness *= y * y + x * x
    np.subtract(1, thickness, out=thickness)
    np.maximum(thickness, 0, out=thickness)
    return np.asarray(np.sqrt(thickness, out=thickness))


def _spicules(centres: Floats, radius: Floats, grid: Grid, rng: np.random.Generator) -> Maps:
    """Draw thin straight lines that start inside the mass and fade outwards."""
    count, most = len(radius), 18
    angle = _uniform(rng, 0, 2 * np.pi, (count, most))
    present = np.arange(most) < rng.integers(10, most + 1, (count, 1))
    length = radius[:, None] * _uniform(rng, 0.8, 1.8, (count, most))
    steps = int(np.ceil(length.max() / grid.spacing))
    along = (np.arange(steps, dtype=np.float32) + np.float32(0.5)) / np.float32(steps)
    start = centres[:, None] + np.float32(0.6) * radius[:, None, None] * _direction(angle)
    heading = _direction(angle + _uniform(rng, -0.25, 0.25, (count, most)))
    points = start[:, :, None] + (along * length[..., None])[..., None] * heading[:, :, None]
    weight = (LINE_WIDTH * present * length)[..., None] * (np.float32(0.45) * (1 - along) / np.float32(steps))
    return splat(points.reshape(count, -1, 2), weight.reshape(count, -1), grid)


def _direction(angle: Floats) -> Floats:
    """Return unit vectors (..., 2) as (y, x)."""
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1)


def _uniform(rng: np.random.Generator, low: float, high: float, shape: int | tuple[int, ...]) -> Floats:
    return np.float32(low) + np.float32(high - low) * rng.random(shape, dtype=np.float32)
