"""`mammofed patches`: folder of mammograms and annotation tables → a patch store."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.commands.stopping import stoppable
from mammo.annotations import find_tables, read_annotations
from mammo.extract import Extraction, build_store
from mammo.folder import is_image_folder
from mammo.patches import Sampling
from mammo.quality import mixed_intents
from mammo.store import open_store
from mammo.style import parse_style
from mammofed.errors import BadSetting


@contextmanager
def shown_progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, else a plain line at every tenth; both on stderr, so that stdout stays clean."""
    if not sys.stderr.isatty():
        yield _plain_lines(title)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _plain_lines(title: str) -> Callable[[int, int], None]:
    def line(done: int, total: int) -> None:
        if done == total or done * 10 // total > (done - 1) * 10 // total:
            typer.echo(f"{title}: {done} of {total}", err=True)

    return line


def patches(
    source: Annotated[Path, typer.Argument(help="Folder of DICOM mammograms.")],
    out: Annotated[Path, typer.Option(help="Folder of the patch store; one that was begun is continued.")],
    csv: Annotated[
        list[Path] | None,
        typer.Option(help="Annotation table, CBIS-DDSM or boxes; repeatable. Without: every CSV in SOURCE."),
    ] = None,
    style: Annotated[
        str, typer.Option(help="none, voi:NAME (the file's own LUT), sigmoid:CENTRE:WIDTH.")
    ] = "none",
    p: Annotated[float, typer.Option(help="Share of images that have the style, from 0 to 1.")] = 1.0,
    voi: Annotated[
        str, typer.Option(help="VOI of images without a voi style: default, none, an index, an explanation.")
    ] = "default",
    seed: Annotated[int, typer.Option(min=0, help="Decides positions and styles.")] = 0,
    patch: Annotated[int, typer.Option(help="Side of a patch in pixels.")] = 256,
    height: Annotated[int, typer.Option(help="Taller images are made this high, in pixels.")] = 4096,
    spacing: Annotated[float | None, typer.Option(help="Instead of the height: millimetres a pixel.")] = None,
    per_lesion: Annotated[int, typer.Option(help="Patches of each lesion, and as many of background.")] = 30,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
) -> None:
    """Cut labelled patches from mammograms into a store that training reads.

    Files that cannot be used are listed with the reason and the rest goes on. A run that was stopped
    continues where it was: give the same command again. The same seed gives the same store.
    """
    if not source.is_dir():
        raise BadSetting(f"no folder {source}")
    tables = csv or find_tables(source)
    if is_image_folder(source) and not tables:
        raise BadSetting(f"{source} is a folder of images by class: training reads it as it is")
    if not tables:
        raise BadSetting(f"no annotation table in {source}: name one with --csv")
    annotations = read_annotations(source, tables)
    sampling = Sampling(patch, height, spacing, per_lesion, seed)
    with stoppable(), shown_progress("patches") as progress:
        how = Extraction(sampling, voi, parse_style(style), p)
        index = build_store(annotations, out, how, workers, progress)
    for refused in index["refused"]:
        typer.echo(f"refused {refused['name']}: {refused['error']}: {refused['reason']}", err=True)
    rows = open_store(out).rows
    for (name, split), number in sorted(Counter((row["class"], row["split"]) for row in rows).items()):
        typer.echo(f"{name:16} {split:6} {number:7}")
    for warning in mixed_intents(row["intent"] or "not stated" for row in rows):
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{len(rows)} patches of {len(index['sources'])} images in {out}")
