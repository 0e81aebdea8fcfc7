"""Charts: what is drawn, what is saved, and what is withheld."""

from datetime import UTC, datetime

from app import glance
from app.schemas.results import ClassResult, ComparedRun, Curve, Results, Study, StudyLine
from app.schemas.runs import Drift, Headline, LayerDrift, Metric, Round, RunSite, SiteRound
from dashboard.charts import drift_map, timeline
from dashboard.result_charts import SAMPLE, bars, class_counts, confusion, histogram, roc
from dashboard.study_charts import diverged, study_chart, varies

NONE = Metric(value=None, low=None, high=None)


def headline(value: float) -> Headline:
    """The same metric three times, with an uneven interval."""
    metric = Metric(value=value, low=value - 0.25, high=value + 0.125)
    return Headline(accuracy=metric, auc_ovo=metric, auc_ovr=metric, n=2000)


def a_round(number: int, away: str | None) -> Round:
    """A round of two sites, the second of which may be away."""
    here = SiteRound(site="a", took_part=True, why_not=None, loss=1.0, steps=2, seconds=3.5, test=None)
    other = here.model_copy(update={"site": "b"})
    gone = SiteRound(site="b", took_part=False, why_not=away, loss=None, steps=None, seconds=None, test=None)
    return Round(
        number=number, committed_at=datetime(2026, 3, 1, tzinfo=UTC), seconds=4.0, rate=0.1, loss=1.0,
        sites=(here, gone if away else other), test=None, pooled=True, best=False,
    )  # fmt: skip


def test_the_timeline_marks_who_was_left_out_and_why() -> None:
    chart = timeline([a_round(2, "late"), a_round(1, None)])
    heat, crosses = chart.figure.data
    assert [list(row) for row in heat.z] == [[3.5, 3.5], [3.5, None]]
    assert (heat.zmin, heat.zmax) == (0, 3.5)
    assert chart.figure.layout.xaxis.dtick == 1  # no round 1.5
    assert (list(crosses.x), list(crosses.y), list(crosses.text)) == ([2], ["b"], ["late"])
    assert chart.csv().splitlines()[-1] == "2,b,False,,late"


def test_drift_is_drawn_layer_by_site() -> None:
    layers = (
        LayerDrift(layer="features.norm0", statistics={"a": 0.5, "b": None}, gradient={"a": None, "b": None}),
    )
    drift = Drift(run="1", round=3, rounds=(3,), layers=layers, mean_statistics={}, mean_gradient={})
    chart = drift_map(drift, "statistics")
    assert [list(row) for row in chart.figure.data[0].z] == [[0.5, None]]
    assert chart.csv() == "layer,a,b\nfeatures.norm0,0.5,\n"
    assert list(chart.figure.layout.yaxis.ticktext) == ["norm 0"]


def test_a_drift_has_the_same_colour_in_every_round_and_large_maps_name_some_layers() -> None:
    def of(value: float) -> Drift:
        layers = tuple(
            LayerDrift(layer=f"layer {number}", statistics={"a": value}, gradient={"a": None})
            for number in range(100)
        )
        return Drift(run="1", round=3, rounds=(3,), layers=layers, mean_statistics={}, mean_gradient={})

    near, far = (drift_map(of(value), "statistics").figure for value in (0.1, 7.0))
    assert (near.data[0].zmin, near.data[0].zmax) == (far.data[0].zmin, far.data[0].zmax)
    assert list(near.layout.yaxis.tickvals) == [f"layer {number}" for number in range(0, 100, 3)]


def test_intervals_reach_as_far_as_their_bounds() -> None:
    run = ComparedRun(
        run="1", name="x", algorithm="fedavg", state="completed", round=2, headline=headline(0.5), p_value={},
        gap_recovered={},
    )  # fmt: skip
    without = run.model_copy(update={"headline": None})
    withheld = run.model_copy(update={"headline": Headline(accuracy=NONE, auc_ovo=NONE, auc_ovr=NONE)})
    dots = bars([run, without, withheld], "auc_ovo").figure.data[0]
    assert (list(dots.x), list(dots.error_x.arrayminus), list(dots.error_x.array)) == (
        [0.5, None],
        [0.25, 0.0],
        [0.125, 0.0],
    )
    assert dots.y[0] == "x (fedavg), run 1<br>n = 2,000"  # of two with one name, each says its id


def a_study(skews: tuple[float, ...], steps: tuple[int, ...] = (10,)) -> Study:
    """Two algorithms at each place."""
    lines = (
        StudyLine(algorithm=name, skew=skew, local_steps=each, seeds=2, headline=headline(skew / 2))
        for name in ("fedavg", "scaffold")
        for skew in skews
        for each in steps
    )
    return Study(name="s", title="S", lines=tuple(lines))


def without_value(study: Study, at: int) -> Study:
    """The study, one of whose lines has diverged."""
    gone = study.lines[at].model_copy(update={"headline": Headline(accuracy=NONE, auc_ovo=NONE, auc_ovr=NONE)})
    return study.model_copy(update={"lines": (*study.lines[:at], gone, *study.lines[at + 1 :])})


def test_a_study_is_one_line_an_algorithm() -> None:
    chart = study_chart(a_study((1.0, 0.5)), "accuracy")
    assert [trace.name for trace in chart.figure.data] == ["fedavg", "scaffold"]
    assert list(chart.figure.data[0].y) == [0.25, 0.5]
    assert "1/N: N sites alike" in chart.figure.layout.xaxis.title.text
    assert chart.csv().splitlines()[1] == "fedavg,0.5,10,2,2000,0.25,0.0,0.375"
    named = [trace.name for trace in study_chart(without_value(a_study((1.0, 0.5)), 2), "accuracy").figure.data]
    assert named == ["fedavg", "scaffold (diverged at p = 1)"]


def test_a_study_that_varies_p_and_e_has_a_line_for_each_e() -> None:
    chart = study_chart(a_study((0.0, 0.5, 1.0), (5, 10)), "accuracy")
    assert [trace.name for trace in chart.figure.data] == [
        "fedavg, E = 5", "fedavg, E = 10", "scaffold, E = 5", "scaffold, E = 10",
    ]  # fmt: skip
    assert list(chart.figure.data[0].y) == [0.0, 0.25, 0.5]


def test_a_study_at_one_place_is_a_dot_a_row() -> None:
    (dots,) = study_chart(without_value(a_study((1.0,)), 1), "accuracy").figure.data
    assert list(dots.y) == ["fedavg", "scaffold (diverged)"]
    assert list(dots.x) == [0.5, None]
    assert [varies(a_study(skews)) for skews in ((1.0,), (0.5, 1.0))] == [False, True]
    assert diverged(without_value(a_study((1.0,)), 1))


def test_numbers_in_the_confusion_matrix_are_read_on_light_and_on_dark_cells() -> None:
    classes = tuple(
        ClassResult(name=name, n=10, auc=NONE, pr_auc=NONE, sensitivity=NONE, specificity=NONE)
        for name in ("a", "b_c")
    )
    results = Results(
        run="1", round=1, which="best", headline=headline(0.5), n=20, threshold=None, classes=classes, sites={},
        confusion=((9, 1), (4, 6)), calibration_error=None, calibration=(), one_vs_rest=(), one_vs_one=(),
    )  # fmt: skip
    made = confusion(results).figure
    assert list(made.layout.xaxis.ticktext) == ["a", "b<br>c"]
    numbers = made.data[1]
    assert list(zip(numbers.y, numbers.x, numbers.text, numbers.textfont.color, strict=True)) == [
        ("a", "a", "9", "black"),
        ("a", "b c", "1", "white"),
        ("b c", "a", "4", "white"),
        ("b c", "b c", "6", "black"),
    ]


def test_withheld_counts_have_no_bar() -> None:
    site = RunSite(
        site="a", style="none", train={"mass": 12, "calcification": None}, test={}, histogram=(0.25, 0.75),
        histogram_before=None, has_gallery=False, progress=None, latest=None,
    )  # fmt: skip
    chart = class_counts([site], "train")
    assert [list(trace.y) for trace in chart.figure.data] == [[12], [None]]
    assert SAMPLE == glance.SAMPLE
    assert histogram(site).csv() == "grey level,as trained on\n0.25,0.25\n0.75,0.75\n"


def test_a_roc_curve_says_its_area_and_both_counts() -> None:
    curve = Curve(
        name="mass",
        positives=3,
        negatives=1200,
        auc=Metric(value=0.75, low=0.5, high=0.875),
        false_positive_rate=(0.0, 1.0),
        true_positive_rate=(0.0, 1.0),
    )
    chart = roc([curve, curve])
    assert [line.line.dash for line in chart.figure.data[1:]] == ["solid", "dash"]  # told apart without colour
    assert chart.figure.data[1].name == "mass: AUC 0.750 (0.500\xa0to\xa00.875), n = 3 / 1,200"
    assert chart.csv().splitlines()[2] == "mass,1.0,1.0,3,1200,0.75,0.5,0.875"
