"""What the coordinator, and a site's own window, accept and answer: one shape for each thing people speak of."""

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Item = TypeVar("Item")
RunState = Literal["draft", "running", "paused", "completed", "stopped", "failed"]
Action = Literal["start", "pause", "resume", "step", "stop"]
EngineName = Literal["local", "nvflare"]
Role = Literal["coordinator", "site", "viewer"]
SiteCondition = Literal["active", "paused", "withdrawn"]
MetricName = Literal["accuracy", "auc_ovo", "auc_ovr"]
Which = Literal["best", "last"]
ModelFormat = Literal["safetensors", "onnx", "monai-bundle"]
SITE_NAME = r"^[a-z0-9][a-z0-9-]{0,62}$"
SiteName = Annotated[str, Field(pattern=SITE_NAME, examples=["hospital-1"])]
Seconds = Annotated[float, Field(gt=0, le=1e7)]


class Answer(BaseModel):
    """What the coordinator says; fields are fixed once said."""

    model_config = ConfigDict(frozen=True)


class Request(BaseModel):
    """What a caller asks; unknown fields are refused rather than ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ---- runs ----


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
    vendors: dict[str, int] = {}  # training patches by vendor; small counts are left out, none where unknown
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


class Predictions(Answer):
    """Scores and labels of the test patches; nothing says whose they are."""

    run: str
    round: int
    classes: tuple[str, ...]
    labels: tuple[int, ...]
    scores: tuple[tuple[float, ...], ...]


class Curve(Answer):
    """A ROC curve, thinned out; `auc` is exact, with its bootstrap interval."""

    name: str
    positives: int
    negatives: int
    auc: Metric
    false_positive_rate: tuple[float, ...]
    true_positive_rate: tuple[float, ...]


class CalibrationBin(Answer):
    """Patches whose top score lies in a bin; `accuracy` between the bounds of Wilson's interval."""

    n: int
    confidence: float | None
    accuracy: Metric


class ClassResult(Answer):
    """One class against the rest at the threshold asked for; areas by bootstrap, rates by Wilson's interval."""

    name: str
    n: int
    auc: Metric
    pr_auc: Metric
    sensitivity: Metric
    specificity: Metric


class Results(Answer):
    """What a model is worth on the test patches; where scores stay at the sites, its headlines and no more."""

    run: str
    round: int
    which: Which
    headline: Headline
    n: int | None
    threshold: float | None  # None: the class with the highest score
    classes: tuple[ClassResult, ...]
    confusion: tuple[tuple[int, ...], ...]  # [true][predicted]
    calibration_error: float | None
    calibration: tuple[CalibrationBin, ...]
    one_vs_rest: tuple[Curve, ...]
    one_vs_one: tuple[Curve, ...]
    sites: dict[str, Headline]  # small numbers withheld


class ComparedRun(Answer):
    """A run beside others on the same data."""

    run: str
    name: str
    algorithm: str
    state: RunState
    round: int | None
    headline: Headline | None
    p_value: dict[MetricName, float | None]  # against the reference, paired on the same patches
    gap_recovered: dict[MetricName, float | None]  # (this − fedavg) / (centralized − fedavg)


class Comparison(Answer):
    """Runs side by side."""

    reference: str
    same_data: bool
    runs: tuple[ComparedRun, ...]


class StudyLine(Answer):
    """One row of a study: an algorithm at one setting."""

    algorithm: str
    skew: float
    local_steps: int
    seeds: int
    headline: Headline


class Study(Answer):
    """A finished study, as `mammofed study` wrote it, or the coordinator's own runs grouped alike."""

    name: str
    title: str
    lines: tuple[StudyLine, ...]


class Estimate(Answer):
    """What a run will cost, before it starts."""

    traffic_bytes: int | None  # all sites, all rounds, both ways; null for pooled data
    traffic: str  # the formula, one site, one way, one round
    seconds: float | None  # null: no comparable run has trained here yet
    parameters: int


# ---- sites, tokens, audit, tables ----


class Site(Answer):
    """An enrolled site."""

    name: str
    condition: SiteCondition
    online: bool | None  # null: it trains in the coordinator's own worker, or has not been seen yet
    last_seen: datetime | None
    certificate_expires: datetime | None
    simulated: bool  # it has trained in the coordinator's own worker, and never connected
    enrolled_at: datetime
    runs: tuple[str, ...]  # ids of the unfinished runs that it is in


class Certificate(Answer):
    """A certificate of the federation, and when it ends."""

    name: str  # `authority`, `server`, or a site
    expires: datetime
    days_left: int
    ends_soon: bool  # within the days in which it is to be renewed


class NewSite(Request):
    """A site to enrol."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra={"examples": [{"name": "hospital-9"}]}
    )

    name: SiteName


class Enrolment(Answer):
    """The one-time token with which the site's operator gets a token of their own; it is shown once."""

    site: Site
    token: str
    expires_at: datetime


class NewToken(Request):
    """A token to create."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"name": "Ward B", "role": "viewer", "days": 30},
                {"name": "operator of hospital-1", "role": "site", "site": "hospital-1"},
            ]
        },
    )

    name: str = Field(min_length=1, max_length=80)
    role: Role
    site: SiteName | None = None
    days: float = Field(90.0, gt=0, le=3650)


class Exchange(Request):
    """A one-time token to exchange for a lasting one."""

    token: str = Field(max_length=200, examples=["mf_0123456789ab_as-it-was-shown-once"])


class Token(Answer):
    """A token as it is listed: never the secret."""

    id: str
    name: str
    role: Role
    site: str | None
    one_time: bool
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    last_used: datetime | None


class Secret(Answer):
    """A new token with its secret, shown once."""

    token: Token
    secret: str


class Me(Answer):
    """Who the caller is."""

    name: str
    role: Role
    site: str | None
    expires_at: datetime


class AuditEntry(Answer):
    """One link of the audit chain."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]
    hash: str


class AuditCheck(Answer):
    """Whether the chain holds."""

    intact: bool
    entries: int
    broken_at: int | None
    why: str | None


class AlgorithmRow(Answer):
    """A row of the table of algorithms."""

    name: str
    differs: str
    bn_policy: str
    explained: str  # in two sentences
    sends: str
    bytes: int  # one way, one site, one round of DenseNet-121
    private: bool  # each site has a model of its own


class ModelRow(Answer):
    """A network that can be trained."""

    name: str
    explained: str
    parameters: int
    bytes: int


class Preset(Answer):
    """Settings to begin with."""

    name: str
    explained: str
    settings: RunSettings


class Health(Answer):
    """Whether the service is up, and what it stands on."""

    status: Literal["ok", "failing"]
    version: str
    database: str
    workers: int
    problems: tuple[str, ...] = ()


# ---- a site's own window: for its operator alone, never by way of the coordinator ----


class WindowData(Answer):
    """A site's patches in numbers, none of them withheld."""

    site: str
    style: str  # in which patches are read for training
    train: dict[str, int]  # patches by class
    test: dict[str, int]
    vendors: dict[str, int]  # training patches by vendor; none where the data do not say
    styles: dict[str, int]  # training patches by the style in which they were cut or drawn
    histogram: tuple[float, ...]  # share of pixels by grey level in 32 bins of [0, 1], as trained on
    histogram_before: tuple[float, ...] | None  # the same before the site's style


class RefusedItem(Answer):
    """A file or a row that cannot be used, and why."""

    name: str
    error: str
    reason: str


class Preflight(Answer):
    """The report of `mammofed inspect`, made when the site joined; values of patient tags are nowhere in it."""

    made_at: datetime
    exit_code: Literal[0, 1, 2]  # fine, usable with warnings, cannot train
    verdict: str
    files: int
    usable: int
    unit: str  # what is counted: files, or patches
    counts: dict[str, dict[str, int]]  # by table: class, split, vendor, view, laterality, ...
    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    identity: dict[str, int]
    unreadable: tuple[RefusedItem, ...]
    refused_rows: tuple[RefusedItem, ...]
    duplicates: tuple[tuple[str, ...], ...]  # names of files with the same pixels
    wrong_side: tuple[str, ...]
    notice: str


class Page(Answer, Generic[Item]):
    """A part of a list; `next` is the value of `after` for the part behind it."""

    items: tuple[Item, ...]
    total: int
    next: int | str | None


class Problem(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Conflict",
                    "status": 409,
                    "detail": "a draft run cannot pause; allowed now: start, step, stop",
                    "instance": "/api/v1/runs/0007-1c2d3e4f/pause",
                    "allowed": ["start", "step", "stop"],
                }
            ]
        }
    )

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str | None = None
    allowed: tuple[str, ...] | None = None  # 409: the actions that are allowed now
    errors: list[dict[str, Any]] | None = None  # 422: what is wrong, field by field
