"""Folder of images by class (ImageFolder: CLASS/image.png or .dcm) → a patch source, as it is."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from mammo.annotations import CLASSES
from mammo.dicom import grey, load
from mammo.errors import BadPixels, TooLarge
from mammo.header import MAX_PIXELS
from mammo.patches import resize
from mammofed.errors import BadData

PICTURES = (".png", ".dcm")
DEPTHS = {"1": 1, "L": 255, "I;16": 65535, "I;16B": 65535, "I": 65535}  # greatest value of a Pillow mode


@dataclass(frozen=True)
class ImageFolder:
    """A patch source that decodes its images when they are read."""

    paths: tuple[Path, ...]
    labels: NDArray[np.int64]  # (n,)
    classes: tuple[str, ...]
    fingerprint: str
    shape: tuple[int, int]  # H, W of every patch: that of the first readable one

    def read(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """(B, 1, H, W) in [0, 1]."""
        out = np.empty((len(indices), 1, *self.shape), np.float32)
        for place, index in enumerate(indices):
            out[place, 0] = resize(read_picture(self.paths[index]), self.shape)
        return out


def read_picture(path: Path) -> NDArray[np.float32]:
    """(H, W) in [0, 1] of an 8 or 16 bit PNG, or of a DICOM mammogram."""
    if is_dicom(path):
        return grey(load(path))
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise TooLarge(f"{path}: {picture.height} × {picture.width} pixels, {MAX_PIXELS} at most")
            pixels = picture if picture.mode in DEPTHS else picture.convert("L")
            return np.asarray(pixels, np.float32) / np.float32(DEPTHS[pixels.mode])
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise BadPixels(f"{path}: no readable PNG ({type(error).__name__}): save it again") from error


def is_image_folder(root: Path) -> bool:
    """Whether the folder holds only class folders, at least two of them with pictures."""
    if not root.is_dir() or any(root.glob("*.dcm")):
        return False
    folders = _class_folders(root)
    return len(folders) >= 2 and not _may_be_patients(folders)


def _class_folders(root: Path) -> list[Path]:
    return [child for child in sorted(root.iterdir()) if child.is_dir() and _pictures(child)]


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)


def is_dicom(path: Path) -> bool:
    """Whether a picture's name says that it is DICOM."""
    return path.suffix.lower() == ".dcm"


def _may_be_patients(folders: list[Path]) -> bool:
    """Folders of DICOM files under other names than our classes: archives export one folder a patient."""
    named = {folder.name for folder in folders} <= set(CLASSES)
    return not named and any(is_dicom(path) for folder in folders for path in _pictures(folder))


def list_pictures(root: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Pictures and class names of a folder; our five class names keep their order, other names are sorted."""
    folders = _class_folders(root)
    names = [folder.name for folder in folders]
    if len(names) < 2:
        raise BadData(f"{root}: at least two class folders with .png or .dcm files are needed, {len(names)} found")
    if _may_be_patients(folders):
        raise BadData(f"{root}: folders with .dcm files must be named {', '.join(CLASSES)}; {names[0]!r} is not")
    classes = CLASSES if set(names) <= set(CLASSES) else tuple(names)
    return tuple(path for folder in folders for path in _pictures(folder)), classes


def open_folder(root: Path) -> ImageFolder:
    """A folder by class as a patch source; a file that cannot be read is named when it is asked for."""
    paths, classes = list_pictures(root)
    labels = np.array([classes.index(path.parent.name) for path in paths], np.int64)
    content = hashlib.sha256()
    for path in paths:
        content.update(f"{path.relative_to(root)}:".encode())
        content.update(_digest(path))
    return ImageFolder(paths, labels, classes, content.hexdigest(), _first_shape(paths, root))


def _digest(path: Path) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return b"cannot be read"


def _first_shape(paths: tuple[Path, ...], root: Path) -> tuple[int, int]:
    """H, W of the first picture that can be read."""
    for path in paths:
        try:
            height, width = read_picture(path).shape
        except BadData:
            continue
        return height, width
    raise BadData(f"{root}: none of its {len(paths)} pictures can be read; mammofed inspect gives the reasons")
