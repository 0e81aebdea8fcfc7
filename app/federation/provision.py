"""A federation's name, host and sites → certificates, the engine server's folder, and one kit a site.

NVFlare's own provisioning tool makes the certificates, and keeps the authority's key in `provisioned/`: adding a
site leaves all others' certificates as they are. What it allows by default is narrowed here: sites run no code
that comes with a job, answer no shell command, and stream no logs.
"""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from mammofed.errors import BadSetting, MammofedError
from mammofed.files import held, write_atomically, writing

ADMIN = "coordinator@mammofed.local"
SERVER = "server"  # what NVFlare calls its server in every federation: no site may have the name
ORG = "mammofed"
ROOT_DAYS = 7300  # of the authority's own certificate
TAKEN = (SERVER, "authority")  # names that are not a site's, in calls and in `expiries`
SITE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
LABEL = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
HOST = re.compile(rf"{LABEL}(\.{LABEL})*")  # what NVFlare takes
RUN_AT_SITE = ["nvflare.collab.runtime.executor.CollabExecutor", "app.site.agent.Agent"]
RUN_AT_SERVER = [
    "nvflare.collab.runtime.controller.CollabController",
    "app.coordinator.engines.nvflare.Relay",
]
WARN_DAYS = 60  # before a certificate ends
HEARTBEAT_LOST = 20.0  # seconds after which a silent site no longer counts as connected


class ProvisioningFailed(MammofedError):
    """NVFlare's tool made no certificates."""


@dataclass(frozen=True)
class Federation:
    """Who belongs to a federation, and where its server is reached."""

    name: str
    host: str
    port: int = 8002
    sites: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # their certificates are still valid, so their names are never given again


def read_federation(folder: Path) -> Federation:
    """The federation of a folder."""
    try:
        found = json.loads((folder / "federation.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadSetting(f"{folder} holds no federation: make one with mammofed federation init") from error
    return Federation(**{**found, "sites": tuple(found["sites"]), "removed": tuple(found["removed"])})


def create(folder: Path, federation: Federation) -> None:
    """Make a new federation: certificates, the server's folder, the sites' kits."""
    if (folder / "federation.json").exists():
        raise BadSetting(f"{folder} holds a federation already: use add-site, or another folder")
    check_host(federation.host)
    check_names(federation.sites)
    with writing(folder), held(folder, "mammofed federation"):
        folder.chmod(0o700)
        made = provision(folder, federation)
        install(made / federation.host, folder / "server", server_policy(folder))
        install(made / ADMIN, folder / "admin", None)
        for site in federation.sites:
            write_kit(folder, made, site)
        keep(folder, federation)


def add_site(folder: Path, site: str) -> Path:
    """One site more; the others' certificates stay as they are."""
    federation = read_federation(folder)
    check_names((site,))
    if site in federation.sites:
        raise BadSetting(f"site {site!r} is in the federation already; its kit lies in {folder / 'kits'}")
    if site in federation.removed:
        raise BadSetting(
            f"site {site!r} was removed, and its old certificate would open the door: use another name"
        )
    with writing(folder), held(folder, "mammofed federation"):
        grown = replace(federation, sites=(*federation.sites, site))
        kit = write_kit(folder, provision(folder, grown), site)
        keep(folder, grown)
    return kit


def remove_site(folder: Path, site: str) -> None:
    """Shut a site out for good: the server refuses its name from its next start on, or from now on if told."""
    federation = read_federation(folder)
    if site not in federation.sites:
        raise BadSetting(f"site {site!r} is not in the federation: it has {', '.join(federation.sites) or 'none'}")
    with writing(folder), held(folder, "mammofed federation"):
        left = tuple(other for other in federation.sites if other != site)
        shrunk = replace(federation, sites=left, removed=(*federation.removed, site))
        shut_out = {"disabled_clients": sorted(shrunk.removed)}  # NVFlare's own list
        write_atomically(folder / "server" / "disabled_clients.json", json.dumps(shut_out).encode())
        kit_path(folder, site).unlink(missing_ok=True)
        keep(folder, shrunk)


def expiries(folder: Path) -> dict[str, datetime]:
    """When each certificate ends: the authority's, the server's, and each site's."""
    federation = read_federation(folder)
    state = json.loads(state_file(folder, federation).read_bytes())
    found = {"authority": x509.load_pem_x509_certificate(state["root_cert"].encode()).not_valid_after_utc}
    for name, subject in {"server": federation.host, **{site: site for site in federation.sites}}.items():
        found[name] = x509.load_pem_x509_certificate(state[subject]["cert"].encode()).not_valid_after_utc
    return found


def days_left(expiry: datetime) -> int:
    """Whole days until then."""
    return (expiry - datetime.now(UTC)).days


def check_host(host: str) -> None:
    """Refuse what cannot be the server's address."""
    if not HOST.fullmatch(host):
        raise BadSetting(
            f"host {host!r}: give a name as coordinator.example.org or an IPv4 address: letters, digits, - and ."
        )


def check_names(sites: tuple[str, ...]) -> None:
    """Refuse names that cannot be a site's."""
    for site in sites:
        if not SITE_NAME.fullmatch(site):
            raise BadSetting(f"site {site!r}: use small letters, digits and -, at most 63")
        if site in TAKEN:
            raise BadSetting(f"site {site!r}: the federation itself uses that name; choose another")
    if len(set(sites)) < len(sites):
        raise BadSetting(f"sites {', '.join(sites)}: each needs a name of its own")


def keep(folder: Path, federation: Federation) -> None:
    """Write down who belongs to it; the authority's key is for this user alone."""
    write_atomically(folder / "federation.json", json.dumps(asdict(federation), indent=1).encode())
    state_file(folder, federation).chmod(0o600)


def state_file(folder: Path, federation: Federation) -> Path:
    """Where NVFlare's tool keeps keys and certificates."""
    return folder / "provisioned" / federation.name / "state" / "cert.json"


def kit_path(folder: Path, site: str) -> Path:
    """A site's kit."""
    return folder / "kits" / f"{site}.zip"


def provision(folder: Path, federation: Federation) -> Path:
    """Run NVFlare's tool; the folder with one folder for each participant."""
    path = folder / "project.yml"
    path.write_text(json.dumps(project(federation)))  # JSON is YAML
    words = ["provision", "-p", str(path), "-w", str(folder / "provisioned"), "--force"]  # the state is kept
    command = [sys.executable, "-m", "nvflare.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    made = sorted((folder / "provisioned" / federation.name).glob("prod_*"))
    if done.returncode or not made:
        raise ProvisioningFailed(f"nvflare provision: {(done.stderr or done.stdout).strip()[-500:]}")
    return made[-1]


def project(federation: Federation) -> dict[str, Any]:
    """The project file of NVFlare's tool."""
    names = ["localhost", "127.0.0.1"] if federation.host != "localhost" else ["127.0.0.1"]
    server = {
        "name": federation.host,
        "type": "server",
        "org": ORG,
        "fed_learn_port": federation.port,
        "host_names": names,
        "default_host": federation.host,
    }
    impl = "nvflare.lighter.impl"
    builders = [
        {"path": f"{impl}.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
        {"path": f"{impl}.static_file.StaticFileBuilder", "args": {"config_folder": "config", "scheme": "tcp"}},
        {"path": f"{impl}.cert.CertBuilder", "args": {"root_valid_days": ROOT_DAYS}},
        {"path": f"{impl}.signature.SignatureBuilder"},
    ]
    people = [{"name": ADMIN, "type": "admin", "org": ORG, "role": "project_admin"}]
    sites = [{"name": site, "type": "client", "org": ORG} for site in federation.sites]
    return {
        "api_version": 3,
        "name": federation.name,
        "description": "mammofed",
        "participants": [server, *sites, *people],
        "builders": builders,
    }


def install(made: Path, target: Path, policy: dict[str, Any] | None) -> None:
    """Copy a participant's folder to where it is used, with our policy instead of the default one."""
    shutil.copytree(made, target)
    target.chmod(0o700)
    if policy is not None:
        resources = json.loads((target / "local" / "resources.json.default").read_bytes())
        (target / "local" / "resources.json").write_text(json.dumps({**resources, **policy}, indent=1))
        (target / "local" / "authorization.json").write_text(json.dumps(authorization(), indent=1))


def write_kit(folder: Path, made: Path, site: str) -> Path:
    """A site's kit: one file, to be carried to the site by a safe way; it holds the site's private key."""
    target = kit_path(folder, site)
    target.parent.mkdir(exist_ok=True)
    opened = folder / "kits" / f".{site}"
    shutil.rmtree(opened, ignore_errors=True)
    install(made / site, opened, site_policy())
    (opened / "kit.json").write_text(json.dumps({"site": site}))
    target.touch(mode=0o600)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as kit:
        for path in sorted(path for path in opened.rglob("*") if path.is_file()):
            kit.write(path, path.relative_to(opened))
    shutil.rmtree(opened)
    return target


def site_policy() -> dict[str, Any]:
    """What an engine's job may be at a site: mammofed's agent, and nothing else; no log leaves it."""
    launcher = "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher"
    managers = "nvflare.app_common.resource_managers.list_resource_manager.ListResourceManager"
    consumer = "nvflare.app_common.resource_consumers.list_resource_consumer.ListResourceConsumer"
    return {
        "class_allow_list": RUN_AT_SITE,
        "allow_log_streaming": False,
        "components": [
            {"id": "resource_manager", "path": managers, "args": {"resources": {}}},
            {"id": "resource_consumer", "path": consumer, "args": {}},
            {"id": "process_launcher", "path": launcher, "args": {}},
        ],
    }


def server_policy(folder: Path) -> dict[str, Any]:
    """The server's: its jobs in its own folder, a short heartbeat, jobs tried at once."""
    store = (folder / "server" / "store").absolute()
    schedulers = "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler"
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    persistor = "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor"
    launcher = "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher"
    snapshots = {"path": storage, "args": {"root_dir": str(store / "snapshots"), "uri_root": "/"}}
    jobs = {"uri_root": str(store / "jobs"), "job_store_id": "job_store"}
    patience = {"max_jobs": 16, "max_schedule_count": 3, "min_schedule_interval": 1.0}
    return {
        "class_allow_list": RUN_AT_SERVER,
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": 256,
                "heart_beat_timeout": HEARTBEAT_LOST,
                "download_job_url": "http://localhost/",
                "admin_timeout": 10.0,
            }
        ],
        "snapshot_persistor": {"path": persistor, "args": {"uri_root": "/", "storage": snapshots}},
        "components": [
            {"id": "job_scheduler", "path": schedulers, "args": patience},
            {"id": "job_manager", "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager", "args": jobs},
            {"id": "job_store", "path": storage},
            {"id": "process_launcher", "path": launcher, "args": {}},
        ],
    }


def authorization() -> dict[str, Any]:
    """What the coordinator may do with a participant: submit and manage jobs, and see that it is there."""
    may = {"submit_job": "any", "manage_job": "any", "view": "any", "operate": "any"}
    must_not = {"byoc": "none", "shell_commands": "none", "clone_job": "none", "download_job": "none"}
    return {"format_version": "1.0", "permissions": {"project_admin": {**may, **must_not}}}
