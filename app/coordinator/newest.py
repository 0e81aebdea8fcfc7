"""Nothing → the id of the newest event, and a bell that rings when it changes."""

import asyncio
import logging

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.coordinator.db import EventRow

log = logging.getLogger(__name__)
LOOK = 0.25  # seconds between two looks for new events, while anyone listens
KEEP_ALIVE = 15.0  # seconds of silence after which a listener gets a sign of life


class Newest:
    """The id of the newest event, and a bell that rings when it changes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.id = 0
        self.bell = asyncio.Condition()
        self.listeners = 0

    async def watch(self) -> None:
        """Look for new events for as long as the service lives."""
        while True:
            await asyncio.sleep(LOOK)
            if not self.listeners:
                continue
            try:
                found = await run_in_threadpool(self.look)
            except SQLAlchemyError as error:
                log.error("events cannot be read: %s", error)
                continue
            if found != self.id:
                async with self.bell:
                    self.id = found
                    self.bell.notify_all()

    def look(self) -> int:
        """The newest id in the database."""
        with Session(self.engine) as session:
            return session.scalar(select(func.max(EventRow.id))) or 0

    async def wait_beyond(self, known: int) -> None:
        """Wait for an event newer than that, but not for ever."""
        async with self.bell:
            try:
                await asyncio.wait_for(self.bell.wait_for(lambda: self.id > known), KEEP_ALIVE)
            except TimeoutError:
                return
