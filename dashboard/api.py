"""The signed-in coordinator → what it says: asked every two seconds at most; the last known while it is lost."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import streamlit as st

from app.client import Coordinator, CoordinatorLost, CoordinatorRefused
from app.schemas.access import Me
from app.schemas.runs import Event, Round, Run, RunMetrics
from dashboard.growth import extended
from mammofed.errors import MammofedError

P = ParamSpec("P")
Said = TypeVar("Said")
DEFAULT_URL = "http://127.0.0.1:8400"
POLL = 2.5  # seconds between two looks at a live page
FRESH = 2.0  # seconds for which an answer is not asked for again
KNOWN = 300  # answers kept for the time when the coordinator is lost
TIMEOUT = 30.0


def address() -> str:
    """Where the coordinator is, unless the person says otherwise."""
    return os.environ.get("MAMMOFED_URL", DEFAULT_URL)


def sign_in(url: str, token: str) -> None:
    """Keep a connection for this browser session, if the coordinator knows the token."""
    coordinator = Coordinator(url, token, TIMEOUT)
    st.session_state["me"] = coordinator.me()
    st.session_state["coordinator"] = coordinator
    st.session_state["key"] = hashlib.sha256(f"{url}\n{token}".encode()).hexdigest()


def sign_out(reason: str | None = None) -> None:
    """Forget the token and all that was read with it."""
    st.session_state.clear()
    if reason:
        st.session_state["signed_out"] = reason


def me() -> Me:
    """Who is signed in."""
    known: Me = st.session_state["me"]
    return known


def coordinator() -> Coordinator:
    """The connection of this browser session."""
    held: Coordinator = st.session_state["coordinator"]
    return held


@st.cache_resource(ttl=FRESH, max_entries=2000, show_spinner=False)
def asked(_call: Callable[[], Any], who: str, what: str) -> Any:
    """One answer for all browsers that hold the same token; answers are frozen, so none is copied."""
    return _call()


def read(call: Callable[Concatenate[Coordinator, P], Said], *args: P.args, **kwargs: P.kwargs) -> Said:
    """What the coordinator says to a call, or said last if it is lost."""
    what = f"{call.__name__} {args!r} {sorted(kwargs.items())!r}"
    known: dict[str, Said] = st.session_state.setdefault("known", {})
    try:
        if lost():  # `answers` asks whether it is back; nobody waits for each part of a page
            raise CoordinatorLost(f"the coordinator at {coordinator().url} does not answer")
        said: Said = asked(partial(call, coordinator(), *args, **kwargs), st.session_state["key"], what)
    except CoordinatorLost:
        st.session_state.setdefault("lost", datetime.now(UTC))
        if what in known:
            return known[what]
        raise
    known.pop(what, None)
    known[what] = said
    if len(known) > KNOWN:
        known.pop(next(iter(known)))
    return said


def lost() -> datetime | None:
    """Since when the coordinator does not answer."""
    since: datetime | None = st.session_state.get("lost")
    return since


def answers() -> bool:
    """Ask whether the coordinator is there; never from memory."""
    try:
        st.session_state["me"] = asked(coordinator().me, st.session_state["key"], "answers")
    except CoordinatorLost:
        st.session_state.setdefault("lost", datetime.now(UTC))
        return False
    st.session_state.pop("lost", None)
    return True


def change(call: Callable[Concatenate[Coordinator, P], Said], *args: P.args, **kwargs: P.kwargs) -> Said | None:
    """Change something; a refusal is kept for the page to say, and every reader sees the new state at once."""
    st.session_state.pop("refused", None)
    try:
        return call(coordinator(), *args, **kwargs)
    except MammofedError as refusal:
        st.session_state["refused"] = str(refusal)
        return None
    finally:
        asked.clear()


def ask(what: str, about: str) -> None:
    """Have the page itself ask the person: a dialog of a live part would close at its next look."""
    st.session_state[f"ask {what}"] = about
    st.rerun()


def asked_about(what: str) -> str | None:
    """What the page is to ask about, once."""
    about: str | None = st.session_state.pop(f"ask {what}", None)
    return about


def refused() -> str | None:
    """What the coordinator refused last, said once."""
    said: str | None = st.session_state.pop("refused", None)
    return said


def curves(run: Run) -> RunMetrics:
    """A run's curves; only rounds that were not read before are asked for."""
    held: dict[str, RunMetrics] = st.session_state.setdefault("curves", {})
    known = held.get(run.id)
    last = known.rounds[-1] if known and known.rounds else 0
    if known is None or last > run.round or (known.stride > 1 and last < run.round):
        held[run.id] = read(Coordinator.metrics, run.id)
    elif last < run.round:
        held[run.id] = extended(known, read(Coordinator.metrics, run.id, after=last))
    return held[run.id]


def rounds(run: Run, most: int) -> tuple[Round, ...]:
    """A run's newest rounds, the newest first; only those that were not read before are asked for."""
    held: dict[str, tuple[Round, ...]] = st.session_state.setdefault("rounds", {})
    before = held.get(run.id, ())
    last = before[0].number if before else 0
    if last > run.round:  # it was set back
        before, last = (), 0
    if last < run.round:
        wanted = min(
            most, run.round - last
        )  # up to the round that `run` knows of: it may be older than the rounds
        newest = read(Coordinator.rounds, run.id, after=run.round + 1, limit=wanted).items
        held[run.id] = (*newest, *(old for old in before if old.number < newest[-1].number))[:most]
    return held.get(run.id, ())


def happened(run: str) -> tuple[Event, ...]:
    """All that happened to a run, the oldest first; only what is new is asked for."""
    held: dict[str, tuple[Event, ...]] = st.session_state.setdefault("events", {})
    while True:
        before = held.get(run, ())
        page = read(Coordinator.events, run, after=before[-1].id if before else 0)
        held[run] = before + page.items
        if page.next is None:
            return held[run]


@contextmanager
def guarded() -> Iterator[None]:
    """Turn what the coordinator refuses, or its silence, into a plain line on the page."""
    try:
        yield
    except CoordinatorLost:
        st.info("This part appears as soon as the coordinator answers again.", icon=":material/hourglass_empty:")
    except CoordinatorRefused as refusal:
        if refusal.problem.status == 401:
            sign_out("Your token is no longer accepted: it has expired or was revoked. Ask for a new one.")
            st.rerun()
        st.warning(str(refusal), icon=":material/block:")


def live(body: Callable[P, None]) -> Callable[P, None]:
    """A part of a page that looks again by itself, without a flicker of the rest."""

    @wraps(body)
    def guarded_body(*args: P.args, **kwargs: P.kwargs) -> None:
        with guarded():
            body(*args, **kwargs)

    return st.fragment(guarded_body, run_every=POLL)
