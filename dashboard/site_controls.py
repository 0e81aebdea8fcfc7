"""Sites → the controls that enrol, pause, resume and withdraw them, each with the reason when it is off."""

import streamlit as st

from app.client import Coordinator
from app.schemas.access import Site
from dashboard import api
from dashboard.parts import LOST, off_in_words
from dashboard.words import clock

ACTIONS = {  # label, icon, what it does
    "pause": ("Pause site", ":material/pause:", "Runs go on without the site until it resumes."),
    "resume": ("Resume site", ":material/play_arrow:", "The site takes part again from the next round."),
    "withdraw": ("Withdraw site", ":material/logout:", "The site leaves for good and its token ends."),
}


def why_off(site: Site, action: str) -> str | None:
    """Why a site does not take an action now."""
    if api.lost():
        return "the coordinator does not answer"
    if site.condition == "withdrawn":
        return "the site has withdrawn"
    if action == "pause" and site.condition == "paused":
        return "the site is paused already"
    if action == "resume" and site.condition == "active":
        return "the site is not paused"
    return None


def manage_site(sites: tuple[Site, ...]) -> None:
    """Pause, resume or withdraw a site."""
    if not sites:
        return
    with st.container(border=True, height="stretch", key="manage-site"):
        names = {site.name: site for site in sites}
        st.markdown(f"**Take {'a site' if len(names) > 1 else sites[0].name} out, or in again**")
        site = names[st.selectbox("Site", list(names), key="managed_site")] if len(names) > 1 else sites[0]
        off = {action: why_off(site, action) for action in ACTIONS}
        with st.container(horizontal=True):
            for action, (text, icon, does) in ACTIONS.items():
                pressed = st.button(text, icon=icon, disabled=off[action] is not None, help=off[action] or does)
                if pressed and action == "withdraw":
                    api.ask("withdraw", site.name)
                elif pressed:
                    api.change(Coordinator.act_on_site, site.name, action)
                    st.rerun()
        st.caption(off_in_words({ACTIONS[action][0]: why for action, why in off.items()}))
        if refusal := api.refused():
            st.error(refusal)


@st.dialog("Withdraw the site?")
def confirm_withdrawal(name: str) -> None:
    """Ask before a site leaves for good."""
    st.write(
        f"**{name}** leaves all runs and its token ends. What it has contributed to committed rounds stays in the "
        "model. This cannot be undone: to come back, the site is enrolled anew."
    )
    with st.container(horizontal=True):
        sure = st.button("Withdraw for good", type="primary", key="withdraw_for_good")
        cancelled = st.button("Cancel", key="keep_site")
    if sure:
        api.change(Coordinator.act_on_site, name, "withdraw")
    if sure or cancelled:
        st.rerun()


def enrol_site() -> None:
    """Invite a site: a one-time token that is shown once."""
    with st.form("enrol", clear_on_submit=True, height="stretch"):
        st.markdown("**Invite a site**")
        name = st.text_input(
            "Name of the site", placeholder="hospital-5", help="Small letters, digits and hyphens."
        )
        if st.form_submit_button("Enrol", icon=":material/add:", disabled=api.lost() is not None) and name:
            st.session_state["enrolled"] = api.change(Coordinator.enrol, name.strip())
        if api.lost():
            st.caption(LOST)
        enrolled = st.session_state.pop("enrolled", None)
        if enrolled:
            st.success(f"{enrolled.site.name} is enrolled. Give its operator this one-time token, shown once:")
            st.code(enrolled.token, language=None)
            st.caption(f"It can be exchanged until {clock(enrolled.expires_at)}.")
        elif refusal := api.refused():
            st.error(refusal)
