"""`python -m tests.faults.coordinator --kills 100`: kill -9 of service and worker at random moments of short runs.

Every run must end with the very bytes of a run that nobody disturbed, and with an audit trail that holds. What was
survived is kept in benchmarks/results/faults-coordinator.json, one part a database.
"""

import json
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.client import Coordinator, CoordinatorLost
from app.coordinator.db import RoundRow
from app.provenance import provenance
from tests.app.coordinator.services import (
    SMALL,
    Service,
    ended,
    running_coordinator,
    running_postgresql,
    wait_until,
)

SHORT = SMALL.model_copy(update={"rounds": 12, "local_steps": 4, "resamples": 400})
BOTH = ["sqlite", "postgresql"]
LONGEST_PEACE = 4.0  # seconds from a kill to the next
SPARED = 0.8  # how often a run without a new round is let be: else a slow machine sees kills at start-up only
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "faults-coordinator.json"


def rounds_of(service: Service, run: str) -> dict[int, object]:
    """The names, which are digests, of all states of each round."""
    with service.database() as engine, Session(engine) as session:
        rows = session.execute(select(RoundRow.number, RoundRow.states).where(RoundRow.run == run))
        return {row.number: row.states for row in rows}


def victim(service: Service, luck: random.Random) -> tuple[str, psutil.Process] | None:
    """The service itself, or one of the processes that train for it."""
    assert service.process is not None
    whole = [("service", psutil.Process(service.process.pid))]
    for child in service.children():
        with suppress(psutil.Error):
            if "forkserver" in " ".join(child.cmdline()):
                inner = child.parent().pid != service.process.pid
                whole.append(("worker" if inner else "forkserver", child))
    kind = luck.choice(["service", "worker", "worker", "forkserver"])
    return next((pair for pair in whole if pair[0] == kind), None)


def disturb(service: Service, run: str, luck: random.Random, kills: int) -> Counter[str]:
    """Kill until the run has ended or the kills are used up; the service is started again each time it dies."""
    done: Counter[str] = Counter()
    struck = -1  # the round at the last kill
    while done.total() < kills:
        time.sleep(luck.uniform(0.05, LONGEST_PEACE))
        with service.client() as lead, suppress(CoordinatorLost):
            found = lead.run(run)
            if found.state != "running":
                return done
            if found.round == struck and luck.random() < SPARED:
                continue
            struck = found.round
        chosen = victim(service, luck)
        if chosen is None:
            continue
        kind, process = chosen
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
            done[kind] += 1
        if kind == "service":
            assert service.process is not None
            service.process.wait()
            service.start()
    return done


@dataclass(frozen=True)
class Survived:
    """What was done to the coordinator without a trace in its runs."""

    kills: Counter[str]  # by kind of process
    runs: int  # each ended bit-identical, with an audit trail that holds


def survive(service: Service, kills: int, seed: int = 0) -> Survived:
    """Disturbed runs, one after the other, each held against the undisturbed one."""
    luck = random.Random(seed)
    with service.client() as lead:
        calm = lead.create(SHORT)
        lead.act(calm.id, "start")
        assert ended(lead, calm.id).state == "completed"
    wanted = rounds_of(service, calm.id)
    assert len(wanted) == SHORT.rounds
    done, runs = Counter[str](), 0
    while done.total() < kills:
        run = start_another(service)
        done += disturb(service, run, luck, kills - done.total())
        check_end(service, run, wanted)
        runs += 1
        typer.echo(f"{done.total()} kills so far: {dict(done)}; all states equal, audit intact")
    return Survived(done, runs)


def start_another(service: Service) -> str:
    """A new run, started."""
    with service.client() as lead:
        run = lead.create(SHORT).id
        lead.act(run, "start")
    return run


def check_end(service: Service, run: str, wanted: dict[int, object]) -> None:
    """The run completes, its states are the undisturbed run's to the bit, and the audit trail holds."""
    with service.client() as lead:
        whole = wait_until(lambda: settled(lead, run), "the end of the run")
        assert whole == "completed", lead.run(run).reason
        assert lead.verify_audit().intact
    assert rounds_of(service, run) == wanted


def settled(lead: Coordinator, run: str) -> str | None:
    """The run's state, once it is not running."""
    state = lead.run(run).state
    return state if state != "running" else None


def keep(path: Path, database: str, found: Mapping[str, object]) -> None:
    """Put what was found on a database in place of what was found there before."""
    path.parent.mkdir(exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**kept, database: found}, indent=1, sort_keys=True) + "\n")


def strike(database: str, kills: int, seed: int) -> Survived:
    """A coordinator of its own on a database of that kind, struck so many times."""
    with tempfile.TemporaryDirectory(prefix="mammofed-faults-") as folder, ExitStack() as stack:
        environment = {}
        if database == "postgresql":
            environment["MAMMOFED_DATABASE_URL"] = stack.enter_context(running_postgresql())
        service = stack.enter_context(running_coordinator(Path(folder) / "home", **environment))
        return survive(service, kills, seed)


def main(
    kills: Annotated[int, typer.Option(help="How many processes to kill on each database.")] = 100,
    database: Annotated[list[str], typer.Option(help="sqlite or postgresql; both, if not given.")] = BOTH,
    seed: Annotated[int, typer.Option(help="Of the moments and the victims.")] = 0,
) -> None:
    """Kill service, worker and forkserver at random moments, compare what is left, and keep the result."""
    code = provenance()  # before the first result makes the checkout differ from its commit
    for name in database:
        done = strike(name, kills, seed)
        command = f"python -m tests.faults.coordinator --kills {kills} --database {name} --seed {seed}"
        found = {
            "command": command,
            **code,
            "database": name,
            "kills": dict(done.kills),
            "runs_bit_identical": done.runs,  # of as many: an assertion has ended the script otherwise
            "audit_intact": True,
        }
        keep(RESULTS, name, found)
        typer.echo(json.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
