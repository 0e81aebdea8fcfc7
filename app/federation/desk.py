"""What sites ask of the engine's job: parts of the model on offer, and the mean of what all bring to a layer."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from app.site.parts import mapped
from fl_core.exchange import Array, Meeting
from mammofed.errors import BadData, TrainingFailed

MOST = 1 << 48  # values of a batch and channel at one site


class Desk:
    """The job's own part; it holds nothing that is not on disk or in a round under way."""

    def __init__(self, offers: Path) -> None:
        self.offers = offers
        self.on_offer = "", memoryview(b"")  # the last model asked for: one mapping for all sites
        self.meetings: dict[str, tuple[Meeting, list[str]]] = {}  # at most one

    def take(self, order: str, content: dict[str, Any]) -> bytes:
        """From the worker: open a layer-wise meeting of sites, or break it up; who was waiting there."""
        waiting: list[str] = []
        if order == "meet":
            self.meetings = {content["key"]: (Meeting(len(content["sites"])), content["sites"])}
        elif content["key"] in self.meetings:
            meeting, sites = self.meetings[content["key"]]
            waiting = [sites[number] for number in sorted(meeting.waiting)]
            meeting.leave()
        return json.dumps({"waiting": waiting}).encode()

    def fetch(self, digest: str, offset: int, size: int) -> memoryview:
        """A part of a model on offer."""
        if not digest.isalnum():
            raise TrainingFailed(f"model {digest!r} is not on offer")
        on_offer = self.on_offer
        if on_offer[0] != digest:
            self.on_offer = on_offer = digest, mapped(self.offers / digest)
        return on_offer[1][offset : offset + size]

    def meet(self, site: str, key: str, values: bytes, kind: str, weight: int) -> tuple[bytes, int]:
        """One site's values for the mean over all; it waits for the others."""
        if key not in self.meetings:
            raise TrainingFailed("that meeting is over")
        meeting, sites = self.meetings[key]
        if site not in sites:
            raise TrainingFailed(f"{site!r} is not at that meeting")
        # a site that is refused here fails, the worker sees it, and has the others meet again without it
        mean, total = meeting.mean(sites.index(site), read_values(values, kind, weight), weight)
        return mean.tobytes(), total

    def close(self) -> None:
        """Let nobody wait any longer."""
        for meeting, _ in self.meetings.values():
            meeting.leave()


def read_values(values: bytes, kind: str, weight: int) -> Array:
    """What a site brings to a layer: finite numbers in single or double precision, with a count of its own."""
    if (
        kind not in ("float32", "float64")
        or not isinstance(values, bytes)
        or len(values) % np.dtype(kind).itemsize
    ):
        raise BadData(f"values of {kind!r}: whole numbers of float32 or float64 are needed")
    if type(weight) is not int or not 0 < weight < MOST:
        raise BadData(f"weight {weight!r}: a count above 0 is needed")
    found = np.frombuffer(values, np.dtype(kind))
    if not len(found) or not np.isfinite(found).all():
        raise BadData(f"{len(found)} values, or not finite ones: each channel's is needed")
    return found
