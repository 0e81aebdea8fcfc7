"""Mammography pipeline → ratios: one file against pydicom, table against formula, two cores, reading."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, dcmread, dcmwrite
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import UID, ExplicitVRLittleEndian, JPEGLosslessSV1, JPEGLSLossless, generate_uid
from scipy import ndimage

from benchmarks.ratio import Ratio, best_times, best_times_apart, own_process, seconds
from mammo.annotations import Annotations, read_annotations
from mammo.augment import augment
from mammo.dicom import grey, load
from mammo.extract import Extraction, build_store
from mammo.lut import Pipeline, Window, grey_table, look_up, render
from mammo.patches import Sampling
from mammo.store import open_store
from mammo.style import Style

ROWS, COLUMNS = 3062, 2394  # a full-size detector
IMAGES, PICTURES = 128, 4  # of the extraction, and how many of them differ
FORMATS = {
    "JPEG lossless": JPEGLosslessSV1,
    "JPEG-LS": JPEGLSLossless,
    "uncompressed": ExplicitVRLittleEndian,  # no decoding to save: a look-up against pydicom's one copy
}
STYLE = Style("sigmoid", centre=0.5, width=0.25)


def full_size(seed: int) -> NDArray[np.uint16]:
    """Breast-shaped 12-bit words with the correlation and the noise of a real image."""
    generator = np.random.default_rng(seed)
    coarse = ndimage.zoom(generator.normal(size=(ROWS // 16 + 2, COLUMNS // 16 + 2)), 16, order=1)
    y, x = np.mgrid[:ROWS, :COLUMNS]
    inside = ((y - ROWS / 2) / (0.45 * ROWS)) ** 2 + (x / (0.8 * COLUMNS)) ** 2 < 1
    tissue = 2200 + 350 * coarse[:ROWS, :COLUMNS] + generator.normal(0, 15, (ROWS, COLUMNS))
    return np.where(inside, tissue, 0).clip(0, 4095).astype(np.uint16)


def encode(words: NDArray[np.uint16], syntax: str) -> bytes:
    """Lossless codestream of one image."""
    if syntax == JPEGLosslessSV1:
        return bytes(imagecodecs.jpeg8_encode(words, lossless=True, bitspersample=12, predictor=1))
    return bytes(imagecodecs.jpegls_encode(words))


def write(path: Path, words: NDArray[np.uint16], syntax: str) -> Path:
    """One mammogram file with a SIGMOID window."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    facts = {"Modality": "MG", "SOPClassUID": "1.2.840.10008.5.1.4.1.1.1.2", "SOPInstanceUID": generate_uid()}
    shape = {
        "Rows": ROWS,
        "Columns": COLUMNS,
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
    }
    bits = {"BitsAllocated": 16, "BitsStored": 12, "HighBit": 11, "PixelRepresentation": 0}
    window = {"WindowCenter": 2048, "WindowWidth": 3000, "VOILUTFunction": "SIGMOID"}
    for keyword, value in {**facts, **shape, **bits, **window}.items():
        setattr(dataset, keyword, value)
    dataset.PixelData = words.tobytes()
    dataset["PixelData"].VR = "OW"
    if syntax != ExplicitVRLittleEndian:
        dataset.PixelData = encapsulate([encode(words, syntax)])
        dataset["PixelData"].VR = "OB"
        dataset["PixelData"].is_undefined_length = True
    dataset.file_meta.TransferSyntaxUID = UID(syntax)
    dcmwrite(path, dataset, enforce_file_format=True)
    return path


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="bench-mammo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def one_file(folder: Path) -> list[Ratio]:
    """Read + decode + pipeline + style of one file, against pydicom's reading and pixel_array alone.

    Each in a process of its own: in one process the two would live from memory that the other has freed.
    """
    words = full_size(0)
    ratios = []
    for name, syntax in FORMATS.items():
        path = write(folder / "full.dcm", words, syntax)
        ours, theirs = best_times_apart(partial(styled, path), partial(pixels, path), repeats=11)
        detail = f"{1e3 * ours:.0f} ms against {1e3 * theirs:.0f} ms"
        ratios.append(Ratio(f"mammogram, {name} / pixel_array", ours / theirs, at_most=1.15, detail=detail))
    return ratios


def styled(path: Path) -> None:
    """What mammofed does with a file."""
    grey(load(path), style=STYLE)


def pixels(path: Path) -> None:
    """What pydicom does with it, without any grey-scale step."""
    dcmread(path).pixel_array  # noqa: B018


def table(_: Path) -> list[Ratio]:
    """One look-up against the formula on every pixel, with the same output bit for bit."""
    words = full_size(0)
    pipeline = Pipeline(bits=12, vois=(Window(2048, 3000, "SIGMOID"),), padding=(0, 0))
    stored = words.astype(np.float64)
    looked_up = look_up(grey_table(pipeline, 16, style=STYLE), words)
    if not np.array_equal(looked_up, render(stored, pipeline, style=STYLE)):
        raise AssertionError("the table differs from the formula")
    ours, theirs = best_times(
        lambda: look_up(grey_table(pipeline, 16, style=STYLE), words),
        lambda: render(stored, pipeline, style=STYLE),
        repeats=5,
    )
    detail = f"{1e3 * theirs:.0f} ms against {1e3 * ours:.0f} ms, identical"
    return [Ratio("formula / table LUT", theirs / ours, at_least=5, detail=detail)]


def annotated(folder: Path) -> Annotations:
    """Full-size files with one lesion each."""
    lines = ["path,lesion_id,kind,pathology,x,y,width,height,patient"]
    originals = [write(folder / f"original{i}.dcm", full_size(i), JPEGLosslessSV1) for i in range(PICTURES)]
    for i in range(IMAGES):
        os.link(originals[i % PICTURES], folder / f"{i}.dcm")
        lines.append(f"{i}.dcm,1,mass,benign,500,1500,200,200,p{i}")
    (folder / "boxes.csv").write_text("\n".join(lines))
    return read_annotations(folder, [folder / "boxes.csv"])


def extraction(folder: Path) -> list[Ratio]:
    """Wall time of one process against two, starting them included."""
    annotations = annotated(folder)
    how = Extraction(Sampling(), style=STYLE)

    def build(workers: int) -> float:
        out = folder / "store"
        with own_process() as process:
            time_taken = process.submit(seconds, partial(build_store, annotations, out, how, workers)).result()
        shutil.rmtree(out)
        return time_taken

    rounds = [(build(1), build(2)) for _ in range(2)]
    one, two = (min(column) for column in zip(*rounds, strict=True))
    detail = f"{IMAGES} images, {one:.1f} s against {two:.1f} s"
    return [Ratio("extraction, one core / two", one / two, at_least=1.7, detail=detail)]


def reading(folder: Path) -> list[Ratio]:
    """Patches a second of 64 pixels, read in random order and augmented, by two threads."""
    source_folder = folder / "source"
    source_folder.mkdir()
    how = Extraction(Sampling(patch=64, per_lesion=100))
    build_store(annotated(source_folder), folder / "store", how, workers=2)
    source = open_store(folder / "store")
    generator = np.random.default_rng(0)
    batches = [generator.integers(0, len(source.labels), 64) for _ in range(200)]

    def read(number: int) -> None:
        augment(source.read(batches[number]), np.random.default_rng(number))

    def all_batches() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(read, range(len(batches))))

    (taken,) = best_times(all_batches)
    rate = 64 * len(batches) / taken
    detail = f"{rate:.0f} patches/s of {len(source.labels)}, over 5,000"
    return [Ratio("store reading / 5,000 patches/s", rate / 5000, at_least=1, detail=detail)]


def measure() -> list[Ratio]:
    """All ratios of the mammography pipeline."""
    ratios = []
    for work in (one_file, table, extraction, reading):
        with scratch() as folder:
            ratios += work(folder)
    return ratios
