"""What the user names as data → the sites' patches, ready to train on."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.mnist import mnist_sites
from fl_core.data import Augment, Images, Indices, PatchSource, SiteData
from mammo.augment import augment
from mammo.folder import is_image_folder, open_folder
from mammo.store import is_begun, is_store, open_store
from mammo.style import NO_STYLE, Style, parse_style, sigmoid
from mammofed.errors import BadData, BadSetting
from synthetic.sites import FederationSettings, federation, sites_of


@dataclass(frozen=True)
class DataChoice:
    """The data of a run, as asked for; it goes into result.json."""

    data: str = "synthetic"  # a key of SOURCES
    folder: str | None = None  # of files, where the data need one
    sites: int = 2
    skew: float = 1.0  # p: style skew of synthetic data, label skew of MNIST
    image_size: int = 64  # pixels, of synthetic data
    patches: int = 2000  # a site, of synthetic data; validation patches included
    seed: int = 0
    site: tuple[str, ...] = ()  # NAME=PATH[,style=STYLE] of each site; given, the fields above but seed are idle
    test: str | None = None  # PATH of the test patches that all sites share

    def as_json(self) -> dict[str, Any]:
        """A plain form, as JSON gives it back."""
        return {**asdict(self), "site": list(self.site)}


def synthetic_sites(choice: DataChoice) -> tuple[SiteData, ...]:
    """Synthetic hospitals that differ in style by the skew; their tests together hold all styles."""
    settings = FederationSettings(
        sites_of(choice.sites, choice.patches), skew=choice.skew, size=choice.image_size, test=choice.patches
    )
    drawn = federation(settings, choice.seed)
    return tuple(
        SiteData(site.name, site.train, site.test, order_seed(choice, number)) for number, site in enumerate(drawn)
    )


def mnist(choice: DataChoice) -> tuple[SiteData, ...]:
    """MNIST shared out by label."""
    if choice.folder is None:
        raise BadSetting("--data mnist needs --data-dir, the folder with MNIST's IDX files")
    parts = mnist_sites(Path(choice.folder), choice.sites, choice.skew, choice.seed)
    return tuple(
        SiteData(f"site-{number + 1}", train, test, order_seed(choice, number))
        for number, (train, test) in enumerate(parts)
    )


def order_seed(choice: DataChoice, number: int) -> int:
    """A seed of its own for the order in which each site draws its patches."""
    return choice.seed * 1000 + number


SOURCES = {"synthetic": synthetic_sites, "mnist": mnist}


def sites_from(choice: DataChoice) -> tuple[SiteData, ...]:
    """The sites that are given by path, or those of the data of that name."""
    if choice.site:
        return given_sites(choice)
    if choice.data not in SOURCES:
        raise BadSetting(f"data {choice.data!r}: choose one of {', '.join(SOURCES)}")
    return SOURCES[choice.data](choice)


@dataclass(frozen=True)
class StyledPatches:
    """Patches of another source in a style, or a share of them."""

    source: PatchSource
    style: Style = NO_STYLE
    first: int = 0  # with `step`: every so manieth patch from this one on
    step: int = 1

    @property
    def labels(self) -> Indices:
        """(n,) class numbers."""
        return self.source.labels[self.first :: self.step]

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names."""
        return self.source.classes

    @property
    def fingerprint(self) -> str:
        """The source's, with what is done to it."""
        return f"{self.source.fingerprint}:{self.style}:{self.first}:{self.step}"

    def read(self, indices: Indices) -> Images:
        """(B, 1, H, W) in [0, 1]."""
        patches = self.source.read(self.first + self.step * indices)
        return sigmoid(patches, self.style) if self.style.kind == "sigmoid" else patches


def given_sites(choice: DataChoice) -> tuple[SiteData, ...]:
    """Sites from patch stores or folders by class; a shared test set is dealt out, each in its site's style."""
    shared = open_patches(Path(choice.test), None) if choice.test else None
    count = len(choice.site)
    sites = []
    for number, words in enumerate(choice.site):
        name, path, style = parse_site(words)
        train = StyledPatches(open_patches(path, "train"), style)
        test = StyledPatches(shared, style, number, count) if shared else StyledPatches(own_test(path), style)
        sites.append(SiteData(name, train, test, order_seed(choice, number)))
    check_sizes(sites)
    return tuple(sites)


def check_sizes(sites: list[SiteData]) -> None:
    """Refuse patches that differ in size: a lesion would be larger in one place than in the other."""
    sources = {site.name: site.train for site in sites} | {f"the test of {site.name}": site.test for site in sites}
    shapes = {name: one.read(np.zeros(1, np.int64)).shape[2:] for name, one in sources.items() if len(one.labels)}
    sizes = {name: " × ".join(map(str, shape)) for name, shape in shapes.items()}
    first, usual = next(iter(sizes.items()), ("", ""))
    for name, size in sizes.items():
        if size != usual:
            raise BadData(
                f"{first} has patches of {usual} px, {name} of {size} px: "
                "cut both alike (mammofed patches --patch N)"
            )


def parse_site(words: str) -> tuple[str, Path, Style]:
    """Read NAME=PATH[,style=STYLE]."""
    name, _, rest = words.partition("=")
    path, _, style = rest.partition(",style=")
    found = parse_style(style) if style else NO_STYLE
    if not name or not path or found.kind == "voi":
        raise BadSetting(f"site {words!r}: use NAME=PATH or NAME=PATH,style=sigmoid:CENTRE:WIDTH")
    return name, Path(path), found


def open_patches(path: Path, split: str | None) -> PatchSource:
    """A patch store, or one split of it; or a folder by class."""
    if not path.exists():
        raise BadSetting(f"no file or folder {path}")
    if is_store(path) or is_begun(path):
        return open_store(path, split)
    if path.is_dir() and is_image_folder(path):
        return open_folder(path)
    raise BadSetting(f"{path} is neither a patch store (mammofed patches) nor a folder with one folder a class")


def own_test(path: Path) -> PatchSource:
    """The test split of a site's own store."""
    if not is_store(path):
        raise BadSetting(f"{path} has no test split of its own: give --test a store or a folder by class")
    return open_store(path, "test")


def augmentation(choice: DataChoice) -> Augment | None:
    """Flips, turns and shifts for patches cut from mammograms; none for data that are drawn, or digits."""
    return augment if choice.site else None
