"""Settings to begin with → the fields of the form for a new run, as the person filled them in."""

from collections.abc import Sequence
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.client import Coordinator
from app.schemas.runs import RunSettings
from dashboard import api
from dashboard.words import ENGINES, METRICS, size

SOURCES = {"synthetic": "Synthetic hospitals", "mnist": "MNIST digits", "stores": "Patch stores"}


def training_fields(base: RunSettings, key: str) -> dict[str, Any]:
    """What is trained."""
    name = st.text_input("Name", base.name, max_chars=120, placeholder="as the algorithm", key=f"{key}-name")
    algorithm = choose_algorithm(base, key)
    models = {row.name: row for row in api.read(Coordinator.models)}
    model = st.selectbox("Model", list(models), index=place(list(models), base.model), key=f"{key}-model")
    st.caption(f"{models[model].explained} {models[model].parameters:,} parameters, {size(models[model].bytes)}.")
    return {"name": name, "algorithm": algorithm, "model": model}


def length_fields(base: RunSettings, key: str) -> dict[str, Any]:
    """How long, and in what steps."""
    with st.container(key="length"):
        one, two, three, four = st.columns(4)
    return {
        "rounds": one.number_input("Rounds", 1, 100_000, base.rounds, key=f"{key}-rounds"),
        "local_steps": two.number_input(
            "Local steps in a round (E)", 1, 100_000, base.local_steps, key=f"{key}-steps"
        ),
        "batch": three.number_input("Patches in a step, at each site", 2, 65_536, base.batch, key=f"{key}-batch"),
        "rate": four.number_input("Learning rate (γ)", 1e-6, 100.0, base.rate, format="%g", key=f"{key}-rate"),
    }


def choose_algorithm(base: RunSettings, key: str) -> str:
    """An algorithm, explained in two sentences."""
    rows = {row.name: row for row in api.read(Coordinator.algorithms)}
    name = st.selectbox("Algorithm", list(rows), index=place(list(rows), base.algorithm), key=f"{key}-algorithm")
    st.caption(f"{rows[name].explained}  \nBatch normalisation: {rows[name].bn_policy}.")
    return str(name)


def data_fields(base: RunSettings, key: str) -> dict[str, Any]:
    """Where the data are: synthetic, on this machine, or at enrolled sites."""
    engines = list(ENGINES)
    engine = st.radio(
        "Where it trains",
        engines,
        index=place(engines, base.engine),
        format_func=lambda name: ENGINES[name].capitalize(),
        horizontal=True,
        key=f"{key}-engine",
    )
    if engine == "nvflare":
        return {"engine": engine, "sites": enrolled_sites(key)}
    source = st.radio(
        "Data",
        list(SOURCES),
        index=place(list(SOURCES), base.data.data),
        format_func=SOURCES.__getitem__,
        horizontal=True,
        key=f"{key}-source",
    )
    own = stores(key) if source == "stores" else generated(base, key, source)
    if source == "stores" and not own["site"]:  # a run without stores would train on synthetic patches
        st.info("Name the patch store of at least one site; then the run can be created.", icon=":material/edit:")
        return {"engine": engine, "data": None}
    return {"engine": engine, "data": {**base.data.model_dump(), **own}}


def enrolled_sites(key: str) -> tuple[str, ...]:
    """The enrolled sites that take part; their data stay there."""
    names = [site.name for site in api.read(Coordinator.sites) if site.condition != "withdrawn"]
    chosen = st.multiselect(
        "Sites", names, default=names, key=f"{key}-sites", placeholder="no site is enrolled yet"
    )
    st.caption("Each site trains on the patch store that its operator has set up; its data stay there.")
    return tuple(chosen)


def generated(base: RunSettings, key: str, source: str) -> dict[str, Any]:
    """Synthetic or MNIST sites: how many, and how different."""
    left, right = st.columns(2)
    sites = left.number_input("Sites", 1, 64, base.data.sites, key=f"{key}-n-sites")
    skew = choose_skew(right, sites, base.data.skew, key)
    fields: dict[str, Any] = {"data": source, "sites": sites, "skew": skew}
    if source == "mnist":
        return {
            **fields,
            "folder": st.text_input("Folder of MNIST's IDX files", base.data.folder or "", key=f"{key}-folder")
            or None,
        }
    patches = left.number_input("Patches at each site", 20, 1_000_000, base.data.patches, key=f"{key}-patches")
    pixels = right.number_input("Pixels a side", 16, 512, base.data.image_size, key=f"{key}-pixels")
    return {**fields, "patches": patches, "image_size": pixels}


def choose_skew(column: DeltaGenerator, sites: int, usual: float, key: str) -> float:
    """p, from sites that are all alike to sites of nothing in common; one site has nobody to differ from."""
    alike = 1 / sites
    between = {step / 20 for step in range(1, 20)} | {usual}
    options = sorted({alike, 1.0, *(p for p in between if alike < p < 1)})
    return column.select_slider(
        "How different the sites are (p)",
        options,
        usual if usual in options else 1.0,
        format_func=lambda p: f"{p:.2f}",
        key=f"{key}-skew-{sites}",
        disabled=sites == 1,
        help="1 divided by the number of sites: all alike. 1: each has a style, or digits, of its own.",
    )


def stores(key: str) -> dict[str, Any]:
    """Patch stores on the coordinator's own disk, one a line."""
    lines = st.text_area(
        "Sites, one a line: NAME=PATH[,style=STYLE]",
        key=f"{key}-stores",
        placeholder="a=/data/a\nb=/data/b,style=sigmoid:0.5:0.3",
    )
    test = st.text_input("Path of the test patches that all share", key=f"{key}-test")
    return {"site": tuple(line.strip() for line in lines.splitlines() if line.strip()), "test": test or None}


def advanced_fields(base: RunSettings, key: str) -> dict[str, Any]:
    """What most people leave as it is."""
    one, two, three = st.columns(3)
    metrics = list(METRICS)
    quorum = two.number_input(
        "Quorum: sites that a round needs (0: all)",
        0,
        64,
        base.quorum or 0,
        key=f"{key}-quorum",
        help="With so many sites a round goes on without the others; with fewer the run waits.",
    )
    frozen = three.number_input(
        "T* of fixbn, iterations (0: half of all)",
        0,
        10_000_000,
        base.freeze_from or 0,
        key=f"{key}-freeze",
        help="From this step on fixbn keeps its batch-norm statistics as they are. No other algorithm uses it.",
    )
    precisions = ["fp32", "bf16", "fp16"]
    return {
        "seed": one.number_input("Seed", 0, 2**31, base.seed, key=f"{key}-seed"),
        "quorum": quorum or None,
        "freeze_from": frozen or None,
        "evaluate_every": one.number_input(
            "Evaluate every so many rounds", 1, 100_000, base.evaluate_every, key=f"{key}-every"
        ),
        "deadline": two.number_input(
            "Deadline of a round, seconds",
            0.001,
            1e7,
            base.deadline,
            format="%g",
            key=f"{key}-deadline",
            help="A site that has not answered by then is left out of the round and may come back in the next.",
        ),
        "variance_floor": three.number_input(
            "σ² floor of bn-scaffold",
            1e-9,
            1e6,
            base.variance_floor,
            format="%g",
            key=f"{key}-floor",
            help="Variances below it count as it in the correction, so that no division blows up.",
        ),
        "schedule": one.text_input(
            "Schedule of the rate",
            base.schedule,
            key=f"{key}-schedule",
            help="constant, step:EVERY:FACTOR or multi-step:AT,AT:FACTOR",
        ),
        "warmup": two.number_input(
            "Warm-up, iterations",
            0,
            10_000_000,
            base.warmup,
            key=f"{key}-warmup",
            help="Steps over which the learning rate rises from 0 to its value.",
        ),
        "momentum": three.number_input(
            "Momentum",
            0.0,
            0.999,
            base.momentum,
            format="%g",
            key=f"{key}-momentum",
            help="Share of the last step that goes into the next. 0 for algorithms that correct the gradient.",
        ),
        "selection": one.selectbox(
            "Best model is best in",
            metrics,
            index=place(metrics, base.selection),
            format_func=lambda name: METRICS[name],
            key=f"{key}-selection",
        ),
        "device": two.text_input("Device", base.device, key=f"{key}-device", help="auto, cpu, cuda, cuda:1, mps"),
        "precision": three.selectbox(
            "Precision",
            precisions,
            index=place(precisions, base.precision),
            key=f"{key}-precision",
            help="Of the numbers in training. Half precision (bf16, fp16) is faster on a GPU that has it.",
        ),
        "threads": one.number_input(
            "Threads at each site",
            1,
            256,
            base.threads,
            key=f"{key}-threads",
            help="Processor cores that training uses. With another number of them the last digits differ.",
        ),
        "resamples": two.number_input(
            "Bootstrap resamples",
            100,
            100_000,
            base.resamples,
            key=f"{key}-resamples",
            help="How often the test patches are drawn anew for an interval: more is finer and slower.",
        ),
    }


def place(options: Sequence[str], wanted: str) -> int:
    """Where an option stands; the first one, if it is not there."""
    return options.index(wanted) if wanted in options else 0
