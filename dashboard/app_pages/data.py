"""One run → what is known of each site's data: counts by class, grey levels, a gallery; never a patient."""

import streamlit as st

from app.client import Coordinator
from app.schemas.runs import Run, RunSite
from dashboard import api
from dashboard.own_site import own_site
from dashboard.parts import NO_RUNS, choose_run, draw, table
from dashboard.result_charts import SAMPLE, class_counts, histogram
from dashboard.words import ENDED, WITHHELD, count, spaced, style_in_words, verbatim

PARTS = {"train": "Training", "test": "Test"}


def counts(sites: tuple[RunSite, ...]) -> None:
    """Patches by class and site, drawn and as a table."""
    st.subheader("Patches by class")
    part = (
        st.segmented_control(
            "Used for", list(PARTS), default="train", format_func=PARTS.__getitem__, key="part", required=True
        )
        or "train"
    )
    draw(class_counts(sites, part), "counts")
    names = list(dict.fromkeys(name for site in sites for name in getattr(site, part)))
    table(
        [
            {
                "Site": site.site,
                **{spaced(name): count(getattr(site, part).get(name)) for name in names},
            }
            for site in sites
        ]
    )
    table(
        [
            {"Site": site.site, "Style": verbatim(style_in_words(site.style)), "Vendor": vendors(site)}
            for site in sites
        ]
    )
    st.caption(
        "Style: how a scanner's grey levels become those of the picture (LUT: look-up table). "
        f"{WITHHELD}: a count that the site withholds, too small or zero; both look alike on purpose."
    )


def vendors(site: RunSite) -> str:
    """`Siemens: 120, Hologic: 80`, as far as the site tells."""
    return ", ".join(f"{verbatim(name)}: {count(number)}" for name, number in site.vendors.items()) or WITHHELD


def one_site(run: str, site: RunSite) -> None:
    """A site's grey levels and, where there are any, example patches."""
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Grey levels")
        if site.histogram is None:
            st.caption("Grey levels of patients' images stay at the site: only its operator sees them, there.")
        else:
            draw(histogram(site), "histogram")
            st.caption(
                f"Style: {verbatim(style_in_words(site.style))}. n: at most {SAMPLE} training patches, spread "
                "evenly. Sites whose curves differ much need an algorithm that can bear it."
            )
    with right:
        st.subheader("Example patches")
        if site.has_gallery:
            rows = ", ".join(spaced(name) for name in site.train)
            st.image(
                api.read(Coordinator.gallery, run, site.site),
                caption=f"Synthetic, no patient. One row a class, from the top: {rows}.",
                alt=f"Synthetic patches of {site.site} by class",
                width="stretch",
            )
        else:
            st.caption("Patches of patients never leave their hospital: only its operator sees them, there.")


def preflight() -> None:
    """Where the preflight report is, and why it is not here."""
    st.subheader("Preflight report")
    st.write(
        "The report on duplicates, wrong laterality, left-over identity and missing tags is made at the site and "
        "stays there; the site's operator sees it in the dashboard beside the site's agent. It can be made before "
        "joining too, with"
    )
    st.code("mammofed inspect FOLDER --html report.html", language="shell")


def of_run(run: Run) -> None:
    """What the run knows of its sites' data."""
    sites = api.read(Coordinator.run_sites, run.id)
    if not sites:
        ended = "This run ended before anything was known of its data."
        waits = "What is known of the data appears when the run starts."
        st.info(ended if run.state in ENDED else waits, icon=":material/hourglass_empty:")
        return
    counts(sites)
    me = api.me()
    own, seen = me.site, [site for site in sites if site.histogram or site.has_gallery]
    names = {site.site: site for site in (seen if me.role == "site" else sites)}  # the window has the rest
    if not names:
        return
    name = st.selectbox("Site", list(names), index=list(names).index(own) if own in names else 0, key="data_site")
    one_site(run.id, names[name])


st.title("Data")
chosen = choose_run()
if chosen is None:
    st.info(NO_RUNS, icon=":material/science:")
else:
    of_run(chosen)
if api.me().role == "site":
    own_site(api.me())
else:
    preflight()
