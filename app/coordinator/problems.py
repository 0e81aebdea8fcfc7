"""Errors → RFC 9457 problem documents, the same shape for each."""

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from starlette.exceptions import HTTPException

from app.schemas.shape import Problem
from app.secured import SECURITY
from mammofed.errors import BadData, BadSetting, CannotWrite, MammofedError

log = logging.getLogger(__name__)


class Refused(MammofedError):
    """A request that is answered with a problem of that status."""

    def __init__(
        self, status: HTTPStatus, detail: str, allowed: Sequence[str] | None = None, **headers: str
    ) -> None:
        super().__init__(detail)
        self.status, self.allowed, self.headers = status, allowed, headers


def not_found(what: str) -> Refused:
    """404."""
    return Refused(HTTPStatus.NOT_FOUND, f"there is no {what}, or it is not yours to see")


def answer(
    status: HTTPStatus, detail: str, request: Request, headers: Mapping[str, str] | None = None, **more: Any
) -> JSONResponse:
    """A problem document."""
    problem = Problem(title=status.phrase, status=status.value, detail=detail, instance=request.url.path, **more)
    return JSONResponse(
        problem.model_dump(mode="json", exclude_none=True),
        status.value,
        headers=headers,
        media_type="application/problem+json",
    )


def what_is_wrong(error: Mapping[str, Any]) -> str:
    """A validation error's words; of a body that is no JSON, the parser's too."""
    return f"{error['msg']}: {error['ctx']['error']}" if error["type"] == "json_invalid" else str(error["msg"])


def install(app: FastAPI) -> None:
    """Answer every error of the service as a problem."""

    @app.exception_handler(Refused)
    def refused(request: Request, error: Refused) -> JSONResponse:
        headers = {name.replace("_", "-"): value for name, value in error.headers.items()}
        return answer(error.status, str(error), request, headers, allowed=error.allowed)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        errors = [{"where": list(e["loc"]), "what": what_is_wrong(e)} for e in error.errors()]
        said = "; ".join(f"{'.'.join(map(str, e['where']))}: {e['what']}" for e in errors[:5])
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, said, request, errors=errors)

    @app.exception_handler(HTTPException)
    def spoken(request: Request, error: HTTPException) -> JSONResponse:
        status = HTTPStatus(error.status_code)
        bare = f"{request.method} {request.url.path}: {status.phrase.lower()}"
        said = bare if error.detail == status.phrase else str(error.detail)
        return answer(status, said, request, dict(error.headers or {}))

    @app.exception_handler(CannotWrite)
    def full(request: Request, error: CannotWrite) -> JSONResponse:
        return answer(HTTPStatus.INSUFFICIENT_STORAGE, str(error), request)

    @app.exception_handler(BadSetting)
    @app.exception_handler(BadData)
    def bad(request: Request, error: MammofedError) -> JSONResponse:
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), request)

    @app.exception_handler(DataError)
    def unheld(request: Request, error: DataError) -> JSONResponse:
        said = f"a value that the database cannot hold ({error.orig})"
        return answer(HTTPStatus.UNPROCESSABLE_ENTITY, said, request)

    @app.exception_handler(OperationalError)
    def database(request: Request, error: OperationalError) -> JSONResponse:
        log.error("database: %s", error.orig)
        said = f"the database cannot be used now ({error.orig}); nothing was changed, try again"
        return answer(HTTPStatus.SERVICE_UNAVAILABLE, said, request, {"Retry-After": "5"})

    @app.exception_handler(NoConnectionFree)
    def busy(request: Request, error: NoConnectionFree) -> JSONResponse:
        log.error("database: %s", error)
        said = "too many requests wait for the database; nothing was changed, try again"
        return answer(HTTPStatus.SERVICE_UNAVAILABLE, said, request, {"Retry-After": "5"})

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("unexpected error", exc_info=error)
        said = "an unexpected error; see the log"
        return answer(HTTPStatus.INTERNAL_SERVER_ERROR, said, request, SECURITY)  # no middleware adds them here
