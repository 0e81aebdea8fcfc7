"""Full and read-only disks: a clear word, nothing lost, and on again with room; needs the right to mount."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psycopg
import pytest

from app.client import Coordinator, CoordinatorRefused
from tests.app.coordinator.services import (
    SMALL,
    Service,
    ended,
    running_coordinator,
    running_postgresql,
    wait_until,
)
from tests.faults.coordinator import rounds_of

LONGER = SMALL.model_copy(update={"rounds": 4})
LONGEST = SMALL.model_copy(update={"rounds": 12})


def mount(*words: str) -> None:
    if subprocess.run(["mount", *words], capture_output=True).returncode:
        if os.environ.get("CI"):
            pytest.fail("this user may not mount")
        pytest.skip("this user may not mount")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk of 24 MB, where PostgreSQL's user may look too."""
    with tempfile.TemporaryDirectory(prefix="mammofed-disk-") as name:
        place = Path(name)
        place.chmod(0o755)
        mount("-t", "tmpfs", "-o", "size=24m", "tmpfs", name)
        yield place
        subprocess.run(["umount", "-l", name], check=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, disk: Path) -> Iterator[str]:
    """The URL of a database whose tables are on the disk; SQLite's are in the home folder."""
    if request.param == "sqlite":
        yield ""
        return
    with running_postgresql() as url:
        tables = disk / "tables"
        tables.mkdir()
        if os.geteuid() == 0:
            shutil.chown(tables, "postgres")
        tell(
            url, f"CREATE TABLESPACE disk LOCATION '{tables}'", "ALTER ROLE mammofed SET default_tablespace = disk"
        )
        yield url


def tell(url: str, *statements: str) -> None:
    """Have PostgreSQL carry out each."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def fill(disk: Path, left: int) -> Path:
    """A file that leaves so many bytes of the disk."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        free = int(subprocess.check_output(["stat", "-f", "-c", "%a", str(disk)])) * 4096
        file.write(b"\0" * (free - left))
    return filler


def test_a_full_disk_holds_the_run_until_there_is_room(disk: Path, database: str) -> None:
    with running_coordinator(disk / "home", MAMMOFED_DATABASE_URL=database) as service, service.client() as lead:
        calm, run = lead.create(LONGER), lead.create(LONGER)
        lead.act(calm.id, "start")
        assert ended(lead, calm.id).state == "completed"
        lead.act(run.id, "step")
        assert ended(lead, run.id).state == "paused"
        filler = fill(disk, 600_000)
        lead.act(run.id, "resume")
        held = ended(lead, run.id)
        assert held.state == "paused"
        assert "No space left" in str(held.reason)
        filler.unlink()
        lead.act(run.id, "resume")
        assert ended(lead, run.id).state == "completed"
        assert rounds_of(service, run.id) == rounds_of(service, calm.id)


def test_a_full_disk_refuses_requests_that_write_and_answers_others(disk: Path, database: str) -> None:
    with running_coordinator(disk / "home", MAMMOFED_DATABASE_URL=database) as service, service.client() as lead:
        known = lead.create(LONGER)
        filler = fill(disk, 0)
        with pytest.raises(CoordinatorRefused, match=r"full|No space left") as refusal:
            create_many(lead)
        assert refusal.value.problem.status == 503
        assert lead.run(known.id) == known
        wait_until(lambda: not service.is_ready(), "the service to see that it cannot write")
        assert "disk" in str(httpx.get(f"{service.url}/readyz").json()["problems"])
        filler.unlink()
        lead.create(LONGER)
        wait_until(service.is_ready, "the service to be ready again")
        assert lead.verify_audit().intact


def create_many(lead: Coordinator) -> None:
    """Drafts until the database has used what room it had left."""
    for _ in range(200):
        lead.create(LONGER)


def test_a_read_only_folder_holds_the_run_with_the_reason(disk: Path, database: str) -> None:
    with (
        ExitStack() as undo,
        running_coordinator(disk / "home", MAMMOFED_DATABASE_URL=database) as service,
        service.client() as lead,
    ):
        run = lead.create(LONGER)
        lead.act(run.id, "step")
        assert ended(lead, run.id).state == "paused"
        fresh = lead.create(LONGER)
        frozen = str(service.home / "runs")
        mount("--bind", frozen, frozen)
        undo.callback(subprocess.run, ["umount", "-l", frozen])
        mount("-o", "remount,ro,bind", frozen)
        lead.act(run.id, "resume")
        lead.act(fresh.id, "start")
        for name in (run.id, fresh.id):
            held = ended(lead, name)
            assert held.state == "paused"
            assert "Read-only" in str(held.reason)
        mount("-o", "remount,rw,bind", frozen)
        for name in (run.id, fresh.id):
            lead.act(name, "resume")
            assert ended(lead, name).state == "completed"


def test_a_read_only_postgresql_refuses_writes_and_the_run_goes_on_after_it(tmp_path: Path) -> None:
    with (
        running_postgresql() as url,
        running_coordinator(tmp_path / "home", MAMMOFED_DATABASE_URL=url) as service,
        service.client() as lead,
    ):
        calm, run = lead.create(LONGEST), lead.create(LONGEST)
        lead.act(calm.id, "start")
        assert ended(lead, calm.id).state == "completed"
        lead.act(run.id, "start")
        wait_until(lambda: lead.run(run.id).round >= 1, "the first round")
        freeze(url, "on")
        wait_until(lambda: not service.is_ready(), "the service to see that it cannot write")
        with pytest.raises(CoordinatorRefused, match="read-only") as refusal:
            lead.create(LONGER)
        assert refusal.value.problem.status == 503
        before = lead.run(run.id)
        assert before.state == "running"
        freeze(url, "off")
        assert ended(lead, run.id).state == "completed"
        assert rounds_of(service, run.id) == rounds_of(service, calm.id)
        assert lead.verify_audit().intact


def freeze(url: str, state: str) -> None:
    """Let PostgreSQL take no writes, or take them again, as its other half does before and after a failover."""
    others = "FROM pg_stat_activity WHERE usename = 'mammofed' AND pid <> pg_backend_pid()"
    tell(
        url,
        "SET default_transaction_read_only = off",
        f"ALTER ROLE mammofed SET default_transaction_read_only = {state}",
        f"SELECT pg_terminate_backend(pid) {others}",
    )


def test_damaged_files_set_the_run_back_by_one_round(tmp_path: Path) -> None:
    with running_coordinator(tmp_path / "home") as service, service.client() as lead:
        calm, run = lead.create(LONGER), lead.create(LONGER)
        lead.act(calm.id, "start")
        for _ in range(3):
            lead.act(run.id, "step")
            assert ended(lead, run.id).state == "paused"
        damage(service, run.id, 3)
        lead.act(run.id, "resume")
        assert ended(lead, run.id).state == "completed"
        assert any(event.kind == "damaged" for event in lead.events(run.id).items)
        wait_until(lambda: lead.run(calm.id).state == "completed", "the undisturbed run")
        assert rounds_of(service, run.id) == rounds_of(service, calm.id)


def damage(service: Service, run: str, number: int) -> None:
    """Flip a byte of the server's state of that round."""
    states = rounds_of(service, run)[number]
    assert isinstance(states, dict)
    path = service.home / "runs" / run / "objects" / f"{states['server']}.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
