"""A browser → the dashboard: sign-in, the pages of one's role, and a plain word when the coordinator is lost."""

import os
from collections.abc import Collection
from pathlib import Path

import streamlit as st
from streamlit import Page

from app.client import Coordinator
from app.schemas.shape import Role
from dashboard import api
from dashboard.words import ago, expiry, verbatim
from mammofed.errors import MammofedError

PAGES: tuple[tuple[str, str, str, tuple[Role, ...]], ...] = (  # file, title, icon, who sees it
    ("overview", "Overview", ":material/space_dashboard:", ("coordinator", "site", "viewer")),
    ("run", "Run", ":material/show_chart:", ("coordinator", "site", "viewer")),
    ("results", "Results", ":material/fact_check:", ("coordinator", "site", "viewer")),
    ("compare", "Compare", ":material/compare_arrows:", ("coordinator", "site", "viewer")),
    ("drift", "Drift", ":material/grid_on:", ("coordinator", "site", "viewer")),
    ("data", "Data", ":material/dataset:", ("coordinator", "site", "viewer")),
    ("new_run", "New run", ":material/add_circle:", ("coordinator",)),
    ("audit", "Audit", ":material/history:", ("coordinator",)),
)
ICON = Path(__file__).parent / "icon.svg"
STYLE = Path(__file__).parent / "style.css"
ROLES: dict[Role, str] = {"coordinator": "Coordinator", "site": "Site operator", "viewer": "Viewer"}


def sign_in_page() -> None:
    """Ask for the coordinator's address and a token."""
    _, middle, _ = st.columns([1, 2, 1])
    with middle:
        st.title("mammofed")
        st.write("Train one mammography classifier across hospitals. Images stay where they are.")
        if said := st.session_state.pop("signed_out", None):
            st.warning(said)
        with st.form("sign in"):
            url = st.text_input("Address of the coordinator", api.address(), disabled="MAMMOFED_URL" in os.environ)
            token = st.text_input(
                "Token", type="password", autocomplete="off", help="Your study's coordinator gives it to you."
            )
            if st.form_submit_button("Sign in", type="primary"):
                if why := refusal(url, token.strip()):
                    st.error(why)
                else:
                    st.rerun()
        with st.expander("I have a one-time token"):
            exchange(url)


def exchange(url: str) -> None:
    """Swap a one-time token for a lasting one, which is shown once."""
    with st.form("exchange", border=False):
        token = st.text_input("One-time token", type="password", autocomplete="off")
        if st.form_submit_button("Get my own token") and token:
            try:
                secret = Coordinator(url, token.strip(), api.TIMEOUT).exchange(token.strip())
            except MammofedError as error:
                st.error(str(error))
            else:
                st.success("Keep this token in a safe place; it is shown once. Then sign in with it above.")
                st.code(secret.secret, language=None)


def refusal(url: str, token: str) -> str | None:
    """Sign in; None, or why not."""
    if not token:
        return "A token is needed."
    try:
        api.sign_in(url, token)
    except MammofedError as error:
        return str(error)
    return None


@st.fragment(run_every=3.0)
def connection() -> None:
    """Say plainly when the coordinator is lost, and draw everything anew when it is back."""
    since = api.lost()
    with api.guarded():
        if not api.answers():
            st.error(
                f"**The coordinator does not answer** (noticed {ago(api.lost())}). What you see is the last that "
                "is known. Training at the sites may go on. This page tries again by itself, every few seconds.",
                icon=":material/cloud_off:",
            )
        elif since is not None:
            st.rerun()


def account() -> None:
    """Who is signed in, and the way out."""
    me = api.me()
    with st.sidebar:
        st.caption(f"**{verbatim(me.name)}**  \n{ROLES[me.role]}{f' of {me.site}' if me.site else ''}")
        st.caption(f"Token ends {expiry(me.expires_at)}")
        if st.button("Sign out", icon=":material/logout:"):
            api.sign_out()
            st.rerun()


def pages_of(roles: Collection[Role]) -> list[Page]:
    """The pages that any of the roles sees."""
    seen = [(name, title, icon) for name, title, icon, who in PAGES if any(role in who for role in roles)]
    return [st.Page(f"app_pages/{name}.py", title=title, icon=icon) for name, title, icon in seen]


def main() -> None:
    """Sign in, then the page that was asked for."""
    st.set_page_config("mammofed", str(ICON), layout="wide", initial_sidebar_state=220)
    st.html(STYLE)
    st.logo(str(ICON), size="large")
    if "token" in st.query_params:
        token = st.query_params.pop("token")
        if "coordinator" not in st.session_state:
            st.session_state["signed_out"] = refusal(api.address(), token)
    if "coordinator" not in st.session_state:
        st.navigation(pages_of(ROLES), position="hidden")  # a link into the dashboard outlives the sign-in
        sign_in_page()
        return
    page = st.navigation(pages_of([api.me().role]))
    account()
    connection()
    with api.guarded():
        page.run()


main()
