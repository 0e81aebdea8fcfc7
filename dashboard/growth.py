"""Curves known so far + curves of the rounds since → curves of all rounds."""

from app.schemas.runs import Curves, RunMetrics, Series, SiteCurves

METRICS = ("accuracy", "auc_ovo", "auc_ovr")
COLUMNS = ("n", "loss", "loss_low", "loss_high", "loss_n", "took_part")  # of a site


def extended(known: RunMetrics, since: RunMetrics) -> RunMetrics:
    """The curves with the later rounds behind them; a site that is in one part only has gaps in the other."""
    before, behind = len(known.rounds), len(since.rounds)
    names = [*known.sites, *(name for name in since.sites if name not in known.sites)]
    return RunMetrics(
        run=known.run,
        rounds=known.rounds + since.rounds,
        loss=known.loss + since.loss,
        loss_low=known.loss_low + since.loss_low,
        loss_high=known.loss_high + since.loss_high,
        loss_n=known.loss_n + since.loss_n,
        rate=known.rate + since.rate,
        seconds=known.seconds + since.seconds,
        test=joined(known.test, since.test),
        sites={
            name: joined_site(known.sites.get(name) or absent(before), since.sites.get(name) or absent(behind))
            for name in names
        },
        stride=max(known.stride, since.stride),
    )


def joined(first: Curves, then: Curves) -> Curves:
    """The three metrics, one part behind the other."""
    metrics = {name: joined_series(getattr(first, name), getattr(then, name)) for name in METRICS}
    return Curves(**metrics, n=first.n + then.n)


def joined_site(first: SiteCurves, then: SiteCurves) -> SiteCurves:
    """A site's curves, one part behind the other."""
    metrics = {name: joined_series(getattr(first, name), getattr(then, name)) for name in METRICS}
    columns = {name: getattr(first, name) + getattr(then, name) for name in COLUMNS}
    return SiteCurves(**metrics, **columns)


def joined_series(first: Series, then: Series) -> Series:
    """One metric, one part behind the other."""
    return Series(value=first.value + then.value, low=first.low + then.low, high=first.high + then.high)


def absent(rounds: int) -> SiteCurves:
    """The curves of a site that was not there."""
    gap = Series(value=(None,) * rounds, low=(None,) * rounds, high=(None,) * rounds)
    nothing = (None,) * rounds
    gaps = dict.fromkeys(COLUMNS, nothing)
    return SiteCurves(**dict.fromkeys(METRICS, gap), **{**gaps, "took_part": (False,) * rounds})
