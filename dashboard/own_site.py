"""A site's window → the part of the Data page that the site's operator alone sees: patches, preflight report."""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass

import streamlit as st

from app.schemas.access import Me
from app.schemas.window import Preflight, WindowData
from dashboard.api import POLL
from dashboard.parts import draw, table
from dashboard.result_charts import SAMPLE, histogram
from dashboard.window import Window, WindowShut, window_of
from dashboard.words import clock, count, spaced, style_in_words, verbatim
from mammofed.errors import BadSetting

COMMAND = """mammofed site join KIT --data PATCHES        # prints the address and the file
python -m dashboard --url COORDINATOR --site-window ADDRESS --site-token-file FILE"""
ABREAST = 3  # small tables beside each other


@dataclass(frozen=True)
class Seen:
    """All that a window shows."""

    data: WindowData
    gallery: bytes
    preflight: Preflight | None


def look_through(window: Window) -> Seen:
    """All of it, or `WindowShut`."""
    return Seen(window.data(), window.gallery(), window.preflight())


def own_site(me: Me) -> None:
    """What the operator who is signed in may see of the own site's data, if the agent's window is known here."""
    st.header("At your site, for you alone")
    try:
        window = window_of(os.environ, st.get_option("server.address"))
    except BadSetting as error:
        st.warning(verbatim(str(error)), icon=":material/block:")
        return
    if window is None:
        how_to_get_it()
        return
    try:
        seen = look_through(window)
    except WindowShut:
        waiting(window)
        return
    if seen.data.site != me.site:
        said = f"The window at {window.url} is that of {seen.data.site}; you are the operator of {me.site}."
        st.warning(verbatim(said), icon=":material/block:")
        return
    show(seen)


def how_to_get_it() -> None:
    """One sentence, and the two commands."""
    st.write(
        "Your patches, their grey levels and the preflight report appear here when you run the dashboard on your "
        "site's own machine, beside its agent; they never pass through the coordinator."
    )
    st.code(COMMAND, language="shell", wrap_lines=True)


@st.fragment(run_every=POLL)
def waiting(window: Window) -> None:
    """Say plainly that the window is shut, and draw the page anew as soon as it is open."""
    try:
        look_through(window)
    except WindowShut as shut:
        st.warning(
            f"**Your site's window does not answer**: {verbatim(str(shut))}. This page tries again by itself.",
            icon=":material/cloud_off:",
        )
    else:
        st.rerun()


def show(seen: Seen) -> None:
    """Counts, grey levels, patches and the report, as the agent gave them."""
    st.caption(
        "From your own site's agent, by way of this machine only: the coordinator sees nothing of this part."
    )
    patches(seen.data)
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Your grey levels")
        draw(histogram(seen.data), "own-histogram")
        st.caption(f"n: at most {SAMPLE} training patches, spread evenly.")
    with right:
        st.subheader("Your patches")
        pictures(seen)
    st.subheader("Preflight report")
    if seen.preflight is None:
        st.write("Drawn data need no preflight: there is no patient and no file to check.")
    else:
        report(seen.preflight)


def patches(data: WindowData) -> None:
    """Patches by class, vendor and style."""
    st.subheader("Your patches in numbers")
    left, middle, right = st.columns(3, gap="large")
    with left:
        classes = data.train.items()
        table([{"Class": spaced(k), "Training": count(n), "Test": count(data.test.get(k, 0))} for k, n in classes])
    with middle:
        counted("Vendor", "Training", data.vendors)
        if not data.vendors:
            st.caption("These data do not say which vendor they come from.")
    with right:
        counted("Style when cut", "Training", {style_in_words(name): n for name, n in data.styles.items()})
        st.caption(
            f"Read for training in style: {verbatim(style_in_words(data.style))}. No count is withheld here."
        )


def pictures(seen: Seen) -> None:
    """The gallery, within the page itself: a file of its own could stay in a browser's cache."""
    names = ", ".join(spaced(name) for name in seen.data.train)
    st.image(
        "data:image/png;base64," + base64.b64encode(seen.gallery).decode(),
        caption=f"Training patches as trained on, one row a class, from the top: {names}.",
        alt=f"Patches of {seen.data.site} by class",
        width="stretch",
    )


def report(made: Preflight) -> None:
    """Verdict and findings in words, then the counts."""
    box = (st.success, st.warning, st.error)[made.exit_code]
    found = "".join(f"\n- {verbatim(each)}" for each in (*made.problems, *made.warnings))
    usable = f"{count(made.usable)} of {count(made.files)} {made.unit} are usable."
    box(f"**{verbatim(made.verdict)}** {usable}{found and chr(10) + found}")
    st.caption(f"Made when the site joined, {clock(made.made_at)}. {verbatim(made.notice)}")
    tables = {**made.counts, "identity": made.identity}
    filled = [(name, counts) for name, counts in tables.items() if counts]
    for at in range(0, len(filled), ABREAST):
        for column, (name, counts) in zip(st.columns(ABREAST, gap="large"), filled[at:], strict=False):
            with column:
                counted(name[:1].upper() + name[1:], made.unit.capitalize(), counts)
    details(made)


def details(made: Preflight) -> None:
    """By name, what cannot be used or looks wrong."""
    refused = (*made.unreadable, *made.refused_rows)
    same = [" = ".join(names) for names in made.duplicates]
    named = [
        *(("the same pixels", names) for names in same),
        *(("chest wall on the other side", n) for n in made.wrong_side),
    ]
    rows = [(each.name, each.reason) for each in refused] + [(name, why) for why, name in named]
    if rows:
        with st.expander(f"What was found, by name ({len(rows)})"):
            table([{"Name": verbatim(name), "Finding": verbatim(why)} for name, why in rows])


def counted(what: str, unit: str, counts: Mapping[str, int]) -> None:
    """What, how many; nothing where nothing was counted."""
    if counts:
        table([{what: verbatim(spaced(name)), unit: count(number)} for name, number in counts.items()])
