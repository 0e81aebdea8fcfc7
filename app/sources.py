"""What the user names as data → the sites' patches, ready to train on."""

from dataclasses import dataclass
from pathlib import Path

from app.mnist import mnist_sites
from fl_core.data import SiteData
from mammofed.errors import BadSetting
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
    """The sites of the data of that name."""
    if choice.data not in SOURCES:
        raise BadSetting(f"data {choice.data!r}: choose one of {', '.join(SOURCES)}")
    return SOURCES[choice.data](choice)
