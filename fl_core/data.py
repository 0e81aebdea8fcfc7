"""Patch sources → batches in a seeded, endless order that any step can be resumed from."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mammofed.errors import BadData

Indices = NDArray[np.int64]
Images = NDArray[np.float32]  # (B, C, H, W)
Augment = Callable[[Images, np.random.Generator], Images]


class PatchSource(Protocol):
    """Labelled patches, read by index; an array in memory, a store on disk, a folder."""

    @property
    def labels(self) -> Indices:
        """(n,) class numbers."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, by number."""

    @property
    def fingerprint(self) -> str:
        """A digest that changes with the content."""

    def read(self, indices: Indices) -> Images:
        """(B, C, H, W) patches, mostly in [0, 1]."""


@dataclass(frozen=True)
class ArrayPatches:
    """Patches in memory."""

    images: Images  # (n, C, H, W)
    labels: Indices
    classes: tuple[str, ...]

    def read(self, indices: Indices) -> Images:
        """(B, C, H, W) patches."""
        return self.images[indices]

    @property
    def fingerprint(self) -> str:
        """A digest of images, labels and class names."""
        digest = hashlib.sha256(repr((self.images.shape, self.classes)).encode())
        digest.update(np.ascontiguousarray(self.images).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class JoinedPatches:
    """Several sources as one, in order; nothing is copied."""

    sources: tuple[PatchSource, ...]

    @property
    def labels(self) -> Indices:
        """(n,) class numbers of all sources."""
        return np.concatenate([source.labels for source in self.sources])

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of the first source; `federation` sees to it that all agree."""
        return self.sources[0].classes

    @property
    def fingerprint(self) -> str:
        """A digest of the sources' digests."""
        return hashlib.sha256("".join(source.fingerprint for source in self.sources).encode()).hexdigest()

    def read(self, indices: Indices) -> Images:
        """(B, C, H, W) patches, each from the source that holds it."""
        ends = np.cumsum([len(source.labels) for source in self.sources])
        owner = np.searchsorted(ends, indices, side="right")
        starts = ends - [len(source.labels) for source in self.sources]
        parts = {i: self.sources[i].read(indices[owner == i] - starts[i]) for i in np.unique(owner)}
        out = np.empty((len(indices), *next(iter(parts.values())).shape[1:]), np.float32)
        for i, part in parts.items():
            out[owner == i] = part
        return out


@dataclass(frozen=True)
class SiteData:
    """One site's patches, and the seed of the order in which they are drawn."""

    name: str
    train: PatchSource
    test: PatchSource
    seed: int

    @property
    def patches(self) -> int:
        """n_i."""
        return len(self.train.labels)


def pool(sites: Sequence[SiteData], seed: int) -> SiteData:
    """All sites' data as one site's (the row `centralized`)."""
    train, test = (JoinedPatches(tuple(getattr(site, part) for site in sites)) for part in ("train", "test"))
    return SiteData("pooled", train, test, seed)


def check_sites(sites: Sequence[SiteData]) -> None:
    """Refuse sites that cannot train together, naming the site and the remedy."""
    names = [site.name for site in sites]
    if not sites or len(set(names)) < len(names):
        raise BadData(f"sites {names}: give at least one site, each with a name of its own")
    for site in sites:
        if site.patches < 2:
            raise BadData(f"site {site.name!r} has {site.patches} training patches: at least 2 are needed")
        if site.train.classes != sites[0].train.classes:
            raise BadData(
                f"site {site.name!r} has classes {site.train.classes}, {names[0]!r} has {sites[0].train.classes}: "
                "bring them into one order"
            )


def draw(site: SiteData, batch: int, number: int) -> Indices:
    """The patches of the site's batch of that number: endless epochs, each a permutation of its own.

    Batches run across the end of an epoch, so that none is smaller than the others: batch normalisation cannot
    take one value a channel. A site with fewer patches than a batch trains on all of them at each step.
    """
    n = site.patches
    size = min(batch, n)
    start = number * size
    epochs = range(start // n, (start + size - 1) // n + 1)
    order = np.concatenate([np.random.default_rng([site.seed, epoch]).permutation(n) for epoch in epochs])
    offset = start - epochs[0] * n
    return order[offset : offset + size]


def whole_batches(site: SiteData, batch: int) -> Iterator[Indices]:
    """All patches once, in batches of nearly equal size, none of a single patch."""
    yield from np.array_split(np.arange(site.patches), -(-site.patches // batch))
