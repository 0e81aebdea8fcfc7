"""The sites' patches → what the coordinator may know of them: counts, styles, histograms; galleries if drawn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.glance import before_style, by_vendor, gallery, histogram
from app.simulation import counts
from app.sources import DataChoice, parse_site
from fl_core.data import SiteData
from mammofed.files import write_atomically
from synthetic.sites import sites_of

FLOOR = 10  # counts of a class below it are withheld, as metrics are


def facts_of(choice: DataChoice, sites: tuple[SiteData, ...]) -> dict[str, dict[str, Any]]:
    """By site: style, patches by class and vendor, grey levels as trained on and before the style."""
    styles, drawn = styles_of(choice), choice if is_drawn(choice) else None
    return {
        site.name: {
            "style": styles.get(site.name, "as it is"),
            **{part: floored(site, numbers) for part, numbers in counts(site).items()},
            "vendors": {name: number for name, number in by_vendor(site.train).items() if number >= FLOOR},
            "histogram": histogram(site.train),
            "histogram_before": before_style(site, drawn),
            "has_gallery": is_drawn(choice),
        }
        for site in sites
    }


def floored(site: SiteData, numbers: list[int]) -> dict[str, int | None]:
    """Patches by class; a small count looks like none."""
    named = zip(site.train.classes, numbers, strict=True)
    return {name: number if number >= FLOOR else None for name, number in named}


def is_drawn(choice: DataChoice) -> bool:
    """Whether the data are synthetic: nobody's images, so anyone may look."""
    return choice.data == "synthetic" and not choice.site


def styles_of(choice: DataChoice) -> Mapping[str, str]:
    """The style of each site, in words."""
    if is_drawn(choice):
        return {site.name: str(site.style) for site in sites_of(choice.sites)}
    parsed = (parse_site(words) for words in choice.site)
    return {name: str(style) for name, _, style in parsed}


def write_galleries(folder: Path, choice: DataChoice, sites: tuple[SiteData, ...]) -> None:
    """`galleries/SITE.png` for each synthetic site."""
    if not is_drawn(choice):
        return
    (folder / "galleries").mkdir(parents=True, exist_ok=True)
    for site in sites:
        path = folder / "galleries" / f"{site.name}.png"
        if not path.exists():
            write_atomically(path, gallery(site.train))
