"""Events as they are written → a stream for each listener, in the server-sent form."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from app.coordinator.db import RunRow, TokenRow, now
from app.coordinator.service import Service
from app.coordinator.tokens import Principal
from app.coordinator.views import events_after
from app.schemas.runs import Event

FINISHED = ("completed", "stopped", "failed")
AT_ONCE = 200  # events that are read in one turn


@dataclass(frozen=True)
class Turn:
    """What is to be told now, and whether more may come."""

    events: tuple[Event, ...]
    last: bool


async def follow(service: Service, who: Principal, run: str, after: int) -> AsyncIterator[str]:
    """A run's events in the server-sent form, until the run has ended and all is told, or the token ends."""
    newest = service.newest
    newest.listeners += 1
    try:
        yield "retry: 2000\n\n"
        while True:
            known = newest.id
            turn = await run_in_threadpool(next_turn, service, who, run, after)
            for event in turn.events:
                after = event.id
                yield f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n"
            if turn.last:
                return
            if not turn.events:
                await newest.wait_beyond(known)
                yield ": here\n\n"
    finally:
        newest.listeners -= 1


def next_turn(service: Service, who: Principal, run: str, after: int) -> Turn:
    """The next events, the last ones where the run had ended before they were read; none for an ended token."""
    with service.reading() as session:
        token = session.get(TokenRow, who.token)
        if token is None or token.revoked_at is not None or token.expires_at <= now():
            return Turn((), last=True)
        ended = session.get_one(RunRow, run).state in FINISHED
    with service.reading() as session:
        found = events_after(session, who, run, after, AT_ONCE)
    return Turn(found, last=ended and len(found) < AT_ONCE)
