"""A wish for a model → its file: made once, kept under the digest of its bytes, and read back checked."""

import hashlib
import logging
import re
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from app.coordinator.formats import FORMATS, ExportFailed, Job
from app.coordinator.problems import Refused, not_found
from app.coordinator.results import Shown, while_kept
from app.coordinator.service import Service
from app.coordinator.tokens import Principal
from app.coordinator.views import visible
from app.schemas.runs import RunSettings
from app.schemas.shape import ModelFormat, Which
from fl_core.checkpoint import canonical, digest
from fl_core.family import algorithm_named, nothing
from mammofed import __version__

log = logging.getLogger(__name__)
SIZES = {"mnist": 28}  # pixels a side where the settings do not say
USUAL = 64


@dataclass(frozen=True)
class Wish:
    """Which model of a run is wanted, and how."""

    run: str
    which: Which
    form: ModelFormat
    site: str | None


@dataclass(frozen=True)
class ModelFile:
    """A model to hand out."""

    data: bytes
    name: str
    media_type: str


def kept_file(service: Service, who: Principal, wish: Wish) -> ModelFile | None:
    """The file, where it has been made already."""
    return while_kept(service, wish.run, wish.which, lambda shown: read_back(job_of(service, who, wish, shown)))


def made_file(service: Service, who: Principal, wish: Wish) -> ModelFile:
    """The file, made now unless another request has made it meanwhile."""

    def make(shown: Shown) -> ModelFile:
        job = job_of(service, who, wish, shown)
        before = read_back(job)
        if before is not None:
            return before
        service.exporter.make(job)
        clear_exports(job.folder, shown)
        found = read_back(job)
        if found is None:
            raise ExportFailed("the file changed on disk right after it was written: see to the disk")
        return found

    try:
        return while_kept(service, wish.run, wish.which, make)
    except ExportFailed as error:
        log.error("%s", error, extra={"fields": {"run": wish.run}})
        raise Refused(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error


def job_of(service: Service, who: Principal, wish: Wish, shown: Shown) -> Job:
    """What has to be made, after the wish has been checked."""
    settings = RunSettings.model_validate(shown.run.settings)
    states = shown.kept["states"]
    check_site(who, wish, settings, list(states["sites"]))
    about = {
        "run": shown.run.id,
        "round": str(shown.round),
        "algorithm": settings.algorithm,
        "mammofed": __version__,
    }
    return Job(
        folder=service.settings.run_folder(shown.run.id),
        server=states["server"],
        site=states["sites"][wish.site] if wish.site else None,
        network=settings.model,
        classes=shown.classes,
        size=patch_size(settings),
        about={**about, "site": wish.site} if wish.site else about,
        form=wish.form,
        name=f"{key_of(shown)}-{file_safe(wish.site or 'all')}",
    )


def check_site(who: Principal, wish: Wish, settings: RunSettings, sites: list[str]) -> None:
    """Rows with private tensors have one model a site, so the site is needed; in others there is one for all."""
    shared = algorithm_named(settings.algorithm).private is nothing
    if shared and wish.site is not None:
        raise Refused(
            HTTPStatus.UNPROCESSABLE_ENTITY, f"{settings.algorithm} has one model for all sites: leave `site` out"
        )
    if not shared and wish.site is None:
        names = ", ".join(visible(who, sites))
        raise Refused(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{settings.algorithm} has one model a site: add `site`, one of {names or 'those of the run'}",
        )
    if wish.site is not None and wish.site not in visible(who, sites):
        raise not_found(f"model of site {wish.site!r}")


def patch_size(settings: RunSettings) -> int:
    """Pixels a side of the patches that the export is checked with."""
    drawn = settings.engine == "local" and settings.data.data == "synthetic" and not settings.data.site
    return settings.data.image_size if drawn else SIZES.get(settings.data.data, USUAL)


def key_of(shown: Shown) -> str:
    """What the names of a round's exports begin with."""
    return digest(canonical({"states": shown.kept["states"], "version": __version__}))[:16]


def file_safe(words: str) -> str:
    """The words with nothing in them that a file's name cannot hold."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", words)


def read_back(job: Job) -> ModelFile | None:
    """The job's file, if its bytes are those that its name promises; one that is damaged is made anew."""
    form = FORMATS[job.form]
    for path in (job.folder / "exports").glob(f"{job.name}.*.{form.ending}"):
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() == path.name.split(".")[1]:
            return ModelFile(data, file_name(job), form.media_type)
        log.warning("export %s does not match its checksum", path)
        path.unlink()
    return None


def file_name(job: Job) -> str:
    """What the file is called where it is saved."""
    words = ["mammofed", job.about["run"], job.about["algorithm"], f"round-{job.about['round']}"]
    words += [job.about["site"]] if "site" in job.about else []
    words += ["monai-bundle"] if job.form == "monai-bundle" else []
    return f"{file_safe('-'.join(words))}.{FORMATS[job.form].ending}"


def clear_exports(folder: Path, shown: Shown) -> None:
    """Delete the exports of rounds that are neither the best nor the last any more."""
    rounds = [
        Shown(shown.run, shown.which, shown.classes, kept) for kept in (shown.run.best, shown.run.latest) if kept
    ]
    named = tuple(key_of(one) for one in rounds)
    for path in (folder / "exports").iterdir():
        if not path.name.startswith((*named, ".")):
            path.unlink()
