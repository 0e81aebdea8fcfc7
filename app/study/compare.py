"""Records and scores → one line for each row, p, E and metric: mean, interval, p-value, gap recovered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from app.study.collect import Record, Scores
from app.study.plan import Row, Study
from fl_core.intervals import HEADLINES, Headline, paired_p_value, resampled_headlines, welch
from fl_core.metrics import rank
from mammofed.errors import BadData

ReadScores = Callable[[str], Scores]  # of the run of that name


@dataclass(frozen=True)
class Entry:
    """What stands on one line: a row's models, or of `local` the model of one site."""

    label: str
    row: Row
    site: str | None = None  # whose model is meant; None: the global one, or each patch by its own site's

    @property
    def scores(self) -> str:
        """The name of the entry's scores."""
        return "scores" if self.site is None else f"scores.{self.site}"


@dataclass(frozen=True)
class Line:
    """One row at one p and E in one metric; None where it cannot be said."""

    label: str
    algorithm: str
    skew: float
    local_steps: int
    metric: Headline
    runs: int = 0  # finished
    of: int = 0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str = ""  # what the interval is over
    p_value: float | None = None
    test: str = ""
    gap: float | None = None
    gap_low: float | None = None
    gap_high: float | None = None
    gap_note: str = ""  # why there is a value and no gap
    site_models_mean: float | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """The line in study.json."""
        return asdict(self)


@dataclass(frozen=True)
class Place:
    """The runs at one p and E, by row; rows to which E is nothing are there at each E."""

    skew: float
    local_steps: int
    records: Mapping[str, Sequence[Record]]  # of each row, seed by seed

    def finished(self, row: str) -> list[Record]:
        """The runs of a row that reached the end, by seed."""
        return [record for record in self.records.get(row, ()) if record["status"] == "finished"]


@dataclass(frozen=True)
class Bench:
    """What comparisons need beside the records; resamples are drawn once for each run."""

    study: Study
    read: ReadScores
    drawn: Callable[[str, str], NDArray[np.float64]] = field(compare=False)  # (run, scores) → (3, resamples)


def bench_of(study: Study, read: ReadScores) -> Bench:
    """A bench that remembers scores and draws."""
    read = cache(read)

    @cache
    def drawn(run: str, scores: str) -> NDArray[np.float64]:
        found = read(run)
        labels = found["labels"].astype(np.int64)
        return np.asarray(resampled_headlines([rank(found[scores], labels)], labels, study.resamples, seed=0)[0])

    return Bench(study, read, drawn)


def lines_of(study: Study, records: Sequence[Record], read: ReadScores) -> list[Line]:
    """All lines, place by place, metric by metric, in the order of the rows."""
    bench = bench_of(study, read)
    return [
        line_of(bench, place, entry, metric)
        for place in places_of(study, records)
        for metric in HEADLINES
        for row in study.table
        for entry in entries_of(row, place)
    ]


def places_of(study: Study, records: Sequence[Record]) -> list[Place]:
    """One place for each p and E."""
    largest = max(study.local_steps)

    def at(row: Row, skew: float, steps: int) -> list[Record]:
        own = largest if row.one_step_count else steps
        return [r for r in records if (r["row"], r["skew"], r["local_steps"]) == (row.name, skew, own)]

    return [
        Place(skew, steps, {row.name: at(row, skew, steps) for row in study.table})
        for skew in sorted(study.skews)
        for steps in sorted(study.local_steps)
    ]


def entries_of(row: Row, place: Place) -> list[Entry]:
    """The row itself; of `local` each site's model too, as the paper shows them."""
    if row.algorithm != "local":
        return [Entry(row.name, row)]
    finals = [record["final"] for record in place.records[row.name] if record["final"]]
    sites = list(finals[0]["site_models"]) if finals else []
    numbered = [Entry(f"{row.name} {number}", row, site) for number, site in enumerate(sites, 1)]
    return [*numbered, Entry(own_models(row), row)]


def own_models(row: Row) -> str:
    """The label of `local` where each patch is scored by its own site's model."""
    return f"{row.name} (own models)"


def line_of(bench: Bench, place: Place, entry: Entry, metric: Headline) -> Line:
    """One line; a run that diverged or is missing is named in the note, and never averaged."""
    records = place.records[entry.row.name]
    done = place.finished(entry.row.name)
    found = [figure(record["final"], entry, metric) for record in done]
    line: dict[str, Any] = {"runs": len(done), "of": len(records), "note": note_of(records)}
    if found and all(interval["value"] is not None for interval in found):
        line |= spread(found)
        line |= tested(bench, place, entry, metric)
        line |= gap_recovered(bench, place, entry, metric)
        line["site_models_mean"] = models_mean(done, entry, metric)
    return Line(entry.label, entry.row.algorithm, place.skew, place.local_steps, metric, **line)


def figure(final: Mapping[str, Any], entry: Entry, metric: Headline) -> dict[str, float | None]:
    """Value, low and high of one run."""
    found: dict[str, float | None] = (final if entry.site is None else final["site_models"][entry.site])[metric]
    return found


def value_of(record: Record, entry: Entry, metric: Headline) -> float:
    """The metric of one run, where it is defined."""
    value = figure(record["final"], entry, metric)["value"]
    if value is None:
        raise BadData(f"run {record['name']}: {metric} is not defined on its test patches; they lack a class")
    return value


def note_of(records: Sequence[Record]) -> str:
    """What happened to runs that did not finish."""
    notes = []
    for record in records:
        if record["status"] == "diverged":
            after = f"after round {record['last_round']} of {record['rounds']}"
            notes.append(f"seed {record['seed']} diverged {after}: {record['error']}")
        elif record["status"] == "missing":
            notes.append(f"seed {record['seed']} is missing")
    return "; ".join(notes)


def spread(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean over the seeds with Student's 95 % interval; of one seed its value and bootstrap interval."""
    if len(found) == 1:
        return {**found[0], "interval": "bootstrap over test patches"}
    values = np.array([interval["value"] for interval in found])
    mean = float(values.mean())
    half = float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values)))
    return {
        "value": mean,
        "low": mean - half,
        "high": mean + half,
        "interval": f"Student's t over {len(values)} seeds",
    }


def models_mean(done: Sequence[Record], entry: Entry, metric: Headline) -> float | None:
    """Mean over the site models on the pooled test set, of rows with private tensors (algorithms.md section 4)."""
    if entry.site is not None or "site_models" not in done[0]["final"]:
        return None
    models = [model[metric]["value"] for record in done for model in record["final"]["site_models"].values()]
    return None if None in models else float(np.mean(models))


def tested(bench: Bench, place: Place, entry: Entry, metric: Headline) -> dict[str, Any]:
    """p against the chosen row: Welch between seeds, or the paired bootstrap on the same patches for one seed."""
    against = bench.study.against
    ours, theirs = place.finished(entry.row.name), place.finished(against)
    if not theirs or entry.row.name == against:
        return {}
    if len(ours) > 1 and len(theirs) > 1:
        a = [value_of(record, entry, metric) for record in ours]
        b = [value_of(record, Entry(against, entry.row), metric) for record in theirs]
        return {"p_value": welch(a, b), "test": "Welch between seeds"}
    pairs = [(a, b) for a in ours for b in theirs if a["seed"] == b["seed"]]
    if not pairs:
        return {}
    one, other = (bench.read(record["name"]) for record in pairs[0])
    check_same(pairs[0], one, other)
    labels = one["labels"].astype(np.int64)
    p = paired_p_value(one[entry.scores], other["scores"], labels, metric, bench.study.resamples)
    return {"p_value": p, "test": f"paired bootstrap on the same test patches, seed {pairs[0][0]['seed']}"}


def check_same(pair: Sequence[Record], one: Scores, other: Scores) -> None:
    """Refuse a paired comparison of two sets of patches."""
    if not np.array_equal(one["labels"], other["labels"]):
        names = " and ".join(record["name"] for record in pair)
        raise BadData(f"runs {names} have other test patches: start the study anew in another folder")


def gap_recovered(bench: Bench, place: Place, entry: Entry, metric: Headline) -> dict[str, Any]:
    """(method − fedavg) / (centralized − fedavg), with a bootstrap interval over test patches and seeds.

    Left out where the interval of centralized − fedavg reaches 0: there is no gap to recover.
    """
    seeds = shared_seeds(place, (entry.row.name, "fedavg", "centralized"))
    if entry.row.name in ("fedavg", "centralized"):
        return {}
    if not seeds:
        return {"gap_note": "no reference"}
    trio = [(entry.row.name, entry.scores), ("fedavg", "scores"), ("centralized", "scores")]
    index = HEADLINES.index(metric)
    method, floor, roof = (
        np.array([bench.drawn(run_at(place, row, seed), scores)[index] for seed in seeds]) for row, scores in trio
    )
    picks = np.random.default_rng(0).integers(len(seeds), size=method.shape)
    won, gap = (np.take_along_axis(part, picks, axis=0).mean(axis=0) for part in (method - floor, roof - floor))
    if not np.quantile(gap, 0.025) > 0:
        return {"gap_note": "no gap"}
    observed = [observed_mean(place, entry, seeds, metric)]
    observed += [
        observed_mean(place, Entry(name, Row(name, name)), seeds, metric) for name in ("fedavg", "centralized")
    ]
    there = gap > 0  # at most 2.5 % of the resamples have no gap to recover
    low, high = np.quantile(won[there] / gap[there], [0.025, 0.975])
    value = (observed[0] - observed[1]) / (observed[2] - observed[1])
    return {"gap": value, "gap_low": float(low), "gap_high": float(high)}


def shared_seeds(place: Place, rows: Sequence[str]) -> list[int]:
    """The seeds with which all of these rows finished."""
    sets = [{record["seed"] for record in place.finished(row)} for row in rows]
    return sorted(set.intersection(*sets))


def run_at(place: Place, row: str, seed: int) -> str:
    """The name of the finished run of a row with that seed."""
    return next(str(record["name"]) for record in place.finished(row) if record["seed"] == seed)


def observed_mean(place: Place, entry: Entry, seeds: Sequence[int], metric: Headline) -> float:
    """Mean of the metric over these seeds."""
    records = [record for record in place.finished(entry.row.name) if record["seed"] in seeds]
    return float(np.mean([value_of(record, entry, metric) for record in records]))
