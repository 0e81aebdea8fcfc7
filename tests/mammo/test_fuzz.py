"""10,000 mutated files give a mammogram or a typed error, nothing else, in bounded memory and time each."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from pydicom.uid import JPEGBaseline8Bit

from mammo.deid import find_identity
from mammo.dicom import grey, mammogram_of, read_dataset, typed_errors
from mammo.errors import BadMammogram
from tests.mammo.files import LOSSLESS, LOSSY, breast, lut_item, save

CHUNKS, FILES = 20, 500
GROWTH_KB = 64_000  # that one file may ask for: tables of 2^16 entries, and a picture of some hundred pixels
HANGS = 120  # seconds: no file of this size takes one


def mutate(content: bytes, generator: np.random.Generator) -> bytes:
    """Overwrite, remove, repeat or cut some bytes; often in the header, where lengths and tags are."""
    changed = bytearray(content)
    for _ in range(int(generator.integers(1, 6))):
        reach = len(changed) if generator.random() < 0.4 else min(len(changed), 1500)
        at = int(generator.integers(132, max(133, reach)))
        size = int(generator.integers(1, 9))
        kind = generator.integers(4)
        if kind == 0:
            changed[at : at + size] = generator.bytes(size)
        elif kind == 1:
            changed[at : at + size] = bytes([generator.choice([0, 0xFF, 0x7F])]) * size
        elif kind == 2:
            del changed[at : at + size]
        elif generator.random() < 0.2:
            del changed[at:]
        else:
            changed[at:at] = changed[at : at + size * 8]
    return bytes(changed)


def sources(folder: Path) -> list[tuple[bytes, int | None]]:
    """Small files of every syntax, with LUTs, windows and padding; and of several frames, one of them named."""
    items = [lut_item(625, np.arange(2000), 12, "NORMAL")]
    tags = {"VOILUTSequence": items, "WindowCenter": [9, 8], "WindowWidth": [7, 6], "PixelPaddingValue": 0}
    found: list[tuple[bytes, int | None]] = []
    for syntax in (*LOSSLESS, *LOSSY):
        bits = 8 if syntax == JPEGBaseline8Bit else 12
        words = breast(24, 16, bits=bits).astype(np.uint8 if bits == 8 else np.uint16)
        for content, frame in ((words, None), (np.stack([words, words[::-1]]), 2)):
            found.append((save(folder / "a.dcm", content, syntax, bits, **tags).read_bytes(), frame))
    return found


class Hung(BaseException):
    """A file that takes for ever: no error of reading, so that nothing turns it into one."""


@contextmanager
def bounds() -> Iterator[None]:
    """Fail where what is done in it takes too much memory at any moment, or for ever."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = _peak_kb()
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
    assert _peak_kb() - before < GROWTH_KB


def _peak_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def _hung(number: int, frame: FrameType | None) -> None:
    raise Hung


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_mutated_files_give_typed_errors_only(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if chunk % 2:
        monkeypatch.setattr("mammo.dicom.LEFT_IN_FILE", 500)  # pixels are mapped, as those of large files are
    generator = np.random.default_rng(chunk)
    originals = sources(tmp_path)
    path = tmp_path / "mutated.dcm"
    previous = signal.signal(signal.SIGALRM, _hung)
    refused = 0
    for number in range(FILES):
        original, frame = originals[number % len(originals)]
        path.write_bytes(mutate(original, generator))
        with bounds():
            refused += not is_read(path, frame)
    signal.signal(signal.SIGALRM, previous)
    assert FILES // 10 < refused < FILES


def is_read(path: Path, frame: int | None) -> bool:
    """Whether a file becomes a mammogram; any other error than ours passes through."""
    try:
        with typed_errors(path):
            dataset = read_dataset(path)
            find_identity(dataset, path)
            mammogram = mammogram_of(dataset, frame)
        assert grey(mammogram).shape == mammogram.air.shape
    except BadMammogram:
        return False
    return True
