"""One run → how far the sites are apart, layer by layer and round by round, and what that means."""

import streamlit as st

from app.client import Coordinator
from app.schemas.runs import Drift
from dashboard import api
from dashboard.charts import drift_curve, drift_map
from dashboard.parts import NO_RUNS, choose_run, draw
from dashboard.words import agreement

MEANING = {
    "statistics": "Batch normalisation rescales what a layer sees by the mean and spread of the current images. "
    "Each cell says how far a site's mean and spread are from those of the whole federation, in standard "
    "deviations (lighter is further): near 0 the site's images look to this layer like everyone's; from about 1 "
    "on, the layer works on quite other numbers there. Differences in the first layers come from image style "
    "(vendor, LUT); in the last ones from other cases.",
    "gradient": "Each site pulls the model in its own direction. Each cell says how far that pull is from the "
    "common one, relative to the common one: near 0 the sites agree; above 1 a site's own pull outweighs what all "
    "have in common. SCAFFOLD and its relatives measure this to correct for it.",
}
TITLES = {"statistics": "What the layers see", "gradient": "Where the sites pull"}


def has_values(drift: Drift, kind: str) -> bool:
    """Whether the algorithm measures this kind of drift at all."""
    return any(value is not None for layer in drift.layers for value in getattr(layer, kind).values())


def shown(drift: Drift, kind: str) -> None:
    """The map, its course over rounds, and the words."""
    st.subheader(TITLES[kind])
    narrow, wide = st.columns([2, 3], gap="medium")
    with narrow:
        st.write(MEANING[kind])
        if not has_values(drift, kind):
            st.info("The algorithm of this run does not measure it.", icon=":material/info:")
            return
        draw(drift_curve(drift, kind), f"drift-mean-{kind}")
        st.caption(
            f"Mean over n = {len(drift.layers)} layers. A falling line: the sites grow together. A rising one: "
            "they drift apart."
        )
    with wide:
        draw(drift_map(drift, kind), f"drift-{kind}")


def look(run: str) -> Drift:
    """The drift of the round that is asked for, the last one by default."""
    last = api.read(Coordinator.drift, run)
    if len(last.rounds) < 2:
        return last
    wanted = st.select_slider("Round", last.rounds, last.rounds[-1], key=f"drift-round-{run}")
    return last if wanted == last.round else api.read(Coordinator.drift, run, wanted)


st.title("Drift")
chosen = choose_run()
if chosen is None:
    st.info(NO_RUNS, icon=":material/science:")
    st.stop()
drift = look(chosen.id)
if not drift.layers:
    st.info("Drift is measured with the first committed round.", icon=":material/hourglass_empty:")
    st.stop()
st.write(agreement(drift))
shown(drift, "statistics")
shown(drift, "gradient")
