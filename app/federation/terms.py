"""What a run over sites agrees on: who takes part, how many must, how long to wait, how far an update may go."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_core.plan import Plan
from mammofed.errors import BadSetting


@dataclass(frozen=True)
class Terms:
    """The run's settings beyond its plan."""

    run: str
    plan: Plan
    sites: tuple[str, ...]  # enrolled ones, in the order of the sums
    quorum: int  # sites that a round needs
    deadline: float = 3600.0  # seconds after which a round goes on without a late site
    silence: float = 30.0  # seconds without any answer after which a site counts as gone
    norm_factor: float = 20.0  # how many times the sites' usual norm an update may have
    resamples: int = 2000

    def __post_init__(self) -> None:
        if self.plan.row.pooled:
            raise BadSetting(f"{self.plan.algorithm!r} pools the data, and data do not leave sites: use simulate")
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise BadSetting(f"sites {list(self.sites)}: name at least one, each once")
        if not 1 <= self.quorum <= len(self.sites):
            raise BadSetting(f"quorum {self.quorum}: from 1 to {len(self.sites)}, the number of sites")
        if min(self.deadline, self.silence, self.norm_factor) <= 0:
            raise BadSetting(
                f"deadline {self.deadline}, silence {self.silence}, norm factor {self.norm_factor}: above 0 each"
            )

    def seed_of(self, site: str) -> int:
        """Of the order in which the site draws its patches, as on one machine."""
        return self.plan.seed * 1000 + self.sites.index(site)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with the run that continues it: the plan but its length, and the sites."""
        kept = {k: v for k, v in self.plan.as_json().items() if k not in ("rounds", "evaluate_every")}
        kept["freeze_from"] = self.plan.freeze_iteration if self.plan.row.freezes else None
        return {"plan": kept, "data": {"sites": list(self.sites)}}


@dataclass(frozen=True)
class Member:
    """What a site said of its data when it first took part; it may not change within a run."""

    patches: int
    data: str  # digest of the training patches

    @staticmethod
    def of(hello: Mapping[str, Any]) -> "Member":
        """From a site's own words."""
        return Member(int(hello["patches"]), str(hello["data"]))
