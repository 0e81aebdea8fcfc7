"""`python -m benchmarks.faults`: one run across hospitals, struck at random → lost rounds, wrong states, times.

A coordinator with its engine's server and two site agents run as processes. Now and then one of them is killed
with -9, or stopped for longer than the round's deadline and continued; about a quarter of the strikes come before
the run has recovered from the one before. A round needs both sites, so none is skipped: every round must have the
losses and metrics of the undisturbed run, and the last one its bits.
"""

import argparse
import json
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from app.client import Coordinator
from app.coordinator.configuration import plan_of
from app.federation.provision import Federation, create
from app.processes import Child, end, free_port, start, wait_for
from app.provenance import provenance
from app.schemas.runs import RunSettings
from app.sources import DataChoice, sites_from
from fl_core.checkpoint import read_object
from fl_core.evaluate import report
from fl_core.models import build_model
from fl_core.rounds import Federation as Sites
from fl_core.rounds import run_rounds
from fl_core.wire import pack

SITES = ("hospital-1", "hospital-2")
PATCHES, SIZE = 100, 32  # ten test patches of each class at each site: fewer would be withheld
DEADLINE = 8.0  # seconds of a round
ROUNDS_A_FAULT = 5  # more than pass between two strikes
PHASE = 2.0  # seconds at most between a round's commit and the next strike
RECOVERY = 10.0  # seconds at most after a strike for one that comes before the run has recovered
OVERLAPPING = 0.25  # share of such strikes
PATIENCE = 600.0  # seconds that a recovery may take
RESULT = Path(__file__).parent / "results" / "faults.json"
JOB_AT_SITE, JOB_AT_SERVER, SERVER = "client.worker_process", "server.runner_process", "server.server_train"
KINDS = ("kill site", "kill site's job", "kill server's job", "kill server", "kill coordinator", "stop site")


@dataclass
class Stage:
    """The processes that are struck, and how they are started again."""

    folder: Path
    url: str
    children: dict[str, Child]

    def begin(self, name: str) -> None:
        """Start the coordinator or a site."""
        self.children[name] = start(name, self.words(name), self.folder / f"{name}.log", self.environment(name))

    def finish(self, name: str) -> None:
        """End it."""
        end(self.children[name], 10.0)

    def words(self, name: str) -> list[str]:
        """Its command."""
        mammofed = [sys.executable, "-m", "app.cli"]
        if name == "coordinator":
            where = ["--home", str(self.folder / "home"), "--port", self.url.rpartition(":")[2]]
            return [*mammofed, "coordinator", *where]
        kit = str(self.folder / "federation" / "kits" / f"{name}.zip")
        data = f"synthetic:{SITES.index(name) + 1}/{len(SITES)},patches={PATCHES},size={SIZE}"
        home = str(self.folder / name)
        return [*mammofed, "site", "join", kit, "--data", data, "--home", home, "--share-scores"]

    def environment(self, name: str) -> dict[str, str]:
        """Its environment."""
        quick = {"MAMMOFED_SILENCE": "5", "OMP_NUM_THREADS": "1"}
        federation = {"MAMMOFED_FEDERATION": str(self.folder / "federation")}
        return {**quick, **federation} if name == "coordinator" else quick

    def family(self, name: str, words: str = "") -> list[psutil.Process]:
        """A process and those below it, whose command has these words."""
        first = psutil.Process(self.children[name].process.pid)
        found = []
        for one in (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                if words in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def strike(self, kind: str, site: str) -> bool:
        """One fault; what nobody else starts again is started again. Whether there was anything to strike."""
        if kind == "kill site":
            return self.replace(site, self.family(site))
        if kind == "kill coordinator":
            return self.replace("coordinator", self.family("coordinator")[:1])  # the others leave with it
        if kind == "stop site":
            return stand_still(self.family(site))
        name, words = {
            "kill site's job": (site, JOB_AT_SITE),
            "kill server's job": ("coordinator", JOB_AT_SERVER),
            "kill server": ("coordinator", SERVER),
        }[kind]
        return kill(self.family(name, words))

    def replace(self, name: str, victims: Sequence[psutil.Process]) -> bool:
        """Kill, and start again."""
        hit = kill(victims)
        end(self.children[name], 5.0)
        self.begin(name)
        return hit


def kill(victims: Sequence[psutil.Process]) -> bool:
    """-9 to each; whether one was alive."""
    hit = False
    for one in victims:
        with suppress(psutil.NoSuchProcess):
            one.kill()
            hit = True
    return hit


def stand_still(victims: Sequence[psutil.Process]) -> bool:
    """Stop processes for longer than the deadline, and continue them; whether one was alive."""
    stopped = []
    for one in victims:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGSTOP)
            stopped.append(one)
    if stopped:
        time.sleep(DEADLINE + 5)
    for one in stopped:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGCONT)
    return bool(stopped)


@contextmanager
def stage() -> Iterator[Stage]:
    """A federation that runs."""
    folder = Path(tempfile.mkdtemp(prefix="mammofed-faults-"))
    create(folder / "federation", Federation("faults", "localhost", free_port(), SITES))
    found = Stage(folder, f"http://127.0.0.1:{free_port()}", {})
    with ExitStack() as last:
        last.callback(shutil.rmtree, folder, ignore_errors=True)
        for name in ("coordinator", *SITES):
            found.begin(name)
            last.callback(found.finish, name)
        wait_for(f"{found.url}/readyz", found.children["coordinator"], 120.0)
        yield found


@dataclass
class Watch:
    """The run as the database has it, whether or not anybody serves it."""

    database: Path
    run: str
    highest: int = 0  # round seen
    lost: int = 0  # rounds that were seen, and then were not there

    def asked(self, question: str) -> list[tuple[Any, ...]]:
        """Of the database, by the run's name."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=30.0)) as database:
            return database.execute(question, (self.run,)).fetchall()

    def now(self) -> tuple[str, int]:
        """The run's state and its last committed round."""
        [(state, number)] = self.asked("select state, round from runs where id = ?")
        self.lost += max(0, self.highest - number)
        self.highest = number
        return state, number

    def until(self, wanted: Callable[[str, int], bool], seconds: float) -> tuple[str, int]:
        """State and round, as soon as they are as wanted or the run runs no more."""
        last = time.monotonic() + seconds
        while time.monotonic() < last:
            state, number = self.now()
            if wanted(state, number) or state != "running":
                return state, number
            time.sleep(0.1)
        raise TimeoutError(f"run {self.run} stays at round {self.highest}")

    def records(self) -> list[dict[str, Any]]:
        """All rounds, in order."""
        found = self.asked("select record from rounds where run = ? order by number")
        return [json.loads(record) for (record,) in found]

    def server(self) -> str:
        """The name of the last server state."""
        [(states,)] = self.asked("select states from rounds where run = ? order by number desc limit 1")
        name: str = json.loads(states)["server"]
        return name


@dataclass
class Tally:
    """The strikes so far, written down after each: a run that is cut keeps what it has."""

    about: dict[str, Any]
    strikes: list[dict[str, Any]] = field(default_factory=list)

    def keep(self, **result: Any) -> dict[str, Any]:
        """Write all that is known."""
        waits = sorted(s["seconds"] for s in self.strikes if s["seconds"] is not None)
        longest = {"median": waits[len(waits) // 2], "longest": waits[-1]} if waits else None
        found = {
            "faults": len(self.strikes),
            "of_kind": dict(Counter(s["kind"] for s in self.strikes)),
            "during_a_recovery": sum(s["during_a_recovery"] for s in self.strikes),
            "seconds_to_next_round": longest,
            **result,
            "strikes": self.strikes,
            **self.about,
        }
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
        return found


def strike_on(place: Stage, watch: Watch, chance: random.Random, tally: Tally, faults: int) -> None:
    """Strike so many times, each time after a round's commit or before the run has recovered."""
    overlapping = False
    while len(tally.strikes) < faults:
        time.sleep(chance.uniform(0.0, RECOVERY if overlapping else PHASE))
        if watch.now()[0] != "running":
            return
        kind, site = chance.choice(KINDS), chance.choice(SITES)
        if not place.strike(kind, site):
            continue  # what was to be struck is not there, as in a recovery: another is chosen
        struck, began = watch.now()[1], time.monotonic()
        tally.strikes.append({"kind": kind, "round": struck, "during_a_recovery": overlapping, "seconds": None})
        overlapping = chance.random() < OVERLAPPING and len(tally.strikes) < faults
        tally.keep()
        print(f"{len(tally.strikes)} of {faults}: {kind} in round {struck + 1}", flush=True)
        if not overlapping:
            watch.until(lambda _, number, struck=struck: number > struck, PATIENCE)  # type: ignore[misc]
            tally.strikes[-1]["seconds"] = time.monotonic() - began
            tally.keep()


def suffer(faults: int, tally: Tally) -> dict[str, Any]:
    """One struck run, held against the undisturbed one."""
    chance = random.Random(tally.about["seed"])
    settings = RunSettings(
        engine="nvflare", sites=SITES, model="densenet-small", rounds=ROUNDS_A_FAULT * faults + 4, local_steps=2,
        batch=8, resamples=100, deadline=DEADLINE,
    )  # fmt: skip
    with stage() as place:
        token = (place.folder / "home" / "admin.token").read_text().strip()
        with Coordinator(place.url, token) as client:
            run = client.create(settings).id
            client.act(run, "start")
        watch = Watch(place.folder / "home" / "mammofed.db", run)
        watch.until(lambda _, number: number >= 1, PATIENCE)
        strike_on(place, watch, chance, tally, faults)
        state, number = watch.until(lambda *_: False, PATIENCE + 10.0 * settings.rounds)
        records, last = watch.records(), read_object(place.folder / "home" / "runs" / run, watch.server())
    wanted, undisturbed_last = undisturbed(settings)
    return {
        "state": state,
        "rounds": number,
        "lost_rounds": settings.rounds - number + watch.lost,
        "left_out": sum(len(record["left_out"]) for record in records),
        "rounds_unlike_undisturbed": sum(outcome(a) != b for a, b in zip(records, wanted, strict=False)),
        "same_final_metrics": bool(records) and outcome(records[-1]) == wanted[-1],
        "same_bits_as_undisturbed": last == undisturbed_last,
    }


def undisturbed(settings: RunSettings) -> tuple[list[dict[str, Any]], bytes]:
    """What came of each round of the same run on one machine, and its last server state."""
    plan = plan_of(settings)
    sites = sites_from(DataChoice(sites=len(SITES), patches=PATCHES, image_size=SIZE))
    federation = Sites(plan, partial(build_model, plan.model, 1, 5, plan.seed), sites)
    measured = partial(report, resamples=settings.resamples, seed=plan.seed)
    outcomes = []
    for moment in run_rounds(federation, measured):
        outcomes.append(outcome(json.loads(json.dumps(moment.record))))
    return outcomes, pack(moment.server)


def outcome(record: dict[str, Any]) -> dict[str, Any]:
    """Losses and metrics of a round, without what depends on the clock."""
    losses = {site: part.get("loss") for site, part in record["sites"].items()}
    test = {name: value for name, value in (record["test"] or {}).items() if name != "pooled"}
    return {"round": record["round"], "loss": record["loss"], "sites": losses, "test": test}


def main() -> None:
    """Strike, show and keep; exit 1 where a round was lost or differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    command = f"python -m benchmarks.faults --faults {given.faults} --seed {given.seed}"
    tally = Tally({"command": command, "seed": given.seed, "deadline": DEADLINE, **provenance()})
    found = tally.keep(**suffer(given.faults, tally))
    print(json.dumps({name: value for name, value in found.items() if name != "strikes"}, indent=1))
    whole = found["state"] == "completed" and found["faults"] == given.faults and not found["lost_rounds"]
    same = found["same_bits_as_undisturbed"] and found["same_final_metrics"]
    sys.exit(0 if whole and same and not found["rounds_unlike_undisturbed"] else 1)


if __name__ == "__main__":
    main()
