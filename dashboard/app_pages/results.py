"""One run → what its model is worth on the test patches, its model card and its files."""

from functools import partial

import streamlit as st

from app.client import Coordinator
from app.schemas.results import Curve, Results
from app.schemas.runs import Run
from app.schemas.shape import ModelFormat, Which
from dashboard import api
from dashboard.parts import LOST, choose_run, draw, headline, table
from dashboard.result_charts import calibration, confusion, roc
from dashboard.words import POOLING, WITHHELD, count, interval, number, patches, spaced, verbatim

FORMATS: dict[ModelFormat, tuple[str, str, str]] = {  # label, ending, what it is for
    "safetensors": ("safetensors", "safetensors", "weights for PyTorch"),
    "onnx": ("ONNX", "onnx", "runs anywhere, without PyTorch"),
    "monai-bundle": ("MONAI bundle", "zip", "for MONAI tools"),
}
KINDS = {"rest": "Each class with the rest", "pairs": "Each pair of classes"}
WHICH: dict[Which, str] = {"best": "Best model", "last": "Last model"}


def choices(pooled: bool) -> tuple[Which, float | None]:
    """Which model, and how a score becomes a decision."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        which: Which = (
            st.segmented_control(
                "Model", list(WHICH), default="best", format_func=WHICH.__getitem__, key="which", required=True
            )
            or "best"
        )
        own = pooled and st.toggle(
            "Decide by a threshold", key="by_threshold", help="Off: the class with the highest score is named."
        )
        if not own:
            return which, None
        return which, st.slider("Threshold of a class's score", 0.05, 0.95, 0.5, 0.05, key="threshold")


def classes(results: Results) -> None:
    """Each class against the rest: n, AUC, sensitivity, specificity."""
    st.subheader("Class by class")
    table(
        [
            {
                "Class": verbatim(spaced(each.name)),
                "n": count(each.n),
                "AUC": interval(each.auc),
                "PR-AUC": interval(each.pr_auc),
                "Sensitivity": interval(each.sensitivity),
                "Specificity": interval(each.specificity),
            }
            for each in results.classes
        ]
    )
    how = (
        "the class with the highest score is named"
        if results.threshold is None
        else f"a class counts as found when its score is at least {results.threshold:g}"
    )
    st.caption(
        f"Each class against all others; {how}. In brackets: 95 % interval. PR-AUC: area under the "
        "precision-recall curve."
    )


def sites(results: Results) -> None:
    """The same model at each site."""
    st.subheader("Site by site")
    if not results.sites:
        st.caption("The test patches are not divided by site.")
        return
    table(
        [
            {
                "Site": name,
                "n": count(own.n),
                "Accuracy": interval(own.accuracy),
                "AUC, one-vs-one": interval(own.auc_ovo),
                "AUC, one-vs-rest": interval(own.auc_ovr),
            }
            for name, own in results.sites.items()
        ]
    )
    st.caption(
        f"n: test patches of classes that have enough of them there. In brackets: 95 % interval. {WITHHELD}: "
        "withheld, since too few patches are behind it, or undefined."
    )


def curves(results: Results) -> None:
    """ROC curves; beside them, which class is taken for which, and calibration."""
    left, right = st.columns(2, gap="medium")
    with left:
        st.subheader("ROC curves")
        kind = st.segmented_control(
            "Compare", list(KINDS), default="rest", format_func=KINDS.__getitem__, key="roc-kind", required=True
        )
        draw(roc(pairs(results) if kind == "pairs" else results.one_vs_rest), "roc")
        st.caption(
            "The further a curve bends to the upper left, the better. n: patches of the class / of the others."
        )
    with right:
        st.subheader("Which class is taken for which")
        draw(confusion(results), "confusion")
        st.caption(
            "Each row is a true class, each column the class with the highest score. A good model has its patches "
            "on the diagonal. Colour: share of the row."
        )
        trust(results)


def pairs(results: Results) -> list[Curve]:
    """The curves of one class, each against a single other: all pairs at once cannot be told apart."""
    chosen = st.selectbox("Class", [each.name for each in results.classes], format_func=spaced, key="roc-class")
    return [curve for curve in results.one_vs_one if curve.name.startswith(f"{chosen} against ")]


def trust(results: Results) -> None:
    """Calibration."""
    st.subheader("Can its certainty be trusted?")
    draw(calibration(results), "calibration")
    st.caption(
        "On the dotted line the model is as often right as it is sure. A larger dot: more patches. "
        f"Mean distance from the line: {number(results.calibration_error)}."
    )


def own_model(run: Run, results: Results) -> str | None:
    """The site whose model is wanted, where each site has one of its own."""
    row = next(row for row in api.read(Coordinator.algorithms) if row.name == run.settings.algorithm)
    if not row.private:
        return None
    site = st.selectbox("Model of the site", list(results.sites), key=f"model-site-{run.id}")
    st.caption(f"With {row.name} each site has a model of its own; here is that of {site}.")
    return site


def files(run: Run, results: Results) -> None:
    """The model in three formats; fetched when it is asked for."""
    st.subheader("Take the model out")
    site, which = own_model(run, results), results.which
    whose = f"-{site}" if site else ""
    with st.container(horizontal=True):
        for form, (text, ending, use) in FORMATS.items():
            st.download_button(
                f"{text}: {use}",
                data=partial(api.coordinator().model, run.id, which, form, site),
                file_name=f"{run.id}-{which}{whose}.{ending}",
                disabled=api.lost() is not None,
                mime="application/octet-stream",
                icon=":material/download:",
                on_click="ignore",
                key=f"model-{form}{whose}",  # a button of another site's model goes when this one comes
            )
    if api.lost():
        st.caption(LOST)
    st.caption(
        "Each file was checked to give the trained model's scores. A research model: no result of it may guide "
        "the care of a patient."
    )


def model_card(run: Run) -> None:
    """What the model is, for whom, and how it was made."""
    words = api.read(Coordinator.model_card, run.id)
    file = f"{run.id}-model-card.md"
    st.download_button("Download", words, file, "text/markdown", on_click="ignore", icon=":material/download:")
    st.markdown(words)


st.title("Results")
chosen = choose_run(lambda run: run.best is not None)
if chosen is None:
    st.info(
        "No run has been evaluated yet. Results appear here with the first evaluated round.",
        icon=":material/science:",
    )
    st.stop()
which, threshold = choices(chosen.best is not None and chosen.best.pooled)
results = api.read(Coordinator.results, chosen.id, which, threshold)
st.caption(
    f"Model of round {results.round} of {chosen.settings.rounds}, {patches(results.headline) or 'test patches'}"
    + (", with 95 % intervals" if results.headline.pooled else "")
)
headline(results.headline)
if results.headline.pooled:
    classes(results)
    curves(results)
else:
    st.info(POOLING[0].upper() + POOLING[1:], icon=":material/lock:")
sites(results)
files(chosen, results)
card = st.expander("Model card", on_change="rerun")
if card.open:
    with card:
        model_card(chosen)
