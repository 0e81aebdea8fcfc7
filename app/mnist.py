"""MNIST's IDX files → sites with label skew: a site has its own digits with probability p."""

import gzip
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_core.data import ArrayPatches
from mammofed.errors import BadData, BadSetting

MEAN, STD = 0.1307, 0.3081  # of all training pixels, in [0, 1]
DIGITS = tuple("0123456789")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of bytes, plain or gzipped: magic number, sizes, values."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise BadData(f"{path} cannot be read ({error})") from error
    axes = data[3] if len(data) > 3 and data[:3] == b"\0\0\x08" else 0
    shape = np.frombuffer(data[4 : 4 + 4 * axes], ">u4").tolist()
    if not axes or len(data) != 4 + 4 * axes + math.prod(shape):
        raise BadData(f"{path} is no IDX file of bytes, or is cut short: fetch it again")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def find(folder: Path, name: str) -> Path:
    """The file of that name, plain or gzipped."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise BadData(f"{folder} holds neither {name} nor {name}.gz: give --data-dir the folder of MNIST's IDX files")


def read_part(folder: Path, part: str) -> ArrayPatches:
    """The `train` or `t10k` part, by mean and standard deviation."""
    images = read_idx(find(folder, f"{part}-images-idx3-ubyte")).astype(np.float32) / 255
    labels = read_idx(find(folder, f"{part}-labels-idx1-ubyte")).astype(np.int64)
    if len(images) != len(labels):
        raise BadData(f"{folder}: {len(images)} images and {len(labels)} labels of {part}: fetch the files again")
    normed = np.asarray((images[:, None] - MEAN) / STD, dtype=np.float32)
    return ArrayPatches(normed, labels, DIGITS)


def owners(labels: NDArray[np.int64], sites: int, skew: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """The site of each image: the one its digit belongs to with probability p, else any other alike."""
    home = labels * sites // len(DIGITS)
    away = (home + rng.integers(1, max(sites, 2), len(labels))) % sites
    return np.where(rng.random(len(labels)) < skew, home, away)


def mnist_sites(folder: Path, sites: int, skew: float, seed: int) -> list[tuple[ArrayPatches, ArrayPatches]]:
    """(train, test) of each site: both parts of MNIST shared out alike."""
    if not 1 <= sites <= len(DIGITS) or not 1 / sites <= skew <= 1:
        raise BadSetting(f"{sites} sites with skew {skew}: 1 to 10 sites, and a skew from 1/sites to 1")
    rng = np.random.default_rng([seed, 28])
    train, test = (read_part(folder, part) for part in ("train", "t10k"))
    return list(zip(*(shared_out(part, sites, skew, rng) for part in (train, test)), strict=True))


def shared_out(part: ArrayPatches, sites: int, skew: float, rng: np.random.Generator) -> list[ArrayPatches]:
    """One part of MNIST as one source a site."""
    owner = owners(part.labels, sites, skew, rng)
    return [ArrayPatches(part.images[owner == i], part.labels[owner == i], DIGITS) for i in range(sites)]
