"""Seed and styles → one picture of all classes in all styles, for the eye of a radiologist."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mammo.style import NO_STYLE, Style
from mammofed.errors import BadSetting
from mammofed.files import writing
from synthetic.lesions import CLASSES
from synthetic.patches import Look, Patches, Styling, apply_styles, draw_patches
from synthetic.sites import VENDORS

EXAMPLES = 2  # patches a class, the same in each style
GALLERY_STYLES = (NO_STYLE, *(site.style for site in VENDORS if site.style != NO_STYLE))


def save_gallery(path: Path, seed: int, size: int = 128, styles: tuple[Style, ...] = GALLERY_STYLES) -> None:
    """Write a picture with a row a class and a column a style; PNG, PDF or SVG by its name."""
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise BadSetting(f"gallery {path}: name a .png, .pdf or .svg file")
    labels = np.repeat(np.arange(len(CLASSES)), EXAMPLES)
    look = Look(size)
    plain = draw_patches(labels, look, seed, Styling((NO_STYLE,), np.zeros_like(labels)))
    figure = Figure(figsize=(3.2 * len(styles) + 1.2, 1.7 * len(CLASSES) + 1.0), dpi=100)
    grid = figure.subplots(len(CLASSES), len(styles), squeeze=False)
    for column, style in enumerate(styles):
        shown = apply_styles(plain.copy(), (style,), np.zeros_like(labels))
        for row in range(len(CLASSES)):
            _show(grid[row, column], shown[labels == row])
        grid[0, column].set_title("no LUT" if style == NO_STYLE else str(style), fontsize=11)
    for row, name in enumerate(CLASSES):
        grid[row, 0].set_ylabel(name.replace("_", "\n"), fontsize=11)
    _scale_bar(grid[-1, 0], look)
    figure.suptitle("Synthetic patches: classes by rows, the same patches in each style by columns", fontsize=13)
    figure.tight_layout(pad=0.6)
    with writing(path):
        figure.savefig(path)


def _show(axes: Axes, patches: Patches) -> None:
    """Draw patches side by side, black at 0 and white at 1."""
    gap = np.ones((patches.shape[1], max(1, patches.shape[2] // 40)), np.float32)
    axes.imshow(np.hstack([patches[0], *(part for p in patches[1:] for part in (gap, p))]), "gray", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])


def _scale_bar(axes: Axes, look: Look) -> None:
    """Draw 5 mm in the lower left corner."""
    length, foot = 5 / look.grid.spacing, 0.93 * look.size
    axes.plot([0.05 * look.size, 0.05 * look.size + length], [foot, foot], color="yellow", linewidth=3)
    axes.text(0.05 * look.size, 0.9 * look.size, "5 mm", color="yellow", fontsize=9)
