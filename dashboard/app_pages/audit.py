"""The audit chain → who did what and when, filtered, and whether the chain holds."""

import json
from functools import partial

import streamlit as st

from app.client import Coordinator
from app.schemas.access import AuditEntry
from app.schemas.shape import Page
from dashboard import api
from dashboard.charts import csv_of
from dashboard.parts import columns, table
from dashboard.words import clock, verbatim

ROWS = 50
FILTERS = (  # field, label, example
    ("actor", "Who", "admin"),
    ("action", "Did", "run.start"),
    ("subject", "To", "hospital-1"),
)
WIDTH = 100  # characters of the detail that are shown


def verdict() -> None:
    """Whether any entry was changed or taken out."""
    check = api.read(Coordinator.verify_audit)
    if check.intact:
        st.success(
            f"The chain holds: of {check.entries:,} entries none was changed or is missing.",
            icon=":material/verified:",
        )
    else:
        st.error(f"The chain is broken at entry {check.broken_at}: {check.why}", icon=":material/gpp_bad:")


def row(entry: AuditEntry) -> dict[str, str]:
    """An entry in words."""
    return {
        "No.": str(entry.id),
        "When (UTC)": clock(entry.at).removesuffix(" UTC"),
        "Who": entry.actor,
        "Did": entry.action,
        "To": entry.subject,
        "Detail": json.dumps(entry.detail, ensure_ascii=False) if entry.detail else "",
        "Hash": entry.hash,
    }


def in_words(detail: dict[str, object]) -> str:
    """`rounds: 40, model: densenet121`; what is nested comes in its place, what is empty is left out."""
    parts = []
    for name, value in detail.items():
        if isinstance(value, dict):
            parts.append(in_words(value))
        elif value not in (None, "", []):
            plain = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            parts.append(f"{name.replace('_', ' ')}: {plain}")
    return ", ".join(filter(None, parts))


def shortened(full: dict[str, str]) -> dict[str, str]:
    """The row as it fits on the page; the file has it all."""
    detail = in_words(json.loads(full["Detail"] or "{}"))
    short = detail if len(detail) <= WIDTH else detail[: WIDTH - 1] + "…"
    words = {**full, "Detail": short, "Hash": full["Hash"][:12]}
    return {name: verbatim(text) for name, text in words.items()}


def filters() -> dict[str, str | None]:
    """Who, what and on what; empty means all."""
    return {
        name: column.text_input(text, key=f"audit-{name}", placeholder=f"all, or exactly: {example}").strip()
        or None
        for column, (name, text, example) in zip(st.columns(3), FILTERS, strict=True)
    }


def entries(
    coordinator: Coordinator, after: int | None, wanted: tuple[tuple[str, str | None], ...]
) -> Page[AuditEntry]:
    """A part of the entries that fit."""
    return coordinator.audit(after=after, limit=ROWS, **dict(wanted))


def page_of(wanted: dict[str, str | None]) -> tuple[AuditEntry, ...]:
    """One page of entries, with the ways to the newest and to older ones."""
    place = f"audit-after {wanted!r}"
    page = api.read(entries, st.session_state.get(place), tuple(wanted.items()))
    with st.container(horizontal=True, vertical_alignment="center"):
        newest, oldest = st.session_state.get(place) is None, page.next is None
        why_newest = "These are the newest." if newest else "Go back to the newest entries."
        if st.button("Newest", disabled=newest, help=why_newest, icon=":material/first_page:"):
            st.session_state[place] = None
            st.rerun()
        why_older = "There are no older ones." if oldest else "Go on to older entries."
        if st.button("Older", disabled=oldest, help=why_older, icon=":material/chevron_right:"):
            st.session_state[place] = page.next
            st.rerun()
        st.caption(f"{page.total:,} {'entry' if page.total == 1 else 'entries'}")
    return page.items


st.title("Audit")
verdict()
rows = [row(entry) for entry in page_of(filters())]
if rows:
    with st.container(key="audit"):
        table([shortened(each) for each in rows])
    st.download_button(
        "CSV",
        partial(csv_of, columns(rows)),
        "mammofed-audit.csv",
        "text/csv",
        type="tertiary",
        icon=":material/download:",
        on_click="ignore",
    )
else:
    st.caption("No entry fits.")
