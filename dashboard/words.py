"""Numbers and states of the coordinator → plain words, the same on every page."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from app.schemas.access import Certificate, Me, Site
from app.schemas.runs import Drift, Headline, Metric, Run, RunMetrics
from app.schemas.shape import Action, MetricName, RunState

METRICS: dict[MetricName, str] = {
    "accuracy": "Accuracy",
    "auc_ovo": "AUC, one-vs-one",
    "auc_ovr": "AUC, one-vs-rest",
}
METRIC_MEANS: dict[MetricName, str] = {
    "accuracy": "Share of test patches whose class the model names rightly. 1 is perfect; with five equally "
    "frequent classes, guessing gives 0.2.",
    "auc_ovo": "How well the model tells two classes apart, averaged over all pairs of classes. "
    "1 is perfect, 0.5 is guessing.",
    "auc_ovr": "How well the model tells one class from all the others, averaged over the classes. "
    "1 is perfect, 0.5 is guessing.",
}
STATES: dict[RunState, tuple[str, str, str]] = {  # words, colour and icon of a badge
    "draft": ("Draft", "gray", ":material/edit_note:"),
    "running": ("Running", "blue", ":material/play_circle:"),
    "paused": ("Paused", "orange", ":material/pause_circle:"),
    "completed": ("Completed", "green", ":material/check_circle:"),
    "stopped": ("Stopped", "gray", ":material/stop_circle:"),
    "failed": ("Failed", "red", ":material/error:"),
}
ACTIONS: dict[Action, tuple[str, str, str]] = {  # label, icon and what it does
    "start": ("Start", ":material/play_arrow:", "Begin training from round 1."),
    "pause": ("Pause", ":material/pause:", "Finish the open round, then wait. Nothing is lost."),
    "resume": ("Resume", ":material/resume:", "Go on from the last committed round."),
    "step": ("One round", ":material/skip_next:", "Train a single round, then pause again."),
    "stop": ("Stop", ":material/stop:", "End the run for good. The models so far are kept."),
}
CERTIFICATE_DAYS = 60  # before its end a certificate is warned of, as the coordinator does
RECENT = timedelta(days=7)  # for which a failed run is news
POOLING = (
    "the sites' scores stay with them, so these are the means of the sites' own numbers, weighted by their test "
    "patches. Intervals of the whole, curves and figures by class need scores that every site shares "
    "(`mammofed site join --share-scores`)."
)
ENGINES = {"local": "on the coordinator's machine", "nvflare": "at the enrolled sites"}
ENDED = ("completed", "stopped", "failed")
ALIKE, APART = 0.5, 1.0  # standard deviations below which sites look alike, from which on very different
WITHHELD = "–"
NBSP = "\N{NO-BREAK SPACE}"


def verbatim(text: str) -> str:
    """Words from elsewhere, shown as they are: no mark-up, no link, no picture comes of them."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


def interval(metric: Metric | None) -> str:
    """`0.873 (0.866 to 0.880)`, or a dash where there is nothing to say."""
    if metric is None or metric.value is None:
        return WITHHELD
    if metric.low is None or metric.high is None:
        return f"{metric.value:.3f}"
    return f"{metric.value:.3f} ({metric.low:.3f}{NBSP}to{NBSP}{metric.high:.3f})"


def bounds(metric: Metric | None) -> str:
    """`0.866 to 0.880`, for the line below a large number."""
    if metric is None or metric.low is None or metric.high is None:
        return "no interval"
    return f"{metric.low:.3f} to {metric.high:.3f}"


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash."""
    return WITHHELD if value is None else f"{value:,.{digits}f}"


def count(value: int | None) -> str:
    """A count, or a dash where it is withheld."""
    return WITHHELD if value is None else f"{value:,}"


def several(number: int, noun: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def patches(shown: Headline | None) -> str:
    """`n = 2,000 test patches`, or nothing where nobody told."""
    return f"n = {shown.n:,} test patches" if shown and shown.n is not None else ""


def p_value(value: float | None) -> str:
    """A p-value as journals print it."""
    if value is None:
        return WITHHELD
    return f"<{NBSP}0.001" if value < 0.001 else f"{value:.3f}"


def in_order(names: Iterable[str]) -> list[str]:
    """Names as people count: hospital-2 before hospital-10."""
    return sorted(set(names), key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)])


def spaced(name: str) -> str:
    """A class by its name in words: `mass_benign` is a mass, benign."""
    return name.replace("_", " ")


def layer_name(path: str) -> str:
    """A layer by its place: `features.denseblock1.denselayer2.layers.norm1` is block 1, layer 2, norm 1."""
    parts = [part.removeprefix("dense") for part in path.split(".") if part not in ("features", "layers")]
    return ", ".join(re.sub(r"(?<=\D)(\d+)$", r" \1", part) for part in parts)


def style_in_words(style: str) -> str:
    """A grey-level style as a reader of mammograms would say it, with its name."""
    kind, *rest = style.split(":")
    if kind == "sigmoid" and len(rest) == 2:
        return f"sigmoid LUT, centre {rest[0]}, width {rest[1]}"
    return {"none": "as acquired, no LUT", "voi": f"the file's own VOI LUT {''.join(rest)}"}.get(kind, style)


def agreement(drift: Drift) -> str:
    """Whether the sites' images look alike to the model after a round, in one sentence; empty if not measured."""
    if drift.round not in drift.rounds:
        return ""
    at = drift.rounds.index(drift.round)
    found = {site: values[at] for site, values in drift.mean_statistics.items()}
    known = {site: value for site, value in found.items() if value is not None}
    if not known:
        return ""
    site, far = max(known.items(), key=lambda each: each[1])
    looks = "much like" if far < ALIKE else "noticeably different from" if far < APART else "very different from"
    whose = f"**{site}**, the furthest site," if len(known) > 1 else f"**{site}**"
    return (
        f"After round {drift.round} the images of {whose} look to the model {looks} those of all sites together: "
        f"{far:.2f} standard deviations away, on average over {len(drift.layers)} layers."
    )


def share(value: float | None) -> str:
    """A share in per cent."""
    return WITHHELD if value is None else f"{100 * value:.0f} %".replace("-", "−")


def duration(seconds: float | None) -> str:
    """`2 h 5 min`, in the two largest units that matter."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def ago(moment: datetime | None, now: datetime | None = None) -> str:
    """How long ago, in words."""
    if moment is None:
        return "never"
    passed = ((now or datetime.now(UTC)) - aware(moment)).total_seconds()
    return "just now" if passed < 10 else f"{duration(passed)} ago"


def aware(moment: datetime) -> datetime:
    """A moment with its time zone: UTC where none is given."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def clock(moment: datetime | None) -> str:
    """`2026-03-01 14:05:09 UTC`."""
    return WITHHELD if moment is None else f"{aware(moment).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(octets: float | None) -> str:
    """Bytes in the unit that people read."""
    if octets is None:
        return "nothing: the data are pooled"
    for unit in ("B", "kB", "MB", "GB"):
        if octets < 1000:
            return f"{octets:.3g} {unit}"
        octets /= 1000
    return f"{octets:,.3g} TB"


def progress(run: Run) -> str:
    """`Round 17 of 40`."""
    return f"Round {run.round} of {run.settings.rounds}"


def left(run: Run) -> str:
    """What a run still needs, or why that cannot be said."""
    if run.state == "running" and run.waiting:
        return f"waiting: {verbatim(run.waiting)}"
    if run.state == "running":
        return (
            f"about {duration(run.seconds_left)} left"
            if run.seconds_left is not None
            else "time left: not known yet"
        )
    return {"draft": "not started", "completed": "finished"}.get(run.state, run.state)


def loss_in_words(metrics: RunMetrics, steps: int) -> str:
    """What the training loss is, what its band is, or why there is none."""
    if any(low is not None for low in metrics.loss_low):
        band = f"Band: 95 % interval of the mean over the {steps} steps of a round. "
    elif steps == 1:
        band = "No band: a round of a single step has no spread. "
    else:
        band = "No band: these rounds were trained before it was kept. "
    n = "n: training patches in a round" + (
        "; withheld where a site has less than a batch." if metrics.loss_n[-1] is None else "."
    )
    return f"Error on training patches: should fall. {band}{n}"


def why_off(run: Run, action: Action, me: Me, lost: bool = False) -> str | None:
    """Why a control cannot be pressed now; None where it can."""
    if lost:
        return "the coordinator does not answer"
    if me.role == "site":
        return "only the study's coordinator controls runs; your own site is on the Overview page"
    if me.role == "viewer":
        return "your token may read only"
    if action in run.actions and not (run.pausing and action == "pause"):
        return None
    return off_in_state(run, action)


def off_in_state(run: Run, action: Action) -> str:
    """Why a run in its present state does not take an action."""
    if run.state in ENDED:
        return "the run has failed" if run.state == "failed" else f"the run is {run.state}"
    if run.pausing and action in ("pause", "resume", "step"):
        return "it pauses as soon as the open round is committed"
    if action == "start":
        return "it has been started already"
    if run.state == "draft":
        return "it has not been started yet"
    return {"pause": "it is paused already", "resume": "it is running", "step": "pause it first"}.get(
        action, f"not while it is {run.state}"
    )


def last_seen(site: Site, now: datetime | None = None) -> str:
    """When a site was connected last; a simulated one never is."""
    if site.last_seen is None:
        return WITHHELD if site.simulated else "not yet"
    return ago(site.last_seen, now)


def health(site: Site) -> str:
    """A site's condition as one badge."""
    if site.condition == "withdrawn":
        return ":gray-badge[:material/logout: Withdrawn]"
    if site.condition == "paused":
        return ":orange-badge[:material/pause_circle: Paused]"
    if site.online is None:
        return (
            ":blue-badge[:material/home: Simulated]"
            if site.simulated
            else ":blue-badge[:material/mark_email_read: Enrolled]"
        )
    return (
        ":green-badge[:material/check_circle: Online]" if site.online else ":red-badge[:material/error: Offline]"
    )


def expiry(moment: datetime | None, now: datetime | None = None) -> str:
    """When a certificate ends, and how soon that is."""
    if moment is None:
        return WITHHELD
    days = (aware(moment) - (now or datetime.now(UTC))) / timedelta(days=1)
    when = f"{aware(moment):%Y-%m-%d}"
    return f"{when}, expired" if days < 0 else f"{when}, in {several(round(days), 'day')}"


def attention(
    runs: tuple[Run, ...],
    sites: tuple[Site, ...],
    certificates: tuple[Certificate, ...] = (),
    now: datetime | None = None,
) -> list[tuple[str, str]]:
    """What a person should look at first: (severity, sentence); the worst first, present trouble before past."""
    moment = now or datetime.now(UTC)
    found = [line for site in sites for line in about_site(site, moment)]
    for each in certificates:
        found += about_certificate(f"the {each.name}", each.expires, moment)
    found += [line for run in runs for line in about_run(run, moment)]
    return sorted(found, key=lambda line: line[0] != "error")


def about_run(run: Run, now: datetime) -> list[tuple[str, str]]:
    """What is wrong with a run; that it failed long ago is no news."""
    name = f"**{verbatim(run.name)}**"
    if run.state == "failed":
        if run.ended_at is not None and now - aware(run.ended_at) > RECENT:
            return []
        return [
            ("error", f"{name} failed after round {run.round}: {verbatim(run.reason or 'no reason was given')}")
        ]
    if run.state == "running" and run.waiting:
        return [("warning", f"{name} does not train: {verbatim(run.waiting)}")]
    if run.state == "paused" and run.reason:
        return [("warning", f"{name} stands still: {verbatim(run.reason)}")]
    return [("warning", text) for text in slow_sites(run)]


def slow_sites(run: Run, factor: float = 4.0) -> list[str]:
    """Sites that need several times as long for a round as the fastest one."""
    times = {
        p.site: p.seconds_left for p in run.progress if p.seconds_left is not None and p.round == run.round + 1
    }
    quickest = min(times.values(), default=0.0)
    slow = [name for name, seconds in times.items() if seconds > 60 and seconds > factor * max(quickest, 1.0)]
    return [
        f"**{name}** is slow in **{verbatim(run.name)}**: {duration(times[name])} left in this round"
        for name in slow
    ]


def about_site(site: Site, now: datetime) -> list[tuple[str, str]]:
    """What is wrong with a site."""
    if site.condition == "withdrawn":
        return []
    lines = []
    if site.online is False and site.condition == "active":
        lines.append(
            (
                "error" if site.runs else "warning",
                f"**{site.name}** is offline, last seen {ago(site.last_seen, now)}",
            )
        )
    if site.condition == "paused" and site.runs:
        lines.append(("warning", f"**{site.name}** is paused; its runs go on without it"))
    if site.certificate_expires:
        lines += about_certificate(f"**{site.name}**", site.certificate_expires, now)
    return lines


def about_certificate(whose: str, end: datetime, now: datetime) -> list[tuple[str, str]]:
    """A certificate that ends soon, or has ended: then nobody connects with it."""
    left = aware(end) - now
    if left > timedelta(days=CERTIFICATE_DAYS):
        return []
    if left < timedelta(0):
        return [("error", f"the certificate of {whose} ended on {aware(end):%Y-%m-%d}: renew it to connect again")]
    return [("warning", f"the certificate of {whose} ends {expiry(end, now)}: renew it")]
