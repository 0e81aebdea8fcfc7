"""Errors that a busy day brings: answers that say when to come back, and tell nothing that is not the caller's."""

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError, TimeoutError

from app.coordinator import problems
from app.secured import SECURITY, Secured
from tests.app.coordinator.services import answer_of


def answer_to(error: Exception) -> httpx.Response:
    """What a caller gets whose request meets this error."""
    app = FastAPI()
    problems.install(app)
    app.add_middleware(Secured)

    @app.get("/")
    def look() -> None:
        raise error

    answer = answer_of(app, "GET", "/")
    assert answer.headers["content-type"] == "application/problem+json"
    assert all(answer.headers[name] == value for name, value in SECURITY.items())
    return answer


@pytest.mark.parametrize(
    "error", [TimeoutError("no connection is free"), OperationalError("", {}, Exception("away"))]
)
def test_a_database_without_room_is_503_with_a_time_to_come_back(error: Exception) -> None:
    answer = answer_to(error)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert "nothing was changed" in answer.json()["detail"]


def test_an_error_that_nobody_thought_of_is_500_and_its_place_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = answer_to(RuntimeError("cannot read MUELLER-1957.png"))
    assert answer.status_code == 500
    assert "MUELLER" not in answer.text
    (record,) = (one for one in caplog.records if one.name == problems.__name__)
    assert record.exc_info
    assert isinstance(record.exc_info[1], RuntimeError)
