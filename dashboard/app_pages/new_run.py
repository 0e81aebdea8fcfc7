"""A form with sane defaults → what a run would cost, and the run itself."""

from typing import Any
from uuid import uuid4

import streamlit as st
from pydantic import ValidationError

from app.client import Coordinator
from app.schemas.runs import DataSettings, RunSettings
from app.schemas.tables import Estimate, Preset
from dashboard import api
from dashboard.parts import LOST
from dashboard.run_form import advanced_fields, data_fields, length_fields, training_fields
from dashboard.words import duration, size


def start_from() -> Preset:
    """The preset whose settings the form begins with."""
    presets = {preset.name: preset for preset in api.read(Coordinator.presets)}
    name = st.segmented_control(
        "Start from", list(presets), default=next(iter(presets)), key="preset", required=True
    )
    preset = presets[name or next(iter(presets))]
    st.caption(preset.explained)
    return preset


def filled_in(preset: Preset) -> dict[str, Any]:
    """What the person wants, field by field."""
    base = preset.settings
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Model and algorithm")
        fields = training_fields(base, preset.name)
    with right:
        st.subheader("Data and sites")
        fields |= data_fields(base, preset.name)
    st.subheader("Training")
    fields |= length_fields(base, preset.name)
    with st.expander("More settings"):
        fields |= advanced_fields(base, preset.name)
    return {**base.model_dump(), **fields}


def checked(fields: dict[str, Any]) -> RunSettings | None:
    """The settings, or what is wrong with them; None also while the form waits for its data."""
    if fields["data"] is None:
        return None
    try:
        return RunSettings(**{**fields, "data": DataSettings(**fields["data"])})
    except ValidationError as wrong:
        for error in wrong.errors():
            st.error(f"{'.'.join(map(str, error['loc']))}: {error['msg']} (given: {error['input']})")
        return None


def cost(settings: RunSettings) -> None:
    """Time and traffic, before anything starts."""
    estimate = api.read(Coordinator.estimate, settings)
    time, traffic, parameters = st.columns(3)
    known = estimate.seconds is not None
    time.metric(
        "Time",
        duration(estimate.seconds),
        None if known else "no comparable run yet",
        delta_color="off",
        delta_arrow="off",
        border=True,
    )
    traffic.metric(
        "Traffic",
        size(estimate.traffic_bytes) if estimate.traffic_bytes is not None else "none",
        traffic_a_round(estimate, settings.rounds),
        delta_color="off",
        delta_arrow="off",
        border=True,
        help="All sites, both ways. A site sends in a round "
        f"{estimate.traffic}: |W| bytes of weights, |S| of batch-norm statistics.",
    )
    parameters.metric(
        "Parameters", f"{estimate.parameters:,}", settings.model, delta_color="off", delta_arrow="off", border=True
    )


def traffic_a_round(estimate: Estimate, rounds: int) -> str:
    """What a single round costs of the whole traffic."""
    return (
        "the data are pooled"
        if estimate.traffic_bytes is None
        else f"{size(estimate.traffic_bytes / rounds)} a round"
    )


def create(settings: RunSettings, start: bool) -> None:
    """Make the run, begin it if asked to, and go to its page."""
    key = st.session_state.setdefault("new_run_key", uuid4().hex)
    run = api.change(Coordinator.create, settings, key=key)
    if run is None:
        st.error(api.refused() or "The coordinator refused.")
        return
    del st.session_state["new_run_key"]
    if start:
        api.change(Coordinator.act, run.id, "start")
    st.session_state["run"] = run.id
    st.switch_page("app_pages/run.py", query_params={"run": run.id})


st.title("New run")
settings = checked(filled_in(start_from()))
if settings is not None:
    st.subheader("What it will cost")
    cost(settings)
    off = api.lost() is not None
    with st.container(horizontal=True):
        now = st.button("Create and start", type="primary", icon=":material/play_arrow:", disabled=off)
        later = st.button("Create as a draft", icon=":material/edit_note:", disabled=off)
    if off:
        st.caption(LOST)
    if now or later:
        create(settings, start=now)
