"""A run: what decides it, how far it is, and its rounds, curves, drift and events."""

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field

from app.schemas.shape import Action, Answer, EngineName, MetricName, Request, RunState, Seconds, SiteName


class DataSettings(Request):
    """The data of a run on one machine: synthetic hospitals, MNIST, or stores by path in `site`."""

    data: Literal["synthetic", "mnist"] = "synthetic"
    folder: str | None = Field(None, description="MNIST's IDX files")
    sites: int = Field(2, ge=1, le=64)
    skew: float = Field(1.0, ge=0, le=1, description="p: style skew of synthetic data, label skew of MNIST")
    image_size: int = Field(64, ge=16, le=512, description="pixels a side of synthetic patches")
    patches: int = Field(
        2000, ge=20, le=1_000_000, description="synthetic patches a site, and of the shared test set"
    )
    site: tuple[str, ...] = Field((), description="NAME=PATH[,style=STYLE] of each site", max_length=64)
    test: str | None = Field(None, description="path of the test patches that all sites share")


class RunSettings(Request):
    """All that decides a run; two runs with equal settings end bit-identical on one machine."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"name": "two hospitals", "algorithm": "bn-scaffold-std", "model": "densenet121", "rounds": 40}
            ]
        },
    )

    name: str = Field("", max_length=120, description="what people call it; the algorithm, if empty")
    engine: EngineName = "local"
    algorithm: str = "bn-scaffold-std"
    model: str = "densenet121"
    rounds: int = Field(40, ge=1, le=100_000)
    local_steps: int = Field(10, ge=1, le=100_000, description="E, steps of a site in a round")
    batch: int = Field(32, ge=2, le=65_536, description="patches of a step, at each site")
    rate: float = Field(0.05, gt=0, le=100, description="γ, the learning rate")
    schedule: str = Field("constant", description="constant, step:EVERY:FACTOR or multi-step:AT,AT,...:FACTOR")
    warmup: int = Field(0, ge=0, le=10_000_000, description="iterations over which the rate rises linearly")
    momentum: float = Field(0.0, ge=0, lt=1)
    variance_floor: float = Field(1e-2, gt=0, le=1e6, description="σ²_ths of bn-scaffold")
    freeze_from: int | None = Field(
        None, ge=0, le=10_000_000, description="T* of fixbn; half of all iterations, if null"
    )
    evaluate_every: int = Field(1, ge=1, le=100_000)
    seed: int = Field(0, ge=0, le=2**31)
    device: str = "auto"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    threads: int = Field(
        1, ge=1, le=256, description="of torch, at each site; part of the settings: it changes the last bit"
    )
    resamples: int = Field(2000, ge=100, le=100_000, description="of the bootstrap")
    selection: MetricName = Field("auc_ovo", description="what the best model is best in")
    quorum: int | None = Field(None, ge=1, le=64, description="sites that a round needs; all of them, if null")
    deadline: Seconds = Field(3600.0, description="seconds after which a round goes on without a late site")
    sites: tuple[SiteName, ...] = Field(
        (), max_length=64, description="nvflare: the enrolled sites that take part"
    )
    data: DataSettings = DataSettings()


class Metric(Answer):
    """A value between the bounds of its 95 % interval; three nulls where it is undefined or withheld."""

    value: float | None
    low: float | None
    high: float | None


class Headline(Answer):
    """The three numbers that a model is judged by."""

    accuracy: Metric
    auc_ovo: Metric
    auc_ovr: Metric
    n: int | None = None  # test patches behind them, of classes above the floor; null where nobody told
    pooled: bool = True  # False: the mean of the sites' own numbers, since scores stay at the sites


class SiteProgress(Answer):
    """How far a site is in the open round; apart from whether it answers at all."""

    site: str
    round: int
    steps: int
    local_steps: int
    patches_per_second: float | None
    seconds_left: float | None
    at: datetime


class Run(Answer):
    """A training run as it stands."""

    id: str
    name: str
    state: RunState
    settings: RunSettings
    actions: tuple[Action, ...]  # those allowed now
    round: int  # the last one committed
    pausing: bool  # it pauses as soon as the open round is committed
    waiting: str | None  # why a running run does not train: queued, or too few sites
    reason: str | None  # why it failed, or stands still
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    created_by: str
    seconds_left: float | None
    best_round: int | None
    best: Headline | None
    latest: Headline | None  # of the last round that was evaluated
    data_key: str | None  # equal for runs on the same data; null before the first round
    progress: tuple[SiteProgress, ...]


class SiteRound(Answer):
    """One site's part in a round."""

    site: str
    took_part: bool
    why_not: str | None  # late, paused, refused, ...
    loss: float | None
    loss_low: float | None = None  # 95 % interval of the mean over the round's batches; null after a single one
    loss_high: float | None = None
    loss_n: int | None = None  # training patches behind it; null where the site has less than a batch
    steps: int | None
    seconds: float | None
    test: Headline | None


class Round(Answer):
    """One committed round."""

    number: int
    committed_at: datetime
    seconds: float
    rate: float
    loss: float
    loss_low: float | None = None
    loss_high: float | None = None
    loss_n: int | None = None
    sites: tuple[SiteRound, ...]
    test: Headline | None  # of all test patches; null where the round was not evaluated
    pooled: bool  # False: `test` combines per-site metrics, since scores stay at the sites
    best: bool


class Series(Answer):
    """One metric over rounds, as columns; null where a round was not evaluated."""

    value: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


class Curves(Answer):
    """The three metrics over rounds."""

    accuracy: Series
    auc_ovo: Series
    auc_ovr: Series
    n: tuple[int | None, ...]  # test patches of each round


class SiteCurves(Curves):
    """A site's own curves."""

    loss: tuple[float | None, ...]
    loss_low: tuple[float | None, ...]
    loss_high: tuple[float | None, ...]
    loss_n: tuple[int | None, ...]  # training patches seen in each round
    took_part: tuple[bool, ...]


class RunMetrics(Answer):
    """A run's curves, thinned out evenly where it has more rounds than asked for, up to the last."""

    run: str
    rounds: tuple[int, ...]
    loss: tuple[float, ...]
    loss_low: tuple[float | None, ...]
    loss_high: tuple[float | None, ...]
    loss_n: tuple[int | None, ...]  # training patches seen in each round
    rate: tuple[float, ...]
    seconds: tuple[float, ...]
    test: Curves
    sites: dict[str, SiteCurves]
    stride: int  # every so manieth round is here


class RunSite(Answer):
    """What a run knows of a site's data: counts and histograms, never an image."""

    site: str
    style: str
    train: dict[str, int | None]  # patches by class; null: withheld
    test: dict[str, int | None]
    vendors: dict[str, int] = Field(default_factory=dict)  # training patches; small counts left out, none: unknown
    histogram: tuple[float, ...] | None  # share of pixels by grey level in 32 bins of [0, 1], as trained on
    histogram_before: tuple[float, ...] | None  # the same before the site's style, where it is known
    has_gallery: bool
    progress: SiteProgress | None
    latest: Headline | None


class LayerDrift(Answer):
    """How far the sites are apart in one layer."""

    layer: str
    statistics: dict[
        str, float | None
    ]  # by site: distance of its batch statistics from the server's, in std. deviations
    gradient: dict[str, float | None]  # by site: ‖c_i − c‖ / ‖c‖; null where the row has no such variate


class Drift(Answer):
    """A round's drift by layer, and the mean over layers of every round so far."""

    run: str
    round: int | None
    rounds: tuple[int, ...]
    layers: tuple[LayerDrift, ...]
    mean_statistics: dict[str, tuple[float | None, ...]]  # by site, over `rounds`
    mean_gradient: dict[str, tuple[float | None, ...]]


class Event(Answer):
    """Something that happened to a run or a site."""

    id: int
    at: datetime
    kind: str
    text: str
    run: str | None
    round: int | None
    site: str | None
