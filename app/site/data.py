"""A site's own settings → its patches, and the counts of them that may leave the site."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.glance import by_vendor
from app.sources import DataChoice, StyledPatches, open_patches, own_test, synthetic_sites
from fl_core.data import Augment, Indices, SiteData
from mammo.augment import augment
from mammo.style import NO_STYLE, Style, parse_style
from mammofed.errors import BadSetting
from mammofed.files import write_atomically

SYNTHETIC = "synthetic:"
FORM = "synthetic:NUMBER/SITES[,patches=N][,size=PIXELS][,skew=P][,seed=S]"


@dataclass(frozen=True)
class SiteSettings:
    """What the hospital decides, and nobody else: its data, and what may leave."""

    name: str
    data: str  # a patch store, a folder by class, or `synthetic:...`
    style: str = "none"
    test: str | None = None  # test patches, where the data have none of their own
    share_scores: bool = False  # let test scores leave, for pooled metrics
    floor: int = 10  # smaller counts, and what would be computed from them, are withheld


def read_settings(home: Path) -> SiteSettings:
    """The settings that `mammofed site join` wrote."""
    try:
        return SiteSettings(**json.loads((home / "site.json").read_bytes()))
    except FileNotFoundError as error:
        raise BadSetting(f"{home} is no site's folder: run mammofed site join KIT --data PATH first") from error


def write_settings(home: Path, settings: SiteSettings) -> None:
    """Keep the settings; they stay at the site."""
    write_atomically(home / "site.json", json.dumps(asdict(settings), indent=1).encode())


def open_site(settings: SiteSettings, seed: int) -> SiteData:
    """The site's patches, drawn in the order of the seed that the run gives it."""
    if settings.data.startswith(SYNTHETIC):
        return synthetic_site(settings, seed)
    path, style = Path(settings.data), style_of(settings)
    train = open_patches(path, "train")
    test = open_patches(Path(settings.test), None) if settings.test else own_test(path)
    return SiteData(settings.name, StyledPatches(train, style), StyledPatches(test, style), seed)


def style_of(settings: SiteSettings) -> Style:
    """The style in which patches are read; a file's own LUT was applied when they were cut."""
    style = parse_style(settings.style) if settings.style else NO_STYLE
    if style.kind == "voi":
        raise BadSetting(f"style {settings.style!r}: apply it when cutting patches, or use sigmoid:CENTRE:WIDTH")
    return style


def synthetic_site(settings: SiteSettings, seed: int) -> SiteData:
    """One of a synthetic federation's sites, by number."""
    number, choice = parse_synthetic(settings.data)
    site = synthetic_sites(choice)[number - 1]
    return SiteData(settings.name, site.train, site.test, seed)


def parse_synthetic(words: str) -> tuple[int, DataChoice]:
    """Read `synthetic:1/2,patches=200,size=32,skew=1,seed=0`."""
    place, *given = words.removeprefix(SYNTHETIC).split(",")
    names = {"patches": int, "size": int, "skew": float, "seed": int}
    try:
        number, sites = (int(word) for word in place.split("/"))
        pairs = dict(word.split("=") for word in given)
        values: dict[str, Any] = {name: names[name](value) for name, value in pairs.items()}
    except (ValueError, KeyError) as error:
        raise BadSetting(f"data {words!r}: use {FORM}") from error
    if not 1 <= number <= sites:
        raise BadSetting(f"data {words!r}: site {number} of {sites} does not exist; use {FORM}")
    values["image_size"] = values.pop("size", DataChoice.image_size)
    return number, DataChoice(sites=sites, **values)


def augmentation_of(settings: SiteSettings) -> Augment | None:
    """Flips, turns and shifts for patches cut from mammograms; none for data that are drawn."""
    return None if settings.data.startswith(SYNTHETIC) else augment


def counts(labels: Indices, classes: int, floor: int) -> list[int]:
    """Patches of each class, small numbers withheld."""
    return withheld_below(floor, np.bincount(labels, minlength=classes))


def vendors(data: SiteData, floor: int) -> dict[str, int]:
    """Training patches of each vendor, small numbers withheld."""
    found = by_vendor(data.train)
    told = withheld_below(floor, np.array(list(found.values()), np.int64))
    return {name: number for name, number in zip(found, told, strict=True) if number}


def withheld_below(floor: int, found: Indices) -> list[int]:
    """Numbers of patches; one below the floor looks like none.

    Since the sum of all is known, the smallest of the others are withheld too, until none, or no fewer than the
    floor, are missing from it.
    """
    hidden = found < floor
    while 0 < found[hidden].sum() < floor and not hidden.all():
        hidden[np.where(hidden, found.max() + 1, found).argmin()] = True
    return [0 if withheld else int(count) for count, withheld in zip(found, hidden, strict=True)]


def introduce(settings: SiteSettings, data: SiteData) -> dict[str, Any]:
    """What the coordinator learns of a site's data: counts above the floor, class names, the shape of a patch."""
    classes = data.train.classes
    if data.patches < settings.floor:
        raise BadSetting(f"{data.patches} training patches: {settings.floor} or more are needed to take part")
    shape = data.train.read(np.zeros(1, np.int64)).shape[1:]
    return {
        "patches": data.patches,
        "classes": list(classes),
        "style": "as drawn" if settings.data.startswith(SYNTHETIC) else settings.style,
        "shape": list(shape),
        "train": counts(data.train.labels, len(classes), settings.floor),
        "test": counts(data.test.labels, len(classes), settings.floor),
        "vendors": vendors(data, settings.floor),
        "data": hashlib.sha256(data.train.fingerprint.encode()).hexdigest(),
        "shares_scores": settings.share_scores,
    }
