"""`mammofed inspect`: folder of mammograms, folder by class, or patch store → a report and an exit code."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.commands.patches import shown_progress
from mammo.annotations import find_tables, read_annotations
from mammo.folder import is_image_folder
from mammo.quality import Report, inspect_folder
from mammo.report import html_page, unit_of
from mammo.store import is_begun, is_store
from mammo.survey import Pictures, gallery_of, survey_folder, survey_store
from mammofed.errors import BadSetting
from mammofed.files import write_atomically, writing

LISTED = 20  # names of a finding on the screen; the JSON and the HTML have all of them


def inspect(
    path: Annotated[Path, typer.Argument(help="Folder of DICOM files, folder of images by class, or store.")],
    csv: Annotated[
        list[Path] | None,
        typer.Option(help="Annotation table, CBIS-DDSM or boxes; repeatable. Without: every CSV in PATH."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the report with pictures to this file.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
) -> None:
    """Check data before joining a study: what is there, what is wrong, what identity is left.

    Exit code 0: fine; 1: warnings, a missing annotation table too; 2: cannot train. Identifying tags are
    named, their values are never shown. The HTML holds pictures of the images: keep it at the site.
    """
    if not path.exists():
        raise BadSetting(f"no file or folder {path}")
    if html is not None:
        with writing(html), TemporaryFile(dir=html.parent):
            pass  # reading all files takes long: the place is tried before
    report, gallery = look_at(path, csv or find_tables(path), workers, pictures=html is not None)
    if html is not None:
        write_atomically(html, html_page(f"Data report of {path.name}", report, gallery).encode())
    if as_json:
        typer.echo(json.dumps({**asdict(report), "exit_code": report.exit_code}, indent=1))
    else:
        show(report)
    raise typer.Exit(report.exit_code)


def look_at(path: Path, tables: list[Path], workers: int, pictures: bool) -> tuple[Report, dict[str, Pictures]]:
    """The report of a store, a folder by class, or a folder of mammograms, and pictures where asked for."""
    if is_store(path):
        return survey_store(path)
    if is_begun(path):
        raise BadSetting(f"{path} is a patch store that is not finished: run mammofed patches again")
    with shown_progress("inspect") as progress:
        if is_image_folder(path) and not tables:
            return survey_folder(path, workers, progress)
        annotations = read_annotations(path, tables) if tables else None
        report, facts = inspect_folder(path, annotations, workers, progress)
    return report, gallery_of(path, facts, annotations) if pictures else {}


def count_lines(name: str, unit: str, counts: dict[str, int], terminal: bool) -> list[Table | str]:
    """A table on a terminal, else plain lines."""
    if not terminal:
        return [f"{name} ({unit}): {what}: {number}" for what, number in counts.items()]
    table = Table(name, unit, min_width=40)
    for what, number in counts.items():
        table.add_row(Text(what), str(number))
    return [table] if counts else []


def show(report: Report) -> None:
    """Tables and findings for a person."""
    console = Console(soft_wrap=True)
    for name, counts in {**report.counts, "identity": report.identity}.items():
        for line in count_lines(name, unit_of(name, report), counts, console.is_terminal):
            console.print(line, markup=False)
    for refused in [*report.unreadable, *report.refused_rows][:LISTED]:
        console.print(f"{refused.name}: {refused.error}: {refused.reason}", markup=False, highlight=False)
    for names in report.duplicates[:LISTED]:
        console.print("the same pixels: " + " = ".join(names), markup=False, highlight=False)
    for name in report.wrong_side[:LISTED]:
        console.print(
            f"laterality, orientation and image contradict each other: {name}", markup=False, highlight=False
        )
    for reason in [*report.problems, *report.warnings]:
        console.print(f"- {reason}", markup=False, highlight=False)
    console.print(report.notice, markup=False)
    console.print(f"{report.usable} of {report.files} {report.unit} usable. {report.verdict}", markup=False)
