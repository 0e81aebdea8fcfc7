"""`mammofed run|token|audit` against a real coordinator: what they do, print and exit with."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from app.cli import app
from app.client import CoordinatorLost
from app.commands.run import usual
from app.schemas.runs import RunSettings
from mammofed.errors import BadSetting, MammofedError
from tests.app.coordinator.services import Service, ended, running_coordinator

pytestmark = pytest.mark.xdist_group("commands")
TINY = """
model = "densenet-small"
rounds = 3
local_steps = 1
batch = 4
resamples = 100
[data]
image_size = 32
patches = 40
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_coordinator(tmp_path_factory.mktemp("commands") / "home") as running:
        yield running


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def environment(service: Service) -> dict[str, str]:
    return {"MAMMOFED_URL": service.url, "MAMMOFED_TOKEN_FILE": str(service.home / "admin.token")}


def mammofed(service: Service, *words: object, **more: str) -> Any:
    """A command that ends well or with exit code 1."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={**environment(service), **more})
    if isinstance(done.exception, MammofedError):
        raise done.exception
    assert done.exit_code in (0, 1), done.output or done.exception
    return done


def created(service: Service, *words: object) -> str:
    return str(mammofed(service, "run", "create", *words).stdout).strip()


def test_a_run_is_created_stepped_watched_and_shown(service: Service, tiny: Path) -> None:
    run = created(service, "--from", tiny, "--name", "first", "--rounds", 2)
    assert "draft" in mammofed(service, "run", "show", run).stdout
    assert "running, pausing" in mammofed(service, "run", "step", run).stdout
    with service.client() as lead:
        assert ended(lead, run).round == 1
    assert "running" in mammofed(service, "run", "resume", run).stdout
    watched = mammofed(service, "run", "watch", run)
    assert watched.exit_code == 0
    assert "round 2 of 2 committed" in watched.stdout
    assert "completed" in watched.stdout
    shown = mammofed(service, "run", "show", run).stdout
    assert "one-vs-one AUC, latest" in shown
    assert "densenet-small" in shown
    listed = mammofed(service, "run", "list").stdout
    assert run in listed
    assert "2/2" in listed


def test_a_run_at_hospitals_claims_no_data_of_the_coordinators(service: Service, tiny: Path) -> None:
    with service.client() as lead:
        lead.enrol("hospital-1")
    here, there = created(service, "--from", tiny), created(service, "--engine", "nvflare", "--site", "hospital-1")
    assert "synthetic" in mammofed(service, "run", "show", here).stdout
    shown = mammofed(service, "run", "show", there).stdout
    assert "hospital-1" in shown
    assert "data." not in shown
    assert "synthetic" not in shown


def test_watching_a_stopped_run_exits_with_1(service: Service, tiny: Path) -> None:
    run = created(service, "--from", tiny, "--start")
    mammofed(service, "run", "stop", run)
    assert mammofed(service, "run", "watch", run).exit_code == 1


def test_flags_come_before_the_file(service: Service, tiny: Path, tmp_path: Path) -> None:
    run = created(service, "--from", tiny, "--algorithm", "fedavg", "--patches", 60, "--quorum", 1)
    with service.client() as lead:
        settings = lead.run(run).settings
    assert (settings.algorithm, settings.data.patches, settings.data.image_size, settings.quorum) == (
        "fedavg",
        60,
        32,
        1,
    )
    same = tmp_path / "same.json"
    same.write_text(settings.model_dump_json())
    with service.client() as lead:
        assert lead.run(created(service, "--from", same)).settings == settings


@pytest.mark.parametrize(
    ("text", "said"), [("rounds = 'many'", "rounds"), ("round = 3", "round"), ("rounds =", "not well-formed")]
)
def test_a_wrong_file_is_named_before_anything_is_created(
    service: Service, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with service.client() as lead:
        before = lead.runs().total
        with pytest.raises(BadSetting, match=said):
            mammofed(service, "run", "create", "--from", path)
        assert lead.runs().total == before


def test_a_refusal_is_one_line_and_exit_code_2(service: Service, tiny: Path) -> None:
    run = created(service, "--from", tiny)
    words = [sys.executable, "-m", "app.cli", "run", "pause", run]
    done = subprocess.run(
        words, env={**os.environ, **environment(service)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["mammofed: a draft run cannot pause; allowed now: start, step, stop"]


def test_a_wrong_address_says_so(service: Service) -> None:
    with pytest.raises(MammofedError, match="does not answer"):
        mammofed(service, "run", "list", "--url", "http://127.0.0.1:9")


def test_the_address_of_a_web_page_is_no_coordinators(service: Service) -> None:
    page = httpx.MockTransport(lambda request: httpx.Response(200, html="<p>a dashboard</p>"))
    with service.client() as coordinator:
        coordinator.http = httpx.Client(transport=page, base_url=service.url)
        with pytest.raises(CoordinatorLost, match="not a coordinator's address"):
            coordinator.runs()


def test_a_missing_token_says_so(service: Service, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="give --token-file or set MAMMOFED_TOKEN"):
        mammofed(service, "run", "list", "--token-file", tmp_path / "nothing")


@pytest.mark.parametrize("text", ["two\nlines", "Schlüssel"])
def test_what_is_no_token_says_so(service: Service, tmp_path: Path, text: str) -> None:
    with pytest.raises(BadSetting, match="MAMMOFED_TOKEN holds no token"):
        mammofed(service, "run", "list", MAMMOFED_TOKEN=text, MAMMOFED_TOKEN_FILE="")
    (tmp_path / "token").write_text(text)
    with pytest.raises(BadSetting, match="holds no token"):
        mammofed(service, "run", "list", "--token-file", tmp_path / "token")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PORT", "99999", "port: "),
        ("PARALLEL_RUNS", "0", "parallel_runs: "),
        ("CORS_ORIGINS", "x", "cors_origins"),
        ("FEDERATION", "nowhere", "nowhere holds no federation: make one with"),
        ("FEDERATION", __file__, "holds no federation: make one with"),
    ],
)
def test_a_wrong_setting_is_named(service: Service, name: str, value: str, said: str) -> None:
    with pytest.raises(BadSetting, match=said):
        mammofed(service, "coordinator", **{f"MAMMOFED_{name}": value})


def test_a_port_in_use_is_said_before_anything_is_made(service: Service, tmp_path: Path) -> None:
    words = ["coordinator", "--home", str(tmp_path / "home"), "--port", service.url.rpartition(":")[2]]
    done = subprocess.run([sys.executable, "-m", "app.cli", *words], capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "already in use" in line
    assert not (tmp_path / "home").exists()


def test_a_name_is_shown_as_it_is(service: Service, tiny: Path) -> None:
    run = created(service, "--from", tiny, "--name", "[/red] :smile:")
    assert "[/red] :smile:" in mammofed(service, "run", "show", run).stdout


def test_the_token_of_the_local_home_is_the_default(service: Service) -> None:
    home = CliRunner().invoke(
        app, ["token", "list"], env={"MAMMOFED_URL": service.url, "MAMMOFED_HOME": str(service.home)}
    )
    assert home.exit_code == 0, home.exception
    assert "admin" in home.stdout


def test_a_token_is_made_used_and_revoked(service: Service, tiny: Path) -> None:
    secret = mammofed(service, "token", "create", "reader", "--role", "viewer").stdout.strip()
    as_reader = {"MAMMOFED_TOKEN": secret, "MAMMOFED_TOKEN_FILE": ""}
    assert mammofed(service, "run", "list", **as_reader).exit_code == 0
    with pytest.raises(MammofedError, match="this is for coordinator"):
        mammofed(service, "run", "create", "--from", tiny, **as_reader)
    listed = mammofed(service, "token", "list").stdout
    assert "reader" in listed
    assert secret not in listed
    assert "revoked" in mammofed(service, "token", "revoke", secret.split("_")[1]).stdout
    with pytest.raises(MammofedError, match="not valid"):
        mammofed(service, "run", "list", **as_reader)


def test_the_audit_trail_is_listed_and_holds(service: Service, tiny: Path) -> None:
    run = created(service, "--from", tiny)
    assert "run.create" in mammofed(service, "audit", "list", "--subject", run).stdout
    assert mammofed(service, "audit", "verify").exit_code == 0
    assert "intact" in mammofed(service, "audit", "verify", "--home", service.home).stdout


def test_a_changed_entry_is_found_without_a_coordinator(service: Service, tiny: Path, tmp_path: Path) -> None:
    created(service, "--from", tiny)
    (tmp_path / "audit.key").write_bytes((service.home / "audit.key").read_bytes())
    with (
        sqlite3.connect(service.home / "mammofed.db") as kept,
        sqlite3.connect(tmp_path / "mammofed.db") as copy,
    ):
        kept.backup(copy)
        for (trigger,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            copy.execute(f"DROP TRIGGER {trigger}")
        copy.execute("UPDATE audit SET actor = 'somebody' WHERE id = 1")
    found = mammofed(service, "audit", "verify", "--home", tmp_path)
    assert found.exit_code == 1
    assert "broken at entry 1" in found.stdout


def test_verifying_a_folder_without_a_trail_makes_nothing(service: Service, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"has no audit\.key"):
        mammofed(service, "audit", "verify", "--home", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_settings_as_json_are_what_the_coordinator_keeps(service: Service, tiny: Path) -> None:
    run = created(service, "--from", tiny, "--site", "a=/x,style=sigmoid:0.5:0.3", "--site", "b=/y")
    with service.client() as lead:
        kept = json.loads(lead.run(run).settings.model_dump_json())
    assert kept["data"]["site"] == ["a=/x,style=sigmoid:0.5:0.3", "b=/y"]


def test_a_model_and_its_card_are_taken_out(service: Service, tiny: Path, tmp_path: Path) -> None:
    run = created(service, "--from", tiny, "--rounds", 1, "--start")
    assert mammofed(service, "run", "watch", run).exit_code == 0
    words = ["--which", "last", "--format", "safetensors", "--out", tmp_path / "model.safetensors"]
    mammofed(service, "run", "export", run, *words)
    assert load_file(tmp_path / "model.safetensors")
    card = mammofed(service, "run", "export", run, "--card").stdout
    assert card.startswith("#")
    assert "bn-scaffold-std" in card


def test_help_shows_the_defaults_as_flags_that_are_taken(service: Service) -> None:
    told = usual().split()
    assert told[told.index("--rounds") :][:2] == ["--rounds", "40"]
    assert "Without --from and --preset: --engine local" in mammofed(service, "run", "create", "--help").stdout
    with service.client() as lead:
        assert lead.run(created(service, *told)).settings == RunSettings()


def test_a_preset_is_where_settings_begin(service: Service) -> None:
    with service.client() as lead:
        preset = lead.presets()[0]
        run = lead.run(created(service, "--preset", preset.name, "--rounds", 7))
    assert run.settings == preset.settings.model_copy(update={"rounds": 7})
    with pytest.raises(BadSetting, match="choose one of"):
        mammofed(service, "run", "create", "--preset", "nothing")
