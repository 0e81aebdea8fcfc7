"""A state or update ↔ bytes: safetensors with the plain fields as JSON in its header; nothing is ever pickled.

The format is written here, since the library takes ten times as long over it, and read by the library: eight
bytes with the header's length, the header as JSON, then the tensors' bytes without gaps.
"""

import json
from dataclasses import fields
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch

from fl_core.roles import Tensors
from fl_core.state import ServerState, SiteState, Update
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
    for name, tensor in sorted(tensors.items()):
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        buffers.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *buffers]


def unpack(kind: type[State], data: bytes) -> State:
    """The reverse of `pack`."""
    try:
        values: dict[str, Any] = json.loads(header(data)["__metadata__"]["fields"])
        tensors = safetensors.torch.load(data)
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise BadData(f"{len(data)} bytes that are no packed {kind.__name__} ({error})") from error
    groups: dict[str, Any] = {field.name: {} for field in fields(kind) if field.name not in values}
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    try:
        return kind(**values, **groups)
    except TypeError as error:
        raise BadData(f"{len(data)} bytes with other fields than {kind.__name__} has ({error})") from error


def header(data: bytes) -> dict[str, Any]:
    """The JSON header of safetensors."""
    size = int.from_bytes(data[:8], "little")
    found: dict[str, Any] = json.loads(data[8 : 8 + size])
    return found
