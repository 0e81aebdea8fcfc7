"""Errors that a busy day brings: answers that say when to come back, not that something is broken."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError, TimeoutError

from app.coordinator import problems


@pytest.mark.parametrize(
    "error", [TimeoutError("no connection is free"), OperationalError("", {}, Exception("away"))]
)
def test_a_database_without_room_is_503_with_a_time_to_come_back(error: Exception) -> None:
    app = FastAPI()
    problems.install(app)

    @app.get("/")
    def look() -> None:
        raise error

    async def ask() -> httpx.Response:
        way = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=way, base_url="http://here") as client:
            return await client.get("/")

    answer = asyncio.run(ask())
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    assert answer.headers["content-type"] == "application/problem+json"
    assert "nothing was changed" in answer.json()["detail"]
