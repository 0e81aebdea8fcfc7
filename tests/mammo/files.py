"""Real DICOM bytes for the tests: one small mammogram in any transfer syntax."""

from pathlib import Path

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, dcmread, dcmwrite
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    JPEG2000,
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    RLELossless,
    generate_uid,
)

MG_PRESENTATION = "1.2.840.10008.5.1.4.1.1.1.2"
NATIVE = (ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian)
PLAIN = (*NATIVE, DeflatedExplicitVRLittleEndian)
LOSSLESS = (*PLAIN, RLELossless, JPEGLossless, JPEGLosslessSV1, JPEGLSLossless, JPEG2000Lossless)
LOSSY = (JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless, JPEG2000)


def breast(
    rows: int = 96, columns: int = 64, seed: int = 0, side: str = "L", bits: int = 12
) -> NDArray[np.uint16]:
    """A half disc of noisy tissue against the chest wall on a black background."""
    y, x = np.mgrid[:rows, :columns]
    inside = ((y - rows / 2) / (rows * 0.45)) ** 2 + (x / (columns * 0.8)) ** 2 < 1
    noise = np.random.default_rng(seed).integers(0, 2 ** (bits - 3), (rows, columns))
    image = np.where(inside, 2 ** (bits - 1) + noise, 0).astype(np.uint16)
    return image if side == "L" else image[:, ::-1].copy()


def encode(words: NDArray[np.generic], syntax: str, bits: int) -> bytes:
    """One frame as a codestream."""
    if syntax in (JPEGLossless, JPEGLosslessSV1):
        predictor = 1 if syntax == JPEGLosslessSV1 else 4
        return bytes(imagecodecs.jpeg8_encode(words, lossless=True, bitspersample=bits, predictor=predictor))
    if syntax == JPEGExtended12Bit:
        return bytes(imagecodecs.jpeg8_encode(words, bitspersample=12, level=98))
    if syntax == JPEGBaseline8Bit:
        return bytes(imagecodecs.jpeg8_encode(words, level=98))
    if syntax in (JPEGLSLossless, JPEGLSNearLossless):
        return bytes(imagecodecs.jpegls_encode(words, level=0 if syntax == JPEGLSLossless else 2))
    level = 0 if syntax == JPEG2000Lossless else 50
    return bytes(
        imagecodecs.jpeg2k_encode(words, codecformat="j2k", level=level, reversible=level == 0, bitspersample=bits)
    )


def dataset_of(words: NDArray[np.generic], bits: int = 12, **tags: object) -> Dataset:
    """A mammogram in memory, explicit little endian; tags replace or (None) remove those given here."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = UID(MG_PRESENTATION)
    meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset = Dataset()
    dataset.file_meta = meta
    many = {"NumberOfFrames": len(words)} if words.ndim == 3 else {}
    facts: dict[str, object] = {
        "SOPClassUID": MG_PRESENTATION,
        "SOPInstanceUID": meta.MediaStorageSOPInstanceUID,
        "Modality": "MG",
        "PresentationIntentType": "FOR PRESENTATION",
        "Manufacturer": "Acme",
        "PatientID": "p1",
        "ImageLaterality": "L",
        "ViewPosition": "CC",
        "Rows": words.shape[-2],
        "Columns": words.shape[-1],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "BitsAllocated": 8 * words.dtype.itemsize,
        "BitsStored": bits,
        "HighBit": bits - 1,
        "PixelRepresentation": int(words.dtype.kind == "i"),
        "PatientIdentityRemoved": "YES",
        "BurnedInAnnotation": "NO",
        **many,
        **tags,
    }
    for keyword, value in facts.items():
        if value is not None:
            setattr(dataset, keyword, value)
    dataset.PixelData = words.tobytes()
    dataset["PixelData"].VR = "OW" if words.dtype.itemsize == 2 else "OB"
    return dataset


def save(
    path: Path,
    words: NDArray[np.generic],
    syntax: str = ExplicitVRLittleEndian,
    bits: int = 12,
    **tags: object,
) -> Path:
    """Write a mammogram file in a transfer syntax."""
    dataset = dataset_of(words, bits, **tags)
    frames = words if words.ndim == 3 else words[None]
    if syntax == RLELossless:
        dataset.compress(RLELossless)
    elif syntax == ExplicitVRBigEndian:
        dataset.PixelData = words.astype(words.dtype.newbyteorder(">")).tobytes()
    elif syntax not in PLAIN:
        dataset.PixelData = encapsulate([encode(frame, syntax, bits) for frame in frames])
        dataset["PixelData"].is_undefined_length = True
        dataset["PixelData"].VR = "OB"
    dataset.file_meta.TransferSyntaxUID = UID(syntax)
    path.parent.mkdir(parents=True, exist_ok=True)
    native = {"implicit_vr": syntax == ImplicitVRLittleEndian, "little_endian": syntax != ExplicitVRBigEndian}
    dcmwrite(path, dataset, enforce_file_format=True, **native)
    return path


def claim(path: Path, syntax: str) -> Path:
    """Let a compressed file say that it has another transfer syntax."""
    dataset = dcmread(path)
    dataset.file_meta.TransferSyntaxUID = UID(syntax)
    dataset.save_as(path)
    return path


def lut_item(first: int, data: NDArray[np.integer], bits: int, explanation: str = "", **tags: object) -> Dataset:
    """One item of a LUT sequence."""
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [len(data) % 65536, first, bits])
    item.add_new("LUTData", "OW", data.astype("<u2").tobytes())
    item.LUTExplanation = explanation
    for keyword, value in tags.items():
        setattr(item, keyword, value)
    return item
