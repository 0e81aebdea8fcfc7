"""A TOML file or a preset, and flags → one frozen, checked study: rows × p × E × seeds, each a run."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from app.sources import DataChoice
from fl_core.family import ALGORITHMS, algorithm_named, everything
from fl_core.models import MODELS
from fl_core.plan import Plan
from fl_core.schedule import parse_schedule
from mammofed.errors import BadSetting

CHANGES = (
    "lr",
    "schedule",
    "warmup",
    "momentum",
    "variance_floor",
    "freeze_from",
)  # what a row may have of its own
AGAINST = "bn-scaffold-std"
KINDS = {float: "a number", int: "a whole number", str: "a text"}
LISTS = ("algorithms", "skews", "local_steps", "seeds")


@dataclass(frozen=True)
class Row:
    """One line of the tables: an algorithm, under its own name or with settings of its own under another."""

    name: str
    algorithm: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def one_step_count(self) -> bool:
        """Whether E is nothing to it: data pooled, or nothing shared."""
        row = ALGORITHMS[self.algorithm]
        return row.pooled or row.private is everything


@dataclass(frozen=True)
class Study:
    """What is trained and how the runs are compared."""

    algorithms: tuple[str, ...]
    name: str = "study"
    skews: tuple[float, ...] = (1.0,)  # p
    local_steps: tuple[int, ...] = (10,)  # E
    seeds: tuple[int, ...] = (0,)
    rows: tuple[Row, ...] = ()  # beside the algorithms: the same with other settings
    against: str = AGAINST  # the row of the p-values; none are given where a study lacks it
    rounds: int = 40  # R at the largest E; a smaller E has more rounds and as many iterations
    evaluate_every: int = 1  # in the same unit
    model: str = "densenet-small"
    data: str = "synthetic"
    data_dir: str | None = None
    sites: int = 2
    image_size: int = 64
    patches: int = 2000
    batch: int = 32
    lr: float = 0.05
    schedule: str = "constant"
    warmup: int = 0
    momentum: float = 0.0
    variance_floor: float = 1e-2
    freeze_from: int | None = None
    device: str = "auto"
    precision: str = "fp32"
    threads: int = 1  # of torch in each run
    resamples: int = 2000

    def __post_init__(self) -> None:
        for name in LISTS:
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise BadSetting(f"{name} {list(values)}: give one or more, each once")
        for row in self.table:
            algorithm_named(row.algorithm)
        if self.model not in MODELS:
            raise BadSetting(f"model {self.model!r}: choose one of {', '.join(MODELS)}")
        if self.resamples < 1:
            raise BadSetting(f"resamples {self.resamples}: use 1 or more, such as 2000")
        for steps in self.local_steps:
            if steps < 1 or max(self.local_steps) % steps:
                raise BadSetting(f"local_steps {steps}: it must divide the largest E, {max(self.local_steps)}")
        names = [row.name for row in self.table]
        check_names(names)
        if self.against not in (*names, AGAINST):
            raise BadSetting(f"against {self.against!r}: choose one of the study's rows, {', '.join(names)}")

    @property
    def table(self) -> tuple[Row, ...]:
        """All rows, in the order in which they are shown."""
        return (*(Row(name, name) for name in self.algorithms), *self.rows)

    def as_json(self) -> dict[str, Any]:
        """The configuration in study.json."""
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """One cell of the study."""

    row: Row
    plan: Plan
    data: DataChoice

    @property
    def name(self) -> str:
        """Unique in the study; also the name of the run's folder."""
        return f"{slug(self.row.name)}-p{self.data.skew:g}-E{self.plan.local_steps}-seed{self.plan.seed}"

    @property
    def iterations(self) -> int:
        """R × E."""
        return self.plan.rounds * self.plan.local_steps

    @property
    def configuration(self) -> dict[str, Any]:
        """What the run's result.json says when it is this run's."""
        return {**self.plan.as_json(), "data": self.data.as_json()}


def slug(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^a-z0-9+.=]+", "-", name.lower()).strip("-")


def check_names(names: list[str]) -> None:
    """Refuse two rows that would share a folder."""
    slugs = [slug(name) for name in names]
    for name, short in zip(names, slugs, strict=True):
        if not short or slugs.count(short) > 1:
            raise BadSetting(f"row {name!r}: each row needs a name of its own, of letters or digits")


def runs_of(study: Study) -> tuple[Run, ...]:
    """Every run, seed by seed, so that a study that is cut has whole seeds; each checked before any starts."""
    return tuple(
        run_of(study, row, skew, steps, seed)
        for seed in study.seeds
        for skew in study.skews
        for steps in sorted(study.local_steps, reverse=True)
        for row in study.table
        if steps == max(study.local_steps) or not row.one_step_count
    )


def run_of(study: Study, row: Row, skew: float, steps: int, seed: int) -> Run:
    """One cell: as many iterations at each E, evaluated at the same ones."""
    setting = {name: row.changes.get(name, getattr(study, name)) for name in CHANGES}
    schedule = parse_schedule(setting.pop("schedule"), setting.pop("lr"), setting.pop("warmup"))
    shorter = max(study.local_steps) // steps
    plan = Plan(
        algorithm=row.algorithm,
        model=study.model,
        schedule=schedule,
        rounds=study.rounds * shorter,
        local_steps=steps,
        batch=study.batch,
        evaluate_every=study.evaluate_every * shorter,
        seed=seed,
        device=study.device,
        precision=study.precision,
        threads=study.threads,
        **setting,
    )
    data = DataChoice(study.data, study.data_dir, study.sites, skew, study.image_size, study.patches, seed)
    return Run(row, plan, data)


PAPER_ROWS = ("centralized", "fedavg", "scaffold", "bn-scaffold", "bn-scaffold-std")
PRESETS: dict[str, dict[str, Any]] = {
    "heterogeneity": {"algorithms": PAPER_ROWS, "skews": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)},
    "algorithms": {"algorithms": tuple(ALGORITHMS)},
    "local-steps": {"algorithms": PAPER_ROWS, "local_steps": (1, 2, 5, 10)},
}


def read_study(file: Path | None, preset: str | None, overrides: Mapping[str, Any]) -> Study:
    """The preset's settings, over them the file's (which may name a preset), over them the given flags."""
    written = read_toml(file) if file else {}
    preset = preset or written.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise BadSetting(f"preset {preset!r}: choose one of {', '.join(PRESETS)}")
    if file is None and preset is None:
        raise BadSetting(f"nothing to study: give a TOML file or --preset with one of {', '.join(PRESETS)}")
    name = file.stem if file else preset
    given = {key: value for key, value in overrides.items() if value is not None}
    return study_from({"name": name, **PRESETS.get(preset or "", {}), **written, **given})


def read_toml(file: Path) -> dict[str, Any]:
    """The file's settings."""
    try:
        return tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadSetting(f"study file {file} cannot be read ({error})") from error


def study_from(settings: Mapping[str, Any]) -> Study:
    """Plain settings → a study; a name or a type that is not known is refused."""
    known = {item.name: item for item in fields(Study)}
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise BadSetting(f"study setting {unknown[0]!r}: use {', '.join(known)}, or preset")
    if "algorithms" not in settings:
        raise BadSetting("a study without algorithms: name them, as in algorithms = ['fedavg', 'bn-scaffold-std']")
    values = {name: value_of(name, str(known[name].type), value) for name, value in settings.items()}
    return Study(**values)


def value_of(name: str, kind: str, value: Any) -> Any:
    """A setting in the type that the study declares for it."""
    if name == "rows":
        if not isinstance(value, Mapping):
            raise BadSetting(
                f"study setting rows = {value!r}: write [rows.NAME] with an algorithm and what differs"
            )
        return tuple(row_from(label, changes) for label, changes in value.items())
    wanted = {"float": float, "int": int, "str": str}[re.findall(r"float|int|str", kind)[0]]
    if name in LISTS:
        items = value if isinstance(value, list | tuple) else (value,)
        return tuple(typed(name, wanted, item) for item in items)
    return None if value is None else typed(name, wanted, value)


def typed(name: str, wanted: type, value: Any) -> Any:
    """The value itself where it has the type; a whole number may stand for a float."""
    if type(value) is wanted:
        return value
    if wanted is float and type(value) is int:
        return float(value)
    raise BadSetting(f"study setting {name} = {value!r}: {KINDS[wanted]} is needed")


def row_from(name: str, changes: Mapping[str, Any]) -> Row:
    """A row of its own: `[rows."bn-scaffold, γ 0.01"]` with algorithm, and what differs."""
    if not isinstance(changes, Mapping) or "algorithm" not in changes:
        raise BadSetting(f"row {name!r}: it needs algorithm = one of {', '.join(ALGORITHMS)}")
    kinds = {item.name: str(item.type) for item in fields(Study)}
    own = {key: value for key, value in changes.items() if key != "algorithm"}
    for key in own:
        if key not in CHANGES:
            raise BadSetting(f"setting {key!r} of row {name!r}: a row may change {', '.join(CHANGES)}")
    typed_changes = {key: value_of(key, kinds[key], value) for key, value in own.items()}
    return Row(name, str(changes["algorithm"]), typed_changes)
