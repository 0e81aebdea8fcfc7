"""A state or update ↔ bytes: safetensors with the plain fields as JSON in its header; nothing is ever pickled."""

import json
from dataclasses import fields
from typing import Any, TypeVar

import safetensors.torch

from fl_core.state import ServerState, SiteState, Update
from mammofed.errors import BadData

State = TypeVar("State", ServerState, SiteState, Update)


def pack(state: ServerState | SiteState | Update) -> bytes:
    """One self-describing byte string; the same state always gives the same bytes."""
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    groups = {name: value for name, value in values.items() if isinstance(value, dict)}
    plain = {name: value for name, value in values.items() if name not in groups}
    tensors = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
    data: bytes = safetensors.torch.save(tensors, metadata={"fields": json.dumps(plain)})
    return data


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
    """The JSON header of safetensors: its length in eight bytes, then itself."""
    size = int.from_bytes(data[:8], "little")
    found: dict[str, Any] = json.loads(data[8 : 8 + size])
    return found
