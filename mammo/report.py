"""Report, facts and patches → one self-contained HTML page: tables, histograms, a gallery."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mammo.annotations import Refused
from mammo.quality import Report

Gallery = Mapping[str, Sequence[NDArray[np.float32]]]  # heading → pictures (h, w) in [0, 1]

CSS = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#1c2733}
h1{margin-bottom:0}h2{margin-top:2em;border-bottom:1px solid #d5dce3}
.verdict{padding:.7em 1em;border-radius:6px;margin:1em 0}.v0{background:#e3f3e6}.v1{background:#fdf3d8}
.v2{background:#fbe3e1}.tables{display:flex;flex-wrap:wrap;align-items:flex-start;gap:1.5em 2.5em}
table{border-collapse:collapse}td,th{padding:.15em .8em .15em 0;text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}.row{display:flex;flex-wrap:wrap;gap:8px}
.row img{height:128px;background:#000;border-radius:3px}figure{margin:0}
svg{background:#f6f8fa;border-radius:4px}small{color:#5a6875}
"""
COUNTED = {  # in a report about files: all else there counts files
    "class": "lesions; background: images",
    "split": "patients",
    "LUT": "LUTs and windows; none: files",
}


def html_page(title: str, report: Report, gallery: Gallery) -> str:
    """The whole page; everything that came from a file is escaped."""
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>",
        f"<style>{CSS}</style>",
        f"<h1>{escape(title)}</h1><small>{report.usable} of {report.files} {report.unit} are usable. "
        "This page shows images: keep it at the site.</small>",
        verdict(report),
        "<h2>Counts</h2><div class=tables>",
        *(count_table(name, unit_of(name, report), counts) for name, counts in report.counts.items()),
        "</div><h2>Grey levels, from black to white</h2><div class=tables>",
        *(histogram(vendor, counts) for vendor, counts in report.histograms.items()),
        "</div><h2>Gallery</h2>",
        *(pictures(heading, images) for heading, images in gallery.items()),
        f"<h2>Identity</h2><p>{escape(report.notice)}</p>",
        count_table("finding", report.unit, report.identity),
        refused_table("Unreadable files", report.unreadable),
        refused_table("Refused rows", report.refused_rows),
        name_list("The same pixels", [" = ".join(names) for names in report.duplicates]),
        name_list("Laterality, orientation and image contradict each other", report.wrong_side),
        "</html>",
    ]
    return "\n".join(parts)


def verdict(report: Report) -> str:
    """Coloured box with the exit code's meaning and its reasons."""
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in [*report.problems, *report.warnings])
    code = report.exit_code
    return f"<div class='verdict v{code}'><b>{report.verdict}</b><ul>{reasons}</ul></div>"


def unit_of(name: str, report: Report) -> str:
    """What the numbers of a table of counts count."""
    return COUNTED.get(name, report.unit) if report.unit == "files" else report.unit


def count_table(name: str, unit: str, counts: Mapping[str, int]) -> str:
    """Two columns: what, how many; nothing where nothing was counted."""
    rows = "".join(f"<tr><td>{escape(what)}<td class=n>{number}" for what, number in counts.items())
    return f"<table><tr><th>{escape(name)}<th>{unit}{rows}</table>" if counts else ""


def histogram(title: str, counts: Sequence[int]) -> str:
    """Inline SVG of one histogram, black at the left."""
    top = max([*counts, 1])
    width = 256 / max(1, len(counts))
    bars = "".join(
        f"<rect x={i * width:.1f} y={100 - 100 * count / top:.1f} width={width:.1f} "
        f"height={100 * count / top:.1f} fill=#3b6ea5 />"
        for i, count in enumerate(counts)
    )
    return f"<figure><svg width=256 height=100>{bars}</svg><figcaption>{escape(title)}</figcaption></figure>"


def pictures(heading: str, images: Sequence[NDArray[np.float32]]) -> str:
    """A row of embedded pictures."""
    shown = "".join(f"<img alt='' src='data:image/png;base64,{as_png(image)}'>" for image in images)
    return f"<h3>{escape(heading)}</h3><div class=row>{shown}</div>"


def as_png(image: NDArray[np.float32]) -> str:
    """8-bit PNG in base64."""
    out = io.BytesIO()
    Image.fromarray(np.rint(image * 255).astype(np.uint8)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def refused_table(title: str, refused: Sequence[Refused]) -> str:
    """What was refused, with the reason; nothing where all was fine."""
    rows = "".join(f"<tr><td>{escape(r.name)}<td>{r.error}<td>{escape(r.reason)}" for r in refused)
    return f"<h2>{title}</h2><table><tr><th>name<th>error<th>reason{rows}</table>" if refused else ""


def name_list(title: str, names: Sequence[str]) -> str:
    """Headed list of names; nothing where there are none."""
    items = "".join(f"<li>{escape(name)}</li>" for name in names)
    return f"<h2>{title}</h2><ul>{items}</ul>" if names else ""
