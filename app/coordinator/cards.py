"""A run → its model card as Markdown: what it is, what it may be used for, on which data, how well it does."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.coordinator.db import RoundRow
from app.coordinator.results import Shown, results, while_kept
from app.coordinator.service import Service
from app.coordinator.tokens import Principal
from app.coordinator.views import run_sites
from app.coordinator.words import METRICS, MODEL_WORDS
from app.provenance import provenance
from app.schemas.results import Results
from app.schemas.runs import Headline, Metric, RunSettings, RunSite
from fl_core.family import FEDAVG, Algorithm, algorithm_named, everything

LIMITS = """\
- For research: to study federated training and to compare models. It is **not a medical device**; no score of it
  may guide the care of a patient.
- It scores patches of mammograms, not whole images, breasts or women, and only in the classes named below.
- On other devices, vendors, populations or ways to cut patches its figures may be worse; nothing here says
  by how much.
- {sharing} **No differential privacy** is claimed.
- The round was chosen by its {metric} on the same test patches that it is reported on: the figures lean a little
  to the bright side.
- Intervals are over test patches (95 % percentile bootstrap); they do not hold the chance of another training."""
POOLED = "All sites' patches were brought together to train it."
ALONE = "Each site trained a model of its own, and nothing was shared."
SHARED = "Weights and statistics were shared between the sites, images were not; that is no anonymity."
MEANS = "All sites: the mean of the sites' own numbers; without intervals, since scores stay at the sites."
NO_SCORES = "Scores stay at the sites: there are no figures by class here."
LOCAL_SYNTHETIC = "The patches are **synthetic**: figures say nothing about real mammograms."


def model_card(service: Service, who: Principal, run: str) -> str:
    """The card of the run's best round; a site's operator reads the own site's numbers and the pooled ones."""

    def make(shown: Shown) -> str:
        with service.reading() as session:
            sites = run_sites(session, who, run)
            part = took_part(session, run)
        worth = results(service, who, shown, None)
        return card(shown, sites, part, by_class(worth) if worth.headline.pooled else NO_SCORES)

    return while_kept(service, run, "best", make)


def took_part(session: Session, run: str) -> dict[str, int]:
    """In how many rounds each site took part."""
    counts: dict[str, int] = {}
    for record in session.scalars(select(RoundRow.record).where(RoundRow.run == run)):
        for site, part in record["sites"].items():
            counts[site] = counts.get(site, 0) + ("away" not in part)
    return counts


def card(shown: Shown, sites: Sequence[RunSite], part: Mapping[str, int], classes: str) -> str:
    """All sections."""
    settings = RunSettings.model_validate(shown.run.settings)
    sections = {
        "What it is": what_it_is(shown, settings),
        "Intended use and limits": limits(settings),
        "Data": data(sites, shown.classes),
        "Training": training(settings),
        "Results": figures(shown, sites),
        "Classes": classes,
        "Who took part": table(
            ("site", "rounds"), [(name, f"{n} of {shown.run.round}") for name, n in seen(part, sites).items()]
        ),
        "Made with": table(("what", "version"), list(provenance().items())),
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items())
    return f"# Model card: {plain(shown.run.name)}\n\n{body}\n"


def seen(part: Mapping[str, int], sites: Sequence[RunSite]) -> dict[str, int]:
    """The part of the sites that the reader may see, and of pooled data."""
    names = {site.site for site in sites} | {"pooled"}
    return {name: n for name, n in part.items() if name in names}


def in_words(row: Algorithm) -> str:
    """An algorithm's name, and what sets it apart from plain averaging."""
    return f"`{row.name}`" if row is FEDAVG else f"`{row.name}` ({row.differs})"


def what_it_is(shown: Shown, settings: RunSettings) -> str:
    """One paragraph, and where it comes from."""
    finished = f"{shown.run.ended_at:%Y-%m-%d %H:%M} UTC" if shown.run.ended_at else "not yet"
    return "\n\n".join(
        [
            f"{MODEL_WORDS[settings.model]} It was trained with {in_words(algorithm_named(settings.algorithm))} "
            f"to tell apart: {', '.join(map(plain, shown.classes))}.",
            table(
                ("", ""),
                [
                    ("run", shown.run.id),
                    ("state", shown.run.state),
                    (
                        "this model",
                        f"round {shown.round} of {settings.rounds}, the best by {METRICS[settings.selection]}",
                    ),
                    ("rounds so far", str(shown.run.round)),
                    ("created", f"{shown.run.created_at:%Y-%m-%d %H:%M} UTC by {shown.run.created_by}"),
                    ("ended", finished),
                ],
            ),
        ]
    )


def limits(settings: RunSettings) -> str:
    """What it must not be used for."""
    drawn = settings.engine == "local" and settings.data.data == "synthetic" and not settings.data.site
    row = algorithm_named(settings.algorithm)
    sharing = POOLED if row.pooled else ALONE if row.private is everything else SHARED
    text = LIMITS.format(metric=METRICS[settings.selection], sharing=sharing)
    return f"{text}\n- {LOCAL_SYNTHETIC}" if drawn else text


def data(sites: Sequence[RunSite], classes: Sequence[str]) -> str:
    """Patches by site and class, training / test; small numbers stay withheld."""
    rows = [
        (
            site.site,
            site.style,
            *(f"{count(site.train.get(name))} / {count(site.test.get(name))}" for name in classes),
        )
        for site in sites
    ]
    note = (
        "Patches for training / for testing. A number below the sites' floor is withheld (–), and looks like none."
    )
    return f"{note}\n\n{table(('site', 'style', *classes), rows)}"


def count(number: int | None) -> str:
    """A count, or a dash where it is withheld."""
    return "–" if number is None else f"{number:,}"


def training(settings: RunSettings) -> str:
    """The settings, as they were asked for."""
    named = settings.model_dump(mode="json", exclude={"data", "name", "sites"})
    policy = algorithm_named(settings.algorithm).bn_policy
    rows = [(name.replace("_", " "), "–" if value is None else str(value)) for name, value in named.items()]
    return f"Batch normalisation: {policy}.\n\n{table(('setting', 'value'), rows)}"


def figures(shown: Shown, sites: Sequence[RunSite]) -> str:
    """The three metrics with their 95 % intervals, of all test patches and of each site's."""
    own = shown.kept["sites"]
    rows = [("all sites", shown.kept["headline"])]
    rows += [(site.site, own[site.site]) for site in sites if site.site in own]
    shaped = [(name, Headline.model_validate(found)) for name, found in rows]
    cells = [
        (name, count(found.n), *(interval(getattr(found, metric)) for metric in METRICS)) for name, found in shaped
    ]
    text = table(("test patches of", "n", *METRICS.values()), cells)
    return text if "scores" in shown.kept else f"{text}\n\n{MEANS}"


def interval(metric: Metric) -> str:
    """A value with its bounds where it has any, or a dash where it is undefined or withheld."""
    if metric.value is None or metric.low is None:
        return decimal(metric.value)
    return f"{metric.value:.3f} ({decimal(metric.low)} – {decimal(metric.high)})"


def by_class(worth: Results) -> str:
    """Each class against the rest on all test patches, called by the highest score."""
    rows = [
        (
            one.name,
            count(one.n),
            *map(interval, (one.auc, one.pr_auc, one.sensitivity, one.specificity)),
        )
        for one in worth.classes
    ]
    heads = ("class", "patches", "AUC", "PR-AUC", "sensitivity", "specificity")
    return f"{table(heads, rows)}\n\nExpected calibration error: {decimal(worth.calibration_error)}."


def decimal(value: float | None) -> str:
    """Three digits, or a dash."""
    return "–" if value is None else f"{value:.3f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(plain(str(cell)) for cell in line)} |" for line in lines)


def plain(words: str) -> str:
    """Words that people chose, with nothing in them that Markdown would take for its own."""
    return "".join(f"\\{sign}" if sign in "|*_`<>[]#\\" else " " if sign in "\r\n" else sign for sign in words)
