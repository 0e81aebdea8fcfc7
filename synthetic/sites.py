"""Settings and a seed → a federation: sites whose patches differ in style, labels, density and noise as
asked.

The style skew is the paper's: an image of a site has the site's own style with probability p, else that of
another site; of two sites with and without a LUT, site 1 applies it with probability p and site 2 with 1 − p.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mammo.style import NO_STYLE, Style
from mammofed.errors import BadSetting
from synthetic.lesions import CLASSES
from synthetic.patches import Labels, Look, Patches, Styling, balanced_labels, draw_patches

TRAIN, VALIDATION, TEST = range(3)  # branches of a federation's seed
STYLES = 2  # branch of a part's seed, beside its labels and its chunks


@dataclass(frozen=True, eq=False)
class PatchArray:
    """Patches in memory, as a patch source."""

    images: Patches  # (n, size, size)
    labels: Labels  # (n,)
    style_site: NDArray[np.int64]  # (n,), number of the site whose style each patch has
    classes: tuple[str, ...] = CLASSES

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all pixels and labels."""
        digest = hashlib.blake2b(np.ascontiguousarray(self.images).data, digest_size=16)
        digest.update(np.ascontiguousarray(self.labels).data)
        digest.update(repr((self.images.shape, self.classes)).encode())
        return digest.hexdigest()

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return patches (B, 1, size, size) in [0, 1]."""
        return self.images[indices][:, None]


@dataclass(frozen=True)
class SiteSettings:
    """One site: its name, its vendor's style, how many patches it has, and its scanner."""

    name: str
    style: Style
    patches: int = 2000  # train and validation together
    noise: float = Look.noise


@dataclass(frozen=True)
class FederationSettings:
    """What a federation is drawn from; `replace(PRESETS[...], skew=0.8)` turns one dial."""

    sites: tuple[SiteSettings, ...]
    skew: float = 1.0  # p: probability that an image has its own site's style; 1 / N makes sites alike
    label_skew: float = 0.0  # 0: all classes alike at each site; 1: each site has its own classes only
    density_skew: float = 0.0  # 0: same tissue; 1: from fatty at the first site to dense at the last
    size: int = 64  # pixels a side
    validation: float = 0.15  # share of a site's patches
    test: int = 2000  # patches of the shared test set, all styles in equal parts


@dataclass(frozen=True)
class SyntheticSite:
    """A site's patch sources; the sites' tests together are the shared test set."""

    name: str
    style: Style
    train: PatchArray
    validation: PatchArray
    test: PatchArray


VENDORS = (
    SiteSettings("hospital-1", Style("sigmoid", centre=0.7, width=0.36)),
    SiteSettings("hospital-2", NO_STYLE),
    SiteSettings("hospital-3", Style("sigmoid", centre=0.45, width=0.45), noise=0.2),
    SiteSettings("hospital-4", Style("sigmoid", centre=0.64, width=0.2), noise=0.08),
    SiteSettings("hospital-5", Style("sigmoid", centre=0.55, width=0.3)),
)

PRESETS = {
    "two-hospitals": FederationSettings(VENDORS[:2]),
    "five-vendors": FederationSettings(
        tuple(replace(site, patches=n) for site, n in zip(VENDORS, (1600, 2400, 800, 1200, 2000), strict=True)),
        density_skew=0.3,
    ),
}


def sites_of(count: int, patches: int = 2000) -> tuple[SiteSettings, ...]:
    """Return any number of sites of equal size; the vendors repeat after five."""
    if count < 1:
        raise BadSetting(f"{count} sites: at least one is needed")
    chosen = (VENDORS[number % len(VENDORS)] for number in range(count))
    return tuple(
        replace(site, name=f"hospital-{number}", patches=patches) for number, site in enumerate(chosen, 1)
    )


def federation(settings: FederationSettings | str, seed: int, workers: int = 2) -> tuple[SyntheticSite, ...]:
    """Draw all sites of a preset or of given settings; the same seed gives the same bits."""
    if isinstance(settings, str):
        settings = preset(settings)
    check(settings)
    return tuple(_site(settings, number, seed, workers) for number in range(len(settings.sites)))


def preset(name: str) -> FederationSettings:
    """Return the named preset."""
    if name not in PRESETS:
        raise BadSetting(f"federation {name!r}: use one of {', '.join(PRESETS)}")
    return PRESETS[name]


def check(settings: FederationSettings) -> None:
    """Refuse settings that cannot be drawn."""
    sites = settings.sites
    if not sites or len({site.name for site in sites}) < len(sites):
        raise BadSetting(f"sites {[site.name for site in sites]}: at least one, each with its own name")
    if not 1 / len(sites) <= settings.skew <= 1:
        raise BadSetting(f"skew {settings.skew}: use {1 / len(sites):g} (sites alike) to 1 (each its own style)")
    for dial in ("label_skew", "density_skew"):
        if not 0 <= getattr(settings, dial) <= 1:
            raise BadSetting(f"{dial} {getattr(settings, dial)}: use 0 to 1")
    if not 0 < settings.validation < 1:
        raise BadSetting(f"validation {settings.validation}: a share between 0 and 1 is needed")
    smallest = min(*(site.patches for site in sites), settings.test // len(sites))
    if smallest < 2 * len(CLASSES):
        raise BadSetting(f"{smallest} patches for a site or its test: at least {2 * len(CLASSES)} are needed")


def class_weights(number: int, settings: FederationSettings) -> NDArray[np.float64]:
    """Return the proportions of the classes at a site: its own classes are those of its number modulo N."""
    groups = min(len(settings.sites), len(CLASSES))
    own = np.arange(len(CLASSES)) % groups == number % groups
    alike = np.full(len(CLASSES), 1 / len(CLASSES))
    return np.asarray((1 - settings.label_skew) * alike + settings.label_skew * own / own.sum())


def site_look(number: int, settings: FederationSettings) -> Look:
    """Return the scanner and the tissue of a site: density rises from the first to the last."""
    place = number / max(1, len(settings.sites) - 1) - 0.5
    density = Look.density + 0.2 * settings.density_skew * place
    return Look(settings.size, density=density, noise=settings.sites[number].noise)


def style_indices(count: int, number: int, settings: FederationSettings, seed: int) -> NDArray[np.int64]:
    """Draw the site whose style each image of a site has: its own with probability p, else any other's.

    The same seed gives the same draws for each p: turning the dial changes styles and nothing else.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STYLES,)))
    own = rng.random(count) < settings.skew
    step = rng.integers(1, max(2, len(settings.sites)), count)
    return np.where(own, number, (number + step) % len(settings.sites))


def _site(settings: FederationSettings, number: int, seed: int, workers: int) -> SyntheticSite:
    site = settings.sites[number]
    held = max(1, round(site.patches * settings.validation))
    train = _source(site.patches - held, number, settings, _part_seed(seed, number, TRAIN), workers)
    validation = _source(held, number, settings, _part_seed(seed, number, VALIDATION), workers)
    share = len(range(number, settings.test, len(settings.sites)))
    pure = replace(settings, skew=1.0, label_skew=0.0)
    test = _source(share, number, pure, _part_seed(seed, number, TEST), workers)
    return SyntheticSite(site.name, site.style, train, validation, test)


def _source(count: int, number: int, settings: FederationSettings, seed: int, workers: int) -> PatchArray:
    labels = balanced_labels(count, class_weights(number, settings), seed)
    index = style_indices(count, number, settings, seed)
    styles = tuple(site.style for site in settings.sites)
    images = draw_patches(labels, site_look(number, settings), seed, Styling(styles, index), workers)
    return PatchArray(images, labels, index)


def _part_seed(seed: int, number: int, part: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(number, part)).generate_state(1, np.uint64)[0])
