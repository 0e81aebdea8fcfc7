"""Coordinator and three sites in network namespaces: a link is cut, one is bad, the server's host goes down."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from app.coordinator.engines.nvflare import Admin
from app.federation.conduct import Conductor
from app.federation.processes import client_command, server_command, start, stop
from app.federation.provision import Federation as Provisioned
from app.federation.provision import create, read_federation
from app.federation.terms import Terms
from app.processes import free_port
from app.site.data import SiteSettings, write_settings
from app.site.home import HOME
from app.site.kit import unpack_kit
from fl_core.checkpoint import Checkpoint, read_manifest
from fl_core.data import SiteData
from tests.federation.hospitals import Hospitals, TestLedger, finish, small_plan, until
from tests.federation.neighbours import SITES, on_one_machine, same

pytestmark = [
    pytest.mark.xdist_group("federation"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # NVFlare leaves sockets open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
MARK = f"mf{os.getpid() % 10000}"
BRIDGE = f"{MARK}br"
NET = "10.77.113"
DELAY, LOSS = 0.02, 0.01  # seconds each way, and the share of frames, on the bad cable


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def can_use_namespaces() -> bool:
    if os.geteuid() or shutil.which("ip") is None or not Path("/dev/net/tun").exists():
        return False
    tried = subprocess.run(["ip", "netns", "add", f"{MARK}try"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", f"{MARK}try"], capture_output=True, check=False)
    return tried.returncode == 0


class Hosts(Hospitals):
    """Server and sites as hosts of their own on one switch; this process is the coordinator's admin."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sites = folder, SITES
        self.names = ("server", *SITES)
        create(folder / "federation", Provisioned("networks", f"{NET}.1", free_port(), SITES))
        for number, site in enumerate(SITES, 1):
            unpack_kit(folder / "federation" / "kits" / f"{site}.zip", folder / site)
            write_settings(folder / site, SiteSettings(site, f"synthetic:{number}/3,patches=30,size=32"))
        self.admin = Admin(folder / "federation")
        self.processes = {}
        self.cable: subprocess.Popen[bytes] | None = None
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("addr", "add", f"{NET}.254/24", "dev", BRIDGE)
        ip("link", "set", BRIDGE, "up")
        for number, name in enumerate(self.names, 1):
            self.plug_in(name, number)

    def plug_in(self, name: str, number: int) -> None:
        """A namespace with one cable to the switch."""
        space, inside = self.space(name), f"{MARK}i{number}"
        ip("netns", "add", space)
        ip("link", "add", self.port(name), "type", "veth", "peer", "name", inside)
        ip("link", "set", inside, "netns", space)
        ip("link", "set", self.port(name), "master", BRIDGE, "up")
        ip("-n", space, "addr", "add", f"{NET}.{number}/24", "dev", inside)
        ip("-n", space, "link", "set", inside, "up")
        ip("-n", space, "link", "set", "lo", "up")

    def space(self, name: str) -> str:
        return f"{MARK}{self.names.index(name)}"

    def port(self, name: str) -> str:
        return f"{MARK}p{self.names.index(name)}"

    def cut(self, name: str) -> None:
        ip("link", "set", self.port(name), "down")

    def mend(self, name: str) -> None:
        ip("link", "set", self.port(name), "up")

    def shut_all_ports_but(self, port: int, name: str) -> None:
        """A firewall that lets a site reach the server's one port alone."""
        ports = f"{port + 1}-65534"
        ip("-n", self.space(name), "rule", "add", "to", f"{NET}.1", "ipproto", "tcp", "dport", ports, "prohibit")

    def ports_reached_by(self, name: str) -> set[str]:
        """The server's ports to which a site has connections."""
        words = ["ip", "netns", "exec", self.space(name), "ss", "-Htn", "state", "established", "dst", f"{NET}.1"]
        lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
        return {line.split()[3].rpartition(":")[2] for line in lines}

    def make_bad(self, name: str) -> None:
        """Put a cable that delays and loses frames between a host and the switch."""
        ends, beyond = (f"{MARK}a", f"{MARK}b"), f"{MARK}br2"
        words = [sys.executable, "-m", "tests.federation.cable", *ends, str(DELAY), str(LOSS)]
        self.cable = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.cable.stdout is not None
        assert self.cable.stdout.readline() == b"ready\n"
        ip("link", "add", beyond, "type", "bridge")
        for device, bridge in zip((*ends, self.port(name)), (BRIDGE, beyond, beyond), strict=True):
            ip("link", "set", device, "master", bridge, "up")
        ip("link", "set", beyond, "up")

    def unplug_bad(self) -> dict[str, int]:
        """Take the cable out; how many frames it carried and lost."""
        assert self.cable is not None
        told, _ = self.cable.communicate(timeout=10)
        self.cable = None
        ip("link", "del", f"{MARK}br2")
        return dict(json.loads(told))

    def start(self, name: str) -> None:
        if name == "server":
            command, environment = server_command(self.folder / "federation" / "server"), {}
        else:
            command = client_command(self.folder / name / "kit", name)
            environment = {HOME: str(self.folder / name)}
        inside = ["ip", "netns", "exec", self.space(name), *command]
        self.processes[name] = start(inside, self.folder / f"{name}.log", {"OMP_NUM_THREADS": "1", **environment})

    def kill(self, name: str) -> None:
        stop(self.processes[name], patience=0.1)

    def take_down(self) -> None:
        """End the processes, and take the network away."""
        self.stop_all()
        if self.cable is not None:
            self.unplug_bad()
        for name in self.names:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", self.space(name))
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", BRIDGE)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if not can_use_namespaces():
        pytest.skip("network namespaces need root, and a bad cable /dev/net/tun")
    found = Hosts(tmp_path)
    try:
        found.start_all()
        until(lambda: found.connected() == set(SITES), 120, "all sites")
        yield found
    finally:
        found.take_down()


@dataclass(frozen=True)
class Strikes(TestLedger):
    """Strikes the network, each time as soon as a round of the sites that are waited for is committed."""

    plan: list[tuple[frozenset[str], Callable[[], None]]] = field(default_factory=list)
    # of each strike: after which round, from when to when
    at: list[tuple[int, float, float]] = field(default_factory=list)

    def commit(self, checkpoint: Checkpoint, moment: object) -> None:
        """Keep the round; then strike, as the next one begins."""
        super().commit(checkpoint, moment)
        number = checkpoint.server.round
        if self.plan and self.plan[0][0] == frozenset(checkpoint.record["sites"]):
            began = time.monotonic()
            self.plan.pop(0)[1]()
            self.at.append((number, began, time.monotonic()))


def test_a_run_completes_over_bad_networks(hosts: Hosts, data: tuple[SiteData, ...], tmp_path: Path) -> None:
    everyone = frozenset(SITES)
    hosts.make_bad(SITES[1])

    def mend() -> None:
        hosts.mend(SITES[2])
        until(lambda: hosts.connected() == everyone, 120, "the site whose link was cut")

    def restart_server() -> None:
        hosts.kill("server")
        hosts.cut("server")
        until(lambda: not hosts.connected(), 60, "the loss of the server")
        hosts.mend("server")
        hosts.start("server")

    plan = small_plan("bn-scaffold-std", rounds=12)
    terms = Terms("networks", plan, SITES, quorum=2, deadline=60.0, silence=5.0, resamples=100)
    ledger = Strikes(tmp_path / "ledger")
    ledger.plan.append((everyone, partial(hosts.cut, SITES[2])))
    ledger.plan.append((everyone - {SITES[2]}, mend))
    ledger.plan.append((everyone, restart_server))
    conductor = Conductor(terms, ledger, hosts.engine("networks", tmp_path / "work"), tmp_path / "work")
    began = time.monotonic()
    finish(conductor, 600)
    took = time.monotonic() - began
    assert not ledger.plan  # all was struck
    records = [
        read_manifest(ledger.folder / "rounds" / f"{n:06d}.json")["record"] for n in range(1, plan.rounds + 1)
    ]
    here = iter([frozenset(record["sites"]) for record in records])
    last = ledger.latest()
    assert last is not None
    assert last.server.round == plan.rounds
    assert same(ledger, on_one_machine(plan, data, lambda: next(here)))
    bad = hosts.unplug_bad()
    assert bad["lost"] > 0
    (first, _, cut), (_, without, back), (all_in, again, restarted) = ledger.at
    print(
        f"{plan.rounds} rounds in {took:.0f} s; at one site {bad['lost']} of {sum(bad.values())} frames lost, the "
        f"others {DELAY:g} s late; link of another cut after round {first}, a round without it "
        f"{without - cut:.0f} s later; all again in round {all_in}, {again - back:.0f} s after it was back; "
        f"server restarted, {plan.rounds - all_in} rounds more in {began + took - restarted:.0f} s"
    )


def test_a_run_completes_where_only_the_servers_own_port_is_open(
    hosts: Hosts, data: tuple[SiteData, ...], tmp_path: Path
) -> None:
    own = read_federation(hosts.folder / "federation").port
    for site in SITES[1:]:
        hosts.shut_all_ports_but(own, site)
    reached: dict[str, set[str]] = {}
    plan = small_plan("bn-scaffold-std", rounds=2)
    terms = Terms("shut", plan, SITES, quorum=3, deadline=60.0, silence=10.0, resamples=100)
    ledger = Strikes(tmp_path / "ledger")
    ledger.plan.append(
        (frozenset(SITES), lambda: reached.update({site: hosts.ports_reached_by(site) for site in SITES}))
    )
    finish(Conductor(terms, ledger, hosts.engine("shut", tmp_path / "work"), tmp_path / "work"), 200)
    assert reached[SITES[1]] == reached[SITES[2]] == {str(own)}
    assert reached[SITES[0]] > {str(own)}  # the short way, where it is open
    last = ledger.latest()
    assert last is not None
    assert same(ledger, on_one_machine(plan, data))
