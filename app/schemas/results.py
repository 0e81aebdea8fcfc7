"""What a trained model is worth: scores, curves by class, and runs and studies side by side."""

from app.schemas.runs import Headline, Metric
from app.schemas.shape import Answer, MetricName, RunState, Which


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
