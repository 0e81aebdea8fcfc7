"""A run's id → its rounds trained in a process of their own; every way to end is written down in the database."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from sqlalchemy.exc import OperationalError

from app.coordinator.db import open_database
from app.coordinator.engines.local import train_locally
from app.coordinator.ledger import Interrupted, RunLedger
from app.coordinator.logs import log_as_json
from app.schemas.runs import RunSettings
from app.schemas.shape import EngineName
from app.settings import Settings
from mammofed.errors import BadData, CannotWrite, MammofedError

log = logging.getLogger(__name__)
NICENESS = 5  # answers of the service come first


def train_here(ledger: RunLedger, asked: RunSettings, settings: Settings) -> None:
    """On this machine."""
    train_locally(ledger, asked)


def train_at_hospitals(ledger: RunLedger, asked: RunSettings, settings: Settings) -> None:
    """Over NVFlare, which is imported for it alone: it takes seconds."""
    from app.coordinator.engines.sites import train_over_sites

    train_over_sites(ledger, asked, settings)


ENGINES: dict[EngineName, Callable[[RunLedger, RunSettings, Settings], None]] = {
    "local": train_here,
    "nvflare": train_at_hospitals,
}


def work(settings: Settings, run: str, epoch: int, lifeline: Connection) -> None:
    """Train the run until it is done or interrupted; ends at once when the coordinator does."""
    threading.Thread(target=end_with, args=(lifeline,), daemon=True).start()
    os.nice(NICENESS)
    ledger = RunLedger(open_database(settings.database_url), run, epoch, settings.run_folder(run))
    log_as_json(lambda: {"run": run, "worker": epoch, "round": ledger.round + 1})  # the open one
    try:
        train(ledger, settings)
    except Interrupted as error:
        log.info("%s", error)
    except OperationalError as error:
        log.error("the database cannot be used: %s", error.orig)
        sys.exit(os.EX_TEMPFAIL)
    except Exception as error:
        log.critical("the worker ends by an error that nobody thought of", exc_info=error)
        sys.exit(1)


def train(ledger: RunLedger, settings: Settings) -> None:
    """The run's rounds by its engine; what goes wrong with them is written down."""
    try:
        asked = ledger.settings()
        ENGINES[asked.engine](ledger, asked, settings)
    except Interrupted:
        raise
    except CannotWrite as error:
        log.error("%s", error)
        ledger.hold(str(error))
    except BadData as error:
        log.error("run failed: %s; its reason, which may name a file, stands with the run", type(error).__name__)
        ledger.fail(str(error))
    except MammofedError as error:
        log.error("run failed: %s", error)
        ledger.fail(str(error))


def end_with(lifeline: Connection) -> None:
    """Wait for the coordinator's end of the line to close, then end this process: nobody watches it any more."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
