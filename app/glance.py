"""Patches → a glance at them: counts by vendor, grey levels before and after a style, a gallery."""

import io
from collections import Counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.sources import DataChoice, StyledPatches
from fl_core.data import PatchSource, SiteData
from mammo.store import PatchStore
from mammo.style import NO_STYLE
from synthetic.patches import Look, Styling, draw_patches
from synthetic.sites import VENDORS, PatchArray

BINS = 32  # grey levels of a histogram over [0, 1]
SAMPLE = 400  # patches that a histogram is counted over
COLUMNS = 10  # patches of a class in a gallery
SIDE = 96  # pixels of a patch in a gallery
GAP = 4


def by_vendor(patches: PatchSource) -> dict[str, int]:
    """Patches of each vendor, the most frequent first; empty where nobody wrote it down."""
    return dict(Counter(recorded(patches, "vendor")).most_common())


def by_style(patches: PatchSource) -> dict[str, int]:
    """Patches of each style in which they were cut or drawn, the most frequent first."""
    return dict(Counter(recorded(patches, "style")).most_common())


def recorded(patches: PatchSource, what: Literal["vendor", "style"]) -> list[str]:
    """What is known of each patch: from a store's manifest, or from the drawing."""
    if isinstance(patches, StyledPatches):
        return recorded(patches.source, what)[patches.first :: patches.step]
    if isinstance(patches, PatchStore):
        return [row[what] or "not stated" for row in patches.rows]
    if isinstance(patches, PatchArray):
        names = [f"drawn vendor {n}" for n in range(1, len(VENDORS) + 1)]
        known = names if what == "vendor" else [str(site.style) for site in VENDORS]
        return [known[number % len(VENDORS)] for number in patches.style_site.tolist()]
    return []


def histogram(patches: PatchSource) -> list[float]:
    """Share of the pixels in each of 32 bins of [0, 1], over a sample spread evenly."""
    return shares(patches.read(spread(np.arange(len(patches.labels)), SAMPLE)))


def spread(places: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """At most so many of them, spread evenly: neighbours come from one image."""
    return places[np.unique(np.linspace(0, len(places) - 1, most).astype(np.int64))] if len(places) else places


def shares(pixels: NDArray[np.float32]) -> list[float]:
    """Share of the pixels in each bin; values outside [0, 1] count in the outer bins."""
    found, _ = np.histogram(np.clip(pixels, 0, 1), bins=BINS, range=(0, 1))
    return [round(float(share), 6) for share in found / max(1, found.sum())]


def before_style(site: SiteData, drawn: DataChoice | None) -> list[float] | None:
    """The histogram before the site's style: of the source, or of tissue `drawn` alike; None if not known."""
    if isinstance(site.train, StyledPatches):
        return histogram(site.train.source)
    if drawn is None:
        return None
    labels = site.train.labels[:SAMPLE]
    plain = Styling((NO_STYLE,), np.zeros(len(labels), np.int64))
    return shares(draw_patches(labels, Look(drawn.image_size), drawn.seed, plain))


def gallery(patches: PatchSource) -> bytes:
    """A PNG with one row of patches a class, see-through between them."""
    rows = [spread(np.flatnonzero(patches.labels == number), COLUMNS) for number in range(len(patches.classes))]
    step = SIDE + GAP
    sheet = Image.new("LA", (COLUMNS * step - GAP, len(rows) * step - GAP), (0, 0))
    for down, chosen in enumerate(rows):
        for across, pixels in enumerate(patches.read(chosen)[:, 0] if len(chosen) else ()):
            tile = Image.fromarray((np.clip(pixels, 0, 1) * 255).astype(np.uint8)).resize((SIDE, SIDE))
            sheet.paste(tile.convert("LA"), (across * step, down * step))
    data = io.BytesIO()
    sheet.save(data, "PNG", optimize=True)
    return data.getvalue()
