"""Log records → one JSON object a line on stderr, with the ids of run and worker; patient data never get here."""

import json
import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any


class JsonLines(logging.Formatter):
    """A record as one line; `extra={"fields": {...}}` adds to it."""

    def __init__(self, always: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__()
        self.always = always

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, place, words, and the fields."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self.always(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1]:
            line |= {"error": record.exc_info[1].__class__.__name__, "trace": frames_of(record.exc_info[1])}
        return json.dumps(line)


def frames_of(error: BaseException) -> str:
    """Where an error came from, without its words: those may name a file after a patient."""
    return "".join(traceback.format_tb(error.__traceback__))


def log_as_json(always: Callable[[], Mapping[str, Any]]) -> None:
    """Send the project's log, and warnings, to stderr as JSON lines; what `always` gives is in each of them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(always))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for noisy in ("httpx", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
