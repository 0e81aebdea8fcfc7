"""docs/federation.md: two people, from nothing to a trained run, each line as it stands."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from app.coordinator.cards import MEANS
from app.processes import free_port
from app.schemas.runs import RunSite
from dashboard.window import Window
from mammo.store import open_store
from tests.app.coordinator.services import ended, running_coordinator, running_postgresql, wait_until

pytestmark = pytest.mark.xdist_group("federation")
PAGE = Path(__file__).parents[2] / "docs" / "federation.md"
ROOT = PAGE.parents[1]
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.S | re.M)
LINES: list[str] = [line for block in BLOCKS for line in block.splitlines()]
SMALL = "--model densenet-small --rounds 2 --local-steps 2 --batch 8 --resamples 100 "


def line_with(words: str) -> str:
    """The page's line that has these words."""
    [found] = [line for line in LINES if words in line]
    return found


def words_of(line: str) -> list[str]:
    """The line as a command of this tree."""
    found = shlex.split(line)
    assert found[0] == "mammofed"
    return [sys.executable, "-m", "app.cli", *found[1:]]


def run(line: str, folder: Path, **environment: str) -> str:
    """What a line prints when it is run."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(words_of(line), cwd=folder, capture_output=True, text=True, env=given, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def joining(line: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A site that takes part until the block ends."""
    with (folder / "join.log").open("wb") as log:
        given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(words_of(line), cwd=folder, stdout=log, stderr=log, env=given)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.fixture(scope="module")
def lead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lead")


def hospital(lead: Path, name: str) -> Path:
    """A hospital's folder with its kit in it."""
    folder = lead.parent / name
    folder.mkdir()
    shutil.copy(lead / "federation" / "kits" / f"{name}.zip", folder)
    return folder


def test_two_people_get_from_nothing_to_a_trained_run(lead: Path) -> None:
    init = line_with("federation init").replace("coordinator.example.org", "localhost")
    assert "hospital-2.zip" in run(f"{init} --port {free_port()}", lead)
    assert "authority" in run(line_with("federation show"), lead)
    sites = {name: hospital(lead, name) for name in ("hospital-1", "hospital-2")}
    run("mammofed synth studies --patients 6 --spacing 0.4 --out studies", sites["hospital-1"])
    run(f"{line_with('mammofed patches')} --patch 32 --per-lesion 6 --workers 1", sites["hospital-1"])
    join = line_with("site join")
    drawn = join.replace("hospital-1", "hospital-2").replace("patches", "synthetic:2/2,patches=60,size=32")
    with ExitStack() as stack:
        database = stack.enter_context(running_postgresql())
        environment = {"MAMMOFED_FEDERATION": str(lead / "federation"), "MAMMOFED_DATABASE_URL": database}
        service = stack.enter_context(running_coordinator(lead / "mammofed-home", **environment))
        stack.enter_context(joining(join, sites["hospital-1"]))
        second = stack.enter_context(joining(drawn, sites["hospital-2"]))
        client = stack.enter_context(service.client())
        wait_until(lambda: all(site.online for site in client.sites()), "both sites online", 120)
        assert {site.name for site in client.sites()} == set(sites)
        assert all(site.certificate_expires for site in client.sites())
        where = {"MAMMOFED_URL": service.url, "MAMMOFED_TOKEN": service.secret()}
        create = line_with("run create").replace("--rounds 40 ", SMALL)
        name = run(create, lead, **where).split()[0]
        done = ended(client, name)
        assert (done.state, done.round, done.reason) == ("completed", 2, None)
        rounds = client.rounds(name).items
        assert all(part.took_part for one in rounds for part in one.sites)
        assert rounds[0].pooled is False  # neither shares its scores
        worth = client.results(name)
        assert (worth.headline, worth.headline.pooled, worth.classes) == (done.best, False, ())
        assert MEANS in client.model_card(name)
        assert worth.n == sum(own.n or 0 for own in worth.sites.values()) > 0
        assert {one.name for one in client.certificates()} == {"authority", "server", *sites}
        assert {site.site: sum(filter(None, site.train.values())) > 0 for site in client.run_sites(name)} == {
            "hospital-1": True,
            "hospital-2": True,
        }
        sees_own_patches(sites["hospital-1"], next(s for s in client.run_sites(name) if s.site == "hospital-1"))
        pause_and_resume(sites["hospital-1"])
        left = run("mammofed site leave", sites["hospital-2"])
        assert "remove-site hospital-2" in left
        wait_until(lambda: second.poll() is not None, "the end of the agent", 60)
        assert not (sites["hospital-2"] / "mammofed-site" / "kit").exists()
        said = (sites["hospital-1"] / "join.log").read_text()
        assert "the coordinator will learn this of the data" in said
        assert str(sites["hospital-1"]) not in said.split("the coordinator will learn")[1].split("takes part")[0]


def sees_own_patches(folder: Path, known: RunSite) -> None:
    """By the address and the file that `site join` printed; the coordinator knows vendors above the floor only."""
    said = re.search(r"--site-window (\S+) --site-token-file (\S+)", (folder / "join.log").read_text())
    assert said is not None
    window = Window(said[1], Path(said[2]))
    rows = open_store(folder / "patches", "train").rows
    vendors = Counter(row["vendor"] for row in rows)
    assert window.data().vendors == vendors
    assert window.gallery().startswith(b"\x89PNG")
    report = window.preflight()
    assert report is not None
    assert report.usable == len(open_store(folder / "patches").rows)
    assert known.vendors == {name: number for name, number in vendors.items() if number >= 10}
    assert (known.histogram, known.histogram_before, known.has_gallery) == (None, None, False)


def pause_and_resume(folder: Path) -> None:
    """The operator's own commands."""
    assert "takes part" in run(line_with("site status"), folder)
    run(line_with("site pause"), folder)
    status = run(line_with("site status"), folder)
    assert "paused" in status
    assert "agent: at work" in status
    assert "round 2" in status
    run(line_with("site resume"), folder)
    assert "takes part" in run(line_with("site status"), folder)


@pytest.mark.parametrize("name", ["Dockerfile", "docker-compose.yml", "docker-compose.gpu.yml"])
def test_the_page_leads_to_the_containers(name: str) -> None:
    [link] = re.findall(rf"\[{re.escape(name)}\]\((.+?)\)", PAGE.read_text())
    assert (PAGE.parent / link).resolve() == ROOT / name
    assert (ROOT / name).is_file()


def test_sites_come_and_go_without_touching_the_others(lead: Path) -> None:
    key = "provisioned/trial/state/cert.json"
    before = (lead / "federation" / key).read_text()
    run(line_with("add-site"), lead)
    after = (lead / "federation" / key).read_text()
    assert before[1:-1] in after
    assert "next start" in run(line_with("remove-site"), lead)
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    again = words_of(line_with("add-site"))
    refused = subprocess.run(again, cwd=lead, capture_output=True, text=True, env=given, check=False)
    assert refused.returncode == 2
    assert "use another name" in refused.stderr
