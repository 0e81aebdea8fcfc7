"""A state or update ↔ bytes: safetensors with the plain fields as JSON in its header; nothing is ever pickled.

The format is written here, since the library takes ten times as long over it, and read by the library, save from
files, where it takes twice as long: eight bytes with the header's length, the header as JSON, then the tensors'
bytes without gaps, wide numbers first: so each lies at a multiple of its width, and can be used where it lies.
"""

import json
import math
import mmap
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fl_core.roles import Tensors
from fl_core.state import ServerState, SiteState, Update, byte_size
from mammofed.errors import BadData

State = TypeVar("State", ServerState, SiteState, Update)
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
NAMED = {name: dtype for dtype, name in DTYPES.items()}


def pack(state: ServerState | SiteState | Update) -> bytes:
    """One self-describing byte string; the same state always gives the same bytes."""
    return b"".join(packed_parts(state))


def packed_parts(state: ServerState | SiteState | Update) -> list[bytes | memoryview]:
    """The parts of that byte string: to write or hash them in turn spares a copy of the whole."""
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    groups = {name: value for name, value in values.items() if isinstance(value, dict)}
    plain = {name: value for name, value in values.items() if name not in groups}
    tensors = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
    return tensor_parts(tensors, {"fields": json.dumps(plain)})


def tensor_parts(tensors: Tensors, metadata: dict[str, str]) -> list[bytes | memoryview]:
    """Tensors on the CPU as safetensors, in parts."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    buffers, end = [], 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        flat = tensor.reshape(-1) if tensor.numel() else tensor.new_empty(0)  # numpy's empty arrays have no stride
        buffers.append(flat.view(torch.uint8).numpy().data)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *buffers]


def unpack(kind: type[State], data: bytes) -> State:
    """The reverse of `pack`."""
    try:
        values: dict[str, Any] = json.loads(header(data)["__metadata__"]["fields"])
        tensors = safetensors.torch.load(data)
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise BadData(f"{len(data)} bytes that are no packed {kind.__name__} ({error})") from error
    return assembled(kind, values, tensors)


def unpack_file(kind: type[State], path: Path) -> State:
    """The same from a file, which is mapped and not copied: it may be renamed or deleted, but not written to."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise BadData(f"{path.name} is no packed {kind.__name__} ({error})") from error
    return unpack_in_place(kind, mapped)


def unpack_in_place(kind: type[State], mapped: mmap.mmap) -> State:
    """The same from memory, which nobody may write to any more."""
    try:
        entries = header(mapped)
        values: dict[str, Any] = json.loads(entries.pop("__metadata__")["fields"])
        start = 8 + int.from_bytes(mapped[:8], "little")
        tensors = {name: tensor_at(mapped, start, **entry) for name, entry in entries.items()}
        if start + byte_size(tensors) != len(mapped):
            raise ValueError(f"{len(mapped)} bytes, {start + byte_size(tensors)} announced")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise BadData(f"{len(mapped)} bytes that are no packed {kind.__name__} ({error})") from error
    return assembled(kind, values, tensors)


def tensor_at(mapped: mmap.mmap, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    """The tensor of a header's entry, where it lies; the entry may lie."""
    number = NAMED[dtype]
    first, end = data_offsets
    if not all(type(value) is int and value >= 0 for value in (*shape, first, end)):
        raise ValueError(f"shape {shape} at {data_offsets}")
    count = math.prod(shape)
    if end - first != count * number.itemsize or start + end > len(mapped):
        raise ValueError(f"{dtype} of shape {shape} at {data_offsets} of {len(mapped) - start} bytes")
    if not count:
        return torch.empty(shape, dtype=number)
    return torch.frombuffer(mapped, dtype=number, count=count, offset=start + first).reshape(shape)


def assembled(kind: type[State], values: dict[str, Any], tensors: Tensors) -> State:
    """A state of plain fields, and of tensors by group and name."""
    if not isinstance(values, dict):
        raise BadData(f"plain fields of {kind.__name__} that have no names")
    groups: dict[str, Any] = {field.name: {} for field in fields(kind) if field.name not in values}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    try:
        return kind(**values, **groups)
    except TypeError as error:
        raise BadData(f"other fields than {kind.__name__} has ({error})") from error


def header(data: bytes | mmap.mmap) -> dict[str, Any]:
    """The JSON header of safetensors."""
    size = int.from_bytes(data[:8], "little")
    found: dict[str, Any] = json.loads(data[8 : 8 + size])
    return found
