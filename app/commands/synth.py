"""`mammofed synth ...` → synthetic DICOM studies, and a gallery of synthetic patches."""

import math
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from synthetic.gallery import save_gallery
from synthetic.mammograms import LESION_FIELD
from synthetic.studies import StudySettings, write_studies

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Make synthetic mammograms: no data are needed, no patient exists.",
)

Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same images, bit for bit.")]


@app.command()
def studies(
    out: Annotated[Path, typer.Option(help="A new or empty folder for the files and annotations.csv.")],
    patients: Annotated[int, typer.Option(min=1, help="Patients, each with a CC and an MLO view.")] = 20,
    spacing: Annotated[float, typer.Option(help="Millimetres a pixel, 0.04 to 0.4.")] = 0.2,
    test: Annotated[float, typer.Option(help="Share of the patients in the test split.")] = 0.25,
    seed: Seed = 0,
) -> None:
    """Write whole DICOM mammograms with lesions, of four vendors, and the annotations of their lesions."""
    settings = StudySettings(patients, spacing, test)
    files = write_studies(settings, out, seed)
    shown = track(files, "writing mammograms", total=2 * patients) if sys.stdout.isatty() else files
    count = sum(1 for _ in shown)
    typer.echo(f"{count} mammograms of {patients} patients and annotations.csv in {out}")
    typer.echo(f"next: mammofed patches {shlex.quote(str(out))} --out STORE --patch {patch_size(spacing)}")


def patch_size(spacing: float) -> int:
    """Pixels a side, a power of two, that a lesion's window fills."""
    return 1 << int(math.log2(LESION_FIELD / spacing))


@app.command()
def gallery(
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .pdf or .svg.")] = Path("gallery.png"),
    size: Annotated[int, typer.Option(min=16, help="Pixels a side of a patch of 14 mm.")] = 128,
    seed: Seed = 0,
) -> None:
    """Draw each class in each vendor's style, so that one sees at once what is simulated."""
    save_gallery(out, seed, size)
    typer.echo(f"classes × styles in {out}")
