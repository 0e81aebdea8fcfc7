"""10,000 mutated files give a mammogram or a typed error, nothing else, in bounded memory."""

import resource
from pathlib import Path

import numpy as np
import pytest

from mammo.deid import find_identity
from mammo.dicom import grey, mammogram_of, read_dataset, typed_errors
from mammo.errors import BadMammogram
from tests.mammo.files import LOSSLESS, LOSSY, breast, lut_item, save

SYNTAXES = (*LOSSLESS, *LOSSY[1:])
CHUNKS, FILES = 20, 500
GROWTH_KB = 400_000  # of this process over all files of a chunk


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


def sources(folder: Path) -> list[bytes]:
    """Small files of every syntax, with LUTs, windows and padding."""
    items = [lut_item(625, np.arange(2000), 12, "NORMAL")]
    tags = {"VOILUTSequence": items, "WindowCenter": [9, 8], "WindowWidth": [7, 6], "PixelPaddingValue": 0}
    words = breast(24, 16)
    saved = (save(folder / "a.dcm", words, syntax, 12, **tags) for syntax in SYNTAXES)
    return [path.read_bytes() for path in saved]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_mutated_files_give_typed_errors_only(chunk: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(chunk)
    originals = sources(tmp_path)
    path = tmp_path / "mutated.dcm"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for number in range(FILES):
        path.write_bytes(mutate(originals[number % len(originals)], generator))
        try:
            with typed_errors(path):
                dataset = read_dataset(path)
                find_identity(dataset, path)
                mammogram = mammogram_of(dataset)
            assert grey(mammogram).shape == mammogram.air.shape
        except BadMammogram:
            refused += 1
    assert refused > FILES // 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KB
