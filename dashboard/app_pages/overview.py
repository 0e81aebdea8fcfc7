"""Runs and sites → what needs attention first, how each run goes, how each site is."""

import streamlit as st

from app.client import Coordinator
from app.schemas.access import Certificate, Site
from app.schemas.runs import Run
from dashboard import api
from dashboard.parts import badge, label, table
from dashboard.site_controls import confirm_withdrawal, enrol_site, manage_site
from dashboard.words import attention, expiry, health, interval, last_seen, left, progress, several, verbatim

SHOWN = 8  # runs on the page before "all runs"


@api.live
def attention_first() -> None:
    """What a person should look at before anything else."""
    lines = attention(read_runs(), read_sites(), own_certificates())
    if not lines:
        st.success("All is well: nothing needs your attention.", icon=":material/check_circle:")
    for severity, text in lines[:5]:
        (st.error if severity == "error" else st.warning)(text, icon=":material/priority_high:")
    if len(lines) > 5:
        st.caption(f"and {len(lines) - 5} more, in the lists below")


@api.live
def runs_list() -> None:
    """Each run with its state, progress and time left."""
    runs, total = read_runs(), api.read(Coordinator.runs).total
    st.subheader(f"Runs ({total:,})")
    if not runs:
        st.info(
            "No run yet. A coordinator creates the first one on the page *New run*.", icon=":material/science:"
        )
    for run in runs[:SHOWN]:
        run_row(run)
    if len(runs) > SHOWN:
        with st.expander(several(len(runs) - SHOWN, "more run")):
            for run in runs[SHOWN:]:
                run_row(run)
            if total > len(runs):
                st.caption(
                    f"{total - len(runs):,} older runs are not listed: `mammofed run list` names them, and "
                    "`?run=ID` in the address opens one."
                )


def run_row(run: Run) -> None:
    """One run in a line."""
    with st.container(border=True, key=f"run-{run.id}"):
        name, state, bar, best = st.columns([3, 2.2, 3, 2.4], vertical_alignment="center")
        with name:
            st.page_link("app_pages/run.py", label=f"**{verbatim(label(run))}**", query_params={"run": run.id})
        with state:
            badge(run)
        bar.progress(min(1.0, run.round / run.settings.rounds), text=f"{progress(run)}, {left(run)}")
        best.caption(f"Best AUC (95 % interval)  \n**{interval(run.best.auc_ovo if run.best else None)}**")


@api.live
def sites_list() -> None:
    """Each site with its health, when it was seen, and when its certificate ends."""
    sites, me = read_sites(), api.me()
    st.subheader("Your site" if me.role == "site" else f"Sites ({len(sites)})")
    if not sites:
        st.caption(
            "No site is enrolled. Synthetic hospitals train in the coordinator itself and need no enrolment."
        )
        return
    names = {run.id: run.name for run in read_runs()}
    table([site_row(site, names) for site in sites])
    if any(site.simulated for site in sites):
        st.caption("Simulated: trains in the coordinator itself, so nobody connects and no certificate is needed.")
    ends = [f"{each.name} {expiry(each.expires)}" for each in own_certificates()]
    if ends:
        st.caption(f"The federation's own certificates end: {'; '.join(ends)}.")


def own_certificates() -> tuple[Certificate, ...]:
    """The authority's and the server's; a site's stands beside the site."""
    return tuple(each for each in api.read(Coordinator.certificates) if each.name in ("authority", "server"))


def site_row(site: Site, runs: dict[str, str]) -> dict[str, str]:
    """A site as words."""
    return {
        "Site": f"**{site.name}**",
        "Health": health(site),
        "Last seen": last_seen(site),
        "Certificate ends": expiry(site.certificate_expires),
        "Now in runs": ", ".join(verbatim(runs.get(run, run)) for run in site.runs) or "none",
    }


@api.live
def managed() -> None:
    """The controls of the sites as they stand."""
    manage_site(read_sites())


def read_runs() -> tuple[Run, ...]:
    """The newest runs, those that move first."""
    order = {"running": 0, "paused": 1, "failed": 2, "draft": 3}
    return tuple(sorted(api.read(Coordinator.runs).items, key=lambda run: order.get(run.state, 4)))


def read_sites() -> tuple[Site, ...]:
    """The sites that the person may see."""
    return api.read(Coordinator.sites)


st.title("Overview")
if leaving := api.asked_about("withdraw"):
    confirm_withdrawal(leaving)
attention_first()
role = api.me().role
above, below = st.container(), st.container()
with below if role == "site" else above:
    runs_list()
with above if role == "site" else below:  # an operator's own site comes first; drawn last, so no press is lost
    sites_list()
    if role == "coordinator":
        left_half, right_half = st.columns(2)
        with left_half:
            enrol_site()
        with right_half:
            managed()
    elif role == "site":
        managed()
