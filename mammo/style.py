"""Style name → what happens to an image's grey levels: nothing, its own VOI LUT, or a sigmoid.

One site's vendor LUT is applied, another's is not: that is the heterogeneity the project is about. A style is
plain data, so that the same one serves real and synthetic images and can be written in a manifest.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mammofed.errors import BadSetting


@dataclass(frozen=True)
class Style:
    """A grey-level style; `str(style)` gives the name that `parse_style` reads."""

    kind: Literal["none", "voi", "sigmoid"] = "none"
    voi: str = ""  # of kind "voi": explanation (NORMAL, HARDER, SOFTER) or index of the file's LUT or window
    centre: float = 0.5  # of kind "sigmoid": input that becomes mid grey, in [0, 1]
    width: float = 0.25  # of kind "sigmoid": as the window width of PS3.3 C.11.2.1.3.1, in [0, 1]

    def __str__(self) -> str:
        if self.kind == "voi":
            return f"voi:{self.voi}"
        if self.kind == "sigmoid":
            return f"sigmoid:{self.centre:g}:{self.width:g}"
        return "none"


NO_STYLE = Style()


def parse_style(text: str) -> Style:
    """Read `none`, `voi:NORMAL`, `voi:0`, or `sigmoid:CENTRE:WIDTH`."""
    kind, *rest = text.strip().split(":")
    if kind == "none" and not rest:
        return NO_STYLE
    if kind == "voi" and len(rest) == 1 and rest[0]:
        return Style("voi", voi=rest[0])
    if kind == "sigmoid" and len(rest) in (0, 2):
        try:
            style = Style("sigmoid", "", *(float(value) for value in rest))
        except ValueError:
            style = Style("sigmoid", width=0)
        if 0 <= style.centre <= 1 and 0.001 <= style.width <= 100:  # beyond, float32 tells no grey levels apart
            return style
    remedy = "use none, voi:NAME, or sigmoid:CENTRE:WIDTH with CENTRE in [0, 1] and WIDTH in [0.001, 100]"
    raise BadSetting(f"style {text!r}: {remedy}")


def _logistic(values: NDArray[np.float32], style: Style) -> NDArray[np.float32]:
    exponent = np.float32(-4) * (values - np.float32(style.centre)) / np.float32(style.width)
    return np.asarray(1 / (1 + np.exp(np.clip(exponent, -80, 80))), dtype=np.float32)


def sigmoid(values: NDArray[np.float32], style: Style) -> NDArray[np.float32]:
    """Map [0, 1] to [0, 1] by the sigmoid of PS3.3 C.11.2.1.3.1, its ends stretched to 0 and 1."""
    low, high = _logistic(np.array([0, 1], np.float32), style)
    return np.asarray((_logistic(values, style) - low) / (high - low), dtype=np.float32)


def is_styled(image: str, p: float, seed: int) -> bool:
    """Whether this image has the style, with probability p, from the seed and the image's own name alone."""
    digest = hashlib.sha256(f"{seed}:{image}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < p * 2**64
