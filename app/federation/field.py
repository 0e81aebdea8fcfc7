"""One site, or all side by side, asked until they answer: orders given, models offered, bytes fetched.

Every order may be given twice, so that a lost answer is asked for again; a site that stays silent is an error.
"""

import json
import math
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.federation.answers import (
    SHOWN,
    Answer,
    Evaluated,
    Form,
    Progress,
    SiteLate,
    SiteRefused,
    Trained,
    Words,
    read_words,
)
from app.federation.collect import Wanted
from app.federation.link import Calls, SiteSilent
from app.federation.terms import Terms
from app.site.parts import digest_of
from app.site.state import Base
from fl_core.aggregate import BadUpdate
from fl_core.state import ServerState
from fl_core.wire import packed_parts
from mammofed.errors import TrainingFailed

ANSWER = 10.0  # seconds within which a site answers any order
COLLECT = 3600.0  # seconds for all parts of an update; the job gives up a silent site long before
MANY = 1 << 20  # bytes of small tensors that are written together
POLL = 2.0  # seconds that a site may hold the answer to an order while it works
ENDS: Mapping[str, type[Progress]] = {"train": Trained, "evaluate": Evaluated}  # what comes of an order

Listener = Callable[[str, Answer], None]  # (site, what it told of its progress)


@dataclass(frozen=True)
class LeftOut:
    """Why a site is not in a round."""

    kind: str  # silent, late, paused, refused
    text: str


def why(error: TrainingFailed) -> LeftOut:
    """The kind of an error, and its words."""
    kind = "silent" if isinstance(error, SiteSilent) else "late" if isinstance(error, SiteLate) else "refused"
    text = "".join(letter if letter.isprintable() else "?" for letter in str(error))  # a site may have chosen it
    return LeftOut(kind, text)


@dataclass(frozen=True)
class Field:
    """The sites as they are reached now."""

    terms: Terms
    calls: Calls
    folder: Path  # of offers and of updates on their way
    progress: Listener
    go_on: Callable[[], None]  # asked while waiting; raises where the run is to stop
    form: Form | None = None  # of the sites' data, once they have said it

    def deadline(self) -> float:
        """Of what begins now: training, scoring, and each fetching of what came of them, have as long."""
        return time.monotonic() + self.terms.deadline

    def order_of(self, site: str, key: str, model: Answer, base: Base) -> Answer:
        """What an order to train or to score says."""
        plan, seed = self.terms.plan.as_json(), self.terms.seed_of(site)
        return {"key": key, "plan": plan, "seed": seed, "base": asdict(base), "model": model}

    def ask(self, site: str, order: str, extra: float = 0.0, kind: type[Words] = Words, **content: Any) -> Answer:
        """The site's words, checked; asked again until it has been silent for too long."""
        return read_words(kind, order, self.ask_bytes(site, order, extra, **content))

    def ask_bytes(self, site: str, order: str, extra: float = 0.0, **content: Any) -> bytes:
        """The same for raw bytes; every order may be given twice, and `extra` seconds be granted for it."""
        timeout = min(ANSWER, self.terms.silence) + extra
        until = time.monotonic() + self.terms.silence
        while True:
            try:
                return self.calls.call(site, order, json.dumps({"run": self.terms.run, **content}), timeout)
            except SiteSilent:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def offer(self, server: ServerState) -> Answer:
        """Put a model where sites fetch it; an older offer is taken away, or written over where it is as long.

        The pages of a file that is written over are there already, and a site that still reads it is too late and
        finds another digest. To cut a file while it is read would be the end of the job.
        """
        offers = self.folder / "offers"
        offers.mkdir(parents=True, exist_ok=True)
        parts = packed_parts(server)
        path, writing = offers / digest_of(*parts), offers / ".writing"
        if not path.exists():  # else sites may be fetching it
            for old in offers.glob("[!.]*"):
                old.rename(writing)
            is_as_long = writing.exists() and writing.stat().st_size == sum(map(len, parts))
            if not is_as_long:
                writing.unlink(missing_ok=True)
            with writing.open("r+b" if is_as_long else "wb", MANY) as file:
                file.writelines(parts)
            writing.rename(path)
        return {"digest": path.name, "bytes": path.stat().st_size}


def side_by_side(
    work: Callable[[str], Answer], sites: Sequence[str]
) -> tuple[dict[str, Answer], dict[str, LeftOut]]:
    """Do the same with each site in a thread; answers in the order of the sites, and reasons of those without."""
    left_out: dict[str, LeftOut] = {}
    return dict(in_turn(work, sites, left_out)), left_out


def in_turn(
    work: Callable[[str], Answer], sites: Sequence[str], left_out: dict[str, LeftOut]
) -> Generator[tuple[str, Answer]]:
    """The same one by one, while later sites are still at it; reasons are added to those of the left out."""
    with ThreadPoolExecutor(max(1, len(sites))) as pool:
        futures = {site: pool.submit(work, site) for site in sites}
        for site, future in futures.items():
            try:
                yield site, future.result()
            except (SiteSilent, SiteRefused, BadUpdate) as error:
                left_out[site] = why(error)


def follow(field: Field, site: str, order: str, content: Answer, until: float) -> Answer:
    """Give an order and wait for its end, telling of progress; a site that is late, or fails, is an error."""
    words = {**content, "seconds": POLL}
    asked = order
    while True:
        field.go_on()
        told = field.ask(site, asked, extra=POLL, kind=ENDS[order], **words)
        if told["state"] == "done":
            return told
        if told["state"] == "failed":
            raise SiteRefused(str(told["error"])[:SHOWN])
        if time.monotonic() > until:
            raise SiteLate(f"late: {told['steps']} of {told['of'] or '?'} steps at the deadline")
        if told["state"] == "unknown":  # its process has begun anew
            asked = order
        else:
            field.progress(site, told)
            asked = "wait"


def fetch(
    field: Field, site: str, what: str, offer: Answer, path: Path, most: int, until: float = math.inf
) -> None:
    """Have the job bring what a site has ready to disk, and verify its digest; not done by then, it is late."""
    size = int(offer["bytes"])
    if not 0 < size <= most:
        raise BadUpdate(f"{what} of site {site!r}: {size} bytes, {most} at most are possible")
    for left_over in path.parent.glob(f"{path.name}.*"):
        left_over.unlink(missing_ok=True)  # by a job that ends just now
    arriving = path.with_name(f"{path.name}.{uuid.uuid4().hex}")  # a job that is late writes to no other's file
    seconds = min(COLLECT, max(0.0, until - time.monotonic()))
    wanted = Wanted(field.terms.run, site, what, size, str(arriving), field.terms.silence, seconds)
    text = json.dumps(asdict(wanted))
    got = json.loads(field.calls.call("", "collect", text, seconds + field.terms.silence))
    if "silent" in got:
        raise SiteSilent(f"no {what} from {site} ({got['silent']})")
    if "late" in got:
        raise SiteLate(f"late: {got['late']} of {size} bytes of its {what} at the deadline")
    if got["bytes"] != size:
        raise BadUpdate(f"{what} of site {site!r}: ends after {got['bytes']} of {size} bytes")
    if got["digest"] != offer["digest"]:
        raise BadUpdate(f"{what} of site {site!r}: its bytes are not those that were announced")
    path.unlink(
        missing_ok=True
    )  # a rename over the old file would have the kernel write the new one to disk at once
    arriving.rename(path)
