"""Files of finished studies, and the coordinator's own finished runs → metrics against heterogeneity."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.coordinator.db import RunRow
from app.coordinator.views import HEADLINES, NOTHING
from app.schemas.results import Study, StudyLine
from app.schemas.runs import Headline, RunSettings
from app.study.compare import spread

log = logging.getLogger(__name__)


def studies(session: Session, folder: Path) -> tuple[Study, ...]:
    """All that is known, files first; a file that cannot be read is named in the log."""
    found = [read_once(path, path.stat().st_mtime_ns) for path in sorted(folder.rglob("study.json"))]
    return (*(study for study in found if study is not None), *own_runs(session))


@lru_cache(maxsize=64)
def read_once(path: Path, changed: int) -> Study | None:
    """The study of that file, read again when it has changed."""
    try:
        return shaped(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("study %s cannot be read: %r", path, error)
        return None


def shaped(written: Mapping[str, Any]) -> Study:
    """What `mammofed study` wrote, one line for each row, p and E."""

    def place(line: Mapping[str, Any]) -> tuple[str, float, int]:
        return line["label"], line["skew"], line["local_steps"]

    study = written["study"]
    n = study.get("patches") if study["data"] == "synthetic" else None  # as many to test as at a site
    grouped = [(key, list(lines)) for key, lines in groupby(sorted(written["lines"], key=place), place)]
    words = [study["model"], f"{study['sites']} sites", study["data"], f"commit {written['versions']['commit']}"]
    return Study(
        name=study["name"],
        title=f"{study['name']}: {', '.join(words)}",
        lines=tuple(
            StudyLine(
                algorithm=label,
                skew=skew,
                local_steps=steps,
                seeds=lines[0]["runs"],
                headline=headline_of(lines, n),
            )
            for (label, skew, steps), lines in grouped
        ),
    )


def headline_of(lines: Iterable[Mapping[str, Any]], n: int | None) -> Headline:
    """The three metrics of one row at one place; null where its runs diverged."""
    by_metric = {line["metric"]: {part: line[part] for part in NOTHING} for line in lines}
    return Headline.model_validate({name: by_metric.get(name, NOTHING) for name in HEADLINES} | {"n": n})


def own_runs(session: Session) -> tuple[Study, ...]:
    """Finished runs on synthetic data: one study for each kind of run, so that only like is compared with like."""
    rows = session.scalars(select(RunRow).where(RunRow.state == "completed").order_by(RunRow.number))
    kinds: dict[str, dict[tuple[str, float, int], dict[int, RunRow]]] = {}
    for row in rows:
        settings = RunSettings.model_validate(row.settings)
        if (
            row.latest is None
            or settings.engine != "local"
            or settings.data.site
            or settings.data.data != "synthetic"
        ):
            continue
        place = settings.algorithm, settings.data.skew, settings.local_steps
        kinds.setdefault(kind_of(settings), {}).setdefault(place, {})[settings.seed] = row
    return tuple(
        Study(
            name="own runs",
            title=f"own runs: {kind}",
            lines=tuple(own_line(place, list(seeds.values())) for place, seeds in sorted(places.items())),
        )
        for kind, places in kinds.items()
    )


def kind_of(settings: RunSettings) -> str:
    """What runs must share to be compared, in words."""
    data = settings.data
    patches = f"{data.sites} sites with {data.patches} patches of {data.image_size} px"
    iterations = settings.rounds * settings.local_steps
    return f"{settings.model}, {patches}, batch {settings.batch}, rate {settings.rate}, {iterations} iterations"


def own_line(place: tuple[str, float, int], rows: Sequence[RunRow]) -> StudyLine:
    """One row at one place, over its seeds: mean and Student's interval, or the one run's own."""
    algorithm, skew, steps = place
    kept = [row.latest["headline"] for row in rows if row.latest]
    figures: dict[str, Any] = {name: over_seeds([one[name] for one in kept]) for name in HEADLINES}
    numbers = {one.get("n") for one in kept}
    figures["n"] = numbers.pop() if len(numbers) == 1 else None
    return StudyLine(
        algorithm=algorithm,
        skew=skew,
        local_steps=steps,
        seeds=len(rows),
        headline=Headline.model_validate(figures),
    )


def over_seeds(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Value and bounds of one metric; null where a run does not have it."""
    return NOTHING if any(one["value"] is None for one in found) else spread(found)
