"""An update as it came, on disk → one that may count, or a reason why it may not."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fl_core.aggregate import BadUpdate, Expected, check_update
from fl_core.roles import Tensors
from fl_core.state import ServerState, Update
from fl_core.wire import unpack_file
from mammofed.errors import BadData

Norms = dict[str, float]  # by group: how far weights and statistics moved, and the lengths of c and k
GROUPS = ("weights", "statistics", "c", "k")
HEADER = 4096  # bytes allowed for a header, and for each tensor's entry in it 512
ENTRY = 512
TOGETHER = 32  # tensors whose differences are in memory at the same time
LARGEST_LOSS = 1e9  # what no training comes to; sums over sites stay finite


@dataclass(frozen=True)
class Arrived:
    """A checked update on disk; in memory only while it is looked at."""

    path: Path
    digest: str
    patches: int
    norms: Norms

    def load(self) -> Update:
        """The update itself."""
        return unpack_file(Update, self.path)


def largest(wanted: Expected) -> int:
    """Bytes that an update can have at most; more are not even fetched."""
    entries = [entry for group in wanted.groups.values() for entry in group.values()]
    return HEADER + sum(shape.numel() * dtype.itemsize + ENTRY for shape, dtype in entries)


@dataclass(frozen=True)
class Gate:
    """What an update of the open round is held against."""

    wanted: Expected
    server: ServerState
    statistics: frozenset[str]  # names of the model's running statistics


def look_at(path: Path, digest: str, site: str, patches: int, gate: Gate) -> tuple[Arrived, Update]:
    """Check names, shapes, round, counts and numbers; of its tensors, statistics alone come back."""
    try:
        update = unpack_file(Update, path)
    except BadData as error:
        raise BadUpdate(f"update of site {site!r}: {error}") from error
    check_fields(update, site)
    if update.site != site:
        raise BadUpdate(f"update of site {site!r}: it says that it comes from {update.site!r}")
    if update.patches != patches:
        raise BadUpdate(f"update of site {site!r}: counts {update.patches} patches, {patches} are enrolled")
    if not abs(update.loss) < LARGEST_LOSS or not 0 <= (update.loss_error or 0) < LARGEST_LOSS or update.steps < 1:
        said = f"loss {update.loss} ± {update.loss_error} after {update.steps} steps"
        raise BadUpdate(f"update of site {site!r}: {said}")
    check_update(gate.wanted, update)
    arrived = Arrived(path, digest, patches, norms_of(update, gate))
    statistics = {name: tensor.clone() for name, tensor in update.model.items() if name in gate.statistics}
    return arrived, replace(update, model=statistics, c={}, k={})


def check_fields(update: Update, site: str) -> None:
    """Refuse plain fields and groups of another kind than an update has."""
    kinds = {"site": str, "round": int, "patches": int, "steps": int, "loss": float}
    if update.loss_error is not None:
        kinds["loss_error"] = float
    wrong = [name for name, kind in kinds.items() if type(getattr(update, name)) is not kind]
    groups = {name: getattr(update, name) for name in ("model", "c", "k")}
    wrong += [name for name, group in groups.items() if not is_tensors(group)]
    if wrong:
        raise BadUpdate(f"update of site {site!r}: {', '.join(wrong)} not of the kind that an update has")


def is_tensors(group: object) -> bool:
    """Whether it is tensors by name."""
    return isinstance(group, dict) and all(isinstance(part, Tensor) for part in group.values())


def norms_of(update: Update, gate: Gate) -> Norms:
    """How far weights and statistics moved in this round, and how long the variates are."""
    floats = [name for name, tensor in update.model.items() if tensor.is_floating_point()]
    statistics = [name for name in floats if name in gate.statistics]
    weights = [name for name in floats if name not in gate.statistics]
    moved = partial(moved_by, update.model, gate.server.model)
    groups: list[Callable[[], Iterable[list[Tensor]]]] = [partial(moved, weights), partial(moved, statistics)]
    groups += [lambda: [list(update.c.values())], lambda: [list(update.k.values())]]
    return dict(zip(GROUPS, map(norm, groups), strict=True))


def moved_by(now: Tensors, before: Tensors, names: Sequence[str]) -> Iterator[list[Tensor]]:
    """The differences, some at a time: all would be as large as the model, and each alone a call of its own."""
    for first in range(0, len(names), TOGETHER):
        some = names[first : first + TOGETHER]
        yield list(torch._foreach_sub([now[name] for name in some], [before[name] for name in some]))


def norm(groups: Callable[[], Iterable[list[Tensor]]]) -> float:
    """‖x‖ over all tensors; in double precision only where single is too narrow for it."""
    found = math.hypot(*(float(one) for some in groups() if some for one in torch._foreach_norm(some, 2)))
    if math.isfinite(found):
        return found
    return math.hypot(*(float(tensor.double().norm()) for some in groups() for tensor in some))


def absurd(norms: Mapping[str, Norms], before: Sequence[Norms], factor: float) -> dict[str, str]:
    """The sites whose norm is more than `factor` times the lower median of this round's and the last rounds'."""
    reasons: dict[str, str] = {}
    for group in GROUPS:
        known = sorted([found[group] for found in norms.values()] + [found[group] for found in before])
        usual = known[(len(known) - 1) // 2] if known else 0.0
        for site, found in norms.items():
            if usual > 0 and found[group] > factor * usual:
                often = f"more than {factor:g} times the usual {usual:.3g}"
                reasons.setdefault(site, f"the norm of its {group} is {found[group]:.3g}, {often}")
    return reasons
