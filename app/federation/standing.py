"""What the coordinator knows of each site between rounds: its data, which of its states counts, its variates."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from app.federation.accept import Arrived, Norms
from app.federation.field import LeftOut
from app.federation.terms import Member, Terms
from app.site.state import Base
from fl_core.checkpoint import Checkpoint
from fl_core.state import ServerState, SiteState, Update
from fl_core.wire import packed_parts, unpack_file

REMEMBERED = 16  # norms of accepted updates that the next ones are held against


@dataclass(frozen=True)
class Standing:
    """The sites after the last committed round."""

    members: Mapping[str, Member]  # sites that have taken part
    bases: Mapping[str, Base]  # the state that counts at each of them
    variates: Mapping[str, Path]  # where c_i and k_i lie: the update they came with, or a state from the ledger
    norms: Sequence[Norms] = ()  # of the updates of the last rounds


@dataclass(frozen=True)
class RoundResult:
    """A round that can be committed."""

    server: ServerState
    updates: tuple[Update, ...]  # without their tensors
    arrived: Mapping[str, Arrived]
    members: Mapping[str, Member]
    left_out: Mapping[str, LeftOut]  # enrolled sites that are not in it, and why

    def base(self, site: str) -> Base:
        """The state that counts at the site once the round is committed."""
        return Base(self.server.round, self.arrived[site].digest)


def read_variates(path: Path) -> SiteState:
    """One site's c_i and k_i."""
    if path.suffix == ".update":
        update = unpack_file(Update, path)
        return SiteState(c=update.c, k=update.k)
    return unpack_file(SiteState, path)


class Variates(Mapping[str, SiteState]):
    """The sites' states as the ledger keeps them: read from disk one at a time."""

    def __init__(self, standing: Standing) -> None:
        self.standing = standing

    def __getitem__(self, site: str) -> SiteState:
        path = self.standing.variates.get(site)
        if path is None and site in self.standing.members:
            return SiteState()
        return read_variates(self.standing.variates[site])

    def __iter__(self) -> Iterator[str]:
        return iter(self.standing.members)

    def __len__(self) -> int:
        return len(self.standing.members)


def standing_of(folder: Path, last: Checkpoint | None) -> Standing:
    """From the ledger's last round; the sites' variates are put on disk."""
    (folder / "variates").mkdir(parents=True, exist_ok=True)
    if last is None:
        return Standing({}, {}, {})
    known = last.record["federation"]
    variates = {}
    for site, state in last.sites.items():
        if state.c or state.k:
            variates[site] = folder / "variates" / f"{site}.state"
            with variates[site].open("wb") as file:  # not synced: the ledger has it
                file.writelines(packed_parts(state))
    return Standing(
        {site: Member(**member) for site, member in known["members"].items()},
        {site: Base(**base) for site, base in known["bases"].items()},
        variates,
        known["norms"],
    )


def standing_as_json(standing: Standing) -> dict[str, Any]:
    """What the ledger's record keeps of it."""
    return {
        "members": {site: asdict(member) for site, member in standing.members.items()},
        "bases": {site: asdict(base) for site, base in standing.bases.items()},
        "norms": list(standing.norms),
    }


def bases_after(standing: Standing, result: RoundResult) -> dict[str, Base]:
    """Which state counts at each site once the round is committed."""
    return {**standing.bases, **{site: result.base(site) for site in result.arrived}}


def standing_after(terms: Terms, folder: Path, standing: Standing, result: RoundResult) -> Standing:
    """The standing once the round is committed; the files that it stood on before are still there."""
    variates = dict(standing.variates)
    row = terms.plan.row
    for site, arrived in result.arrived.items() if row.weight_grad or row.corrects_statistics else ():
        variates[site] = folder / "variates" / f"{arrived.digest}.update"
        arrived.path.replace(variates[site])
    norms = [arrived.norms for arrived in result.arrived.values()]
    members = {site: result.members[site] for site in terms.sites if site in result.members}
    return Standing(members, bases_after(standing, result), variates, [*standing.norms, *norms][-REMEMBERED:])


def clear_variates(folder: Path, standing: Standing) -> None:
    """Forget the variates that no longer count."""
    kept = set(standing.variates.values())
    for path in (folder / "variates").iterdir():
        if path not in kept:
            path.unlink()
