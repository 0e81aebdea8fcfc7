"""Certificates that end: warned of in time, and told of over REST."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.coordinator import sites
from app.coordinator.db import EventRow, SiteRow, migrate, open_database
from app.coordinator.hospitals import enrol
from app.coordinator.sites import list_certificates

ENDS = {"authority": 4000, "server": 59, "hospital-1": 61, "hospital-2": 3}  # days


@pytest.fixture
def ends() -> dict[str, datetime]:
    return {name: datetime.now(UTC) + timedelta(days=days, hours=1) for name, days in ENDS.items()}


def test_a_certificate_is_warned_of_once_sixty_days_before_its_end(
    tmp_path: Path, ends: dict[str, datetime]
) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'run.db'}")
    migrate(engine)
    warned: set[str] = set()
    for _ in range(2):
        enrol(engine, ends, warned)
    with Session(engine) as session:
        told = [row.text for row in session.scalars(select(EventRow).where(EventRow.kind == "certificate"))]
        enrolled = {row.name for row in session.scalars(select(SiteRow))}
    assert told == [
        "the certificate of server ends in 59 days",
        "the certificate of hospital-2 ends in 3 days",
    ]
    assert enrolled == {"hospital-1", "hospital-2"}


@pytest.mark.parametrize(
    ("site", "seen"), [(None, tuple(ENDS)), ("hospital-1", ("authority", "server", "hospital-1"))]
)
def test_the_authoritys_and_the_servers_ends_are_told_too(
    site: str | None, seen: tuple[str, ...], ends: dict[str, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites, "expiries", lambda folder: ends)
    service = SimpleNamespace(settings=SimpleNamespace(federation=Path("federation")))
    found = list_certificates(service, SimpleNamespace(site=site))  # type: ignore[arg-type]
    assert {one.name: one.expires for one in found} == {name: ends[name] for name in seen}
    assert {one.name for one in found if one.ends_soon} == {"server", "hospital-2"} & set(seen)
