"""Settings → one checked, serialisable value that says all of a training run but its data."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from fl_core.device import check_precision
from fl_core.family import Algorithm, algorithm_named
from fl_core.schedule import Schedule
from mammofed.errors import BadSetting


@dataclass(frozen=True)
class Plan:
    """A training run; two runs with equal plans and data on one machine end bit-identical."""

    algorithm: str
    model: str
    schedule: Schedule
    rounds: int = 10  # R
    local_steps: int = 10  # E
    batch: int = 32  # B, at each site
    momentum: float = 0.0  # of SGD; refused where Φ corrects the gradient
    variance_floor: float = 1e-2  # σ²_ths of the linear φ
    freeze_from: int | None = None  # T* of fixbn; None: half of all iterations
    evaluate_every: int = 1  # rounds; the last one is always evaluated
    seed: int = 0
    device: str = "auto"
    precision: str = "fp32"
    channels_last: bool = True
    threads: int = 1  # of torch, at each site; part of the plan, since sums over threads differ in the last bit

    def __post_init__(self) -> None:
        row = algorithm_named(self.algorithm)
        check_precision(self.precision)
        for name in ("rounds", "local_steps", "evaluate_every", "threads"):
            if getattr(self, name) < 1:
                raise BadSetting(f"{name} {getattr(self, name)}: 1 or more is needed")
        if self.batch < 2:
            raise BadSetting(f"batch {self.batch}: batch normalisation needs 2 patches or more")
        if not 0 <= self.momentum < 1 or self.seed < 0 or not self.variance_floor > 0:
            raise BadSetting(
                f"momentum {self.momentum}, seed {self.seed}, variance floor {self.variance_floor}: "
                "momentum lies in [0, 1), seeds start at 0, and the floor is above 0"
            )
        if self.momentum and row.weight_grad is not None:
            raise BadSetting(
                f"momentum {self.momentum} with {self.algorithm!r}: it would inflate the control variates; use 0"
            )

    @property
    def row(self) -> Algorithm:
        """The algorithm's row of the table."""
        return algorithm_named(self.algorithm)

    @property
    def freeze_iteration(self) -> int:
        """T*: the given one, or half of all iterations."""
        return self.rounds * self.local_steps // 2 if self.freeze_from is None else self.freeze_from

    def as_json(self) -> dict[str, Any]:
        """A plain form, as JSON gives it back; `plan_from_json` reads it."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def plan_from_json(values: dict[str, Any]) -> Plan:
    """The reverse of `Plan.as_json`."""
    schedule = {**values["schedule"], "milestones": tuple(values["schedule"]["milestones"])}
    return Plan(**{**values, "schedule": Schedule(**schedule)})
