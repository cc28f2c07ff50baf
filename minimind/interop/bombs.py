"""Weight files of strangers: small on the disk and huge in memory. What they declare is compared with what is there.

Contract. ``refuse_bombs`` comes before ``torch.load``: torch inflates a compressed member to whatever it becomes, and
calls what the pickle names among torch's harmless globals, ``bytearray(10**10)`` too. A file that ``torch.save`` wrote
stores its members as they are, so anything else is refused; of the globals those of plain tensors and settings are
let through. ``refuse_misfits`` comes after it: a tensor may be a view whose strides repeat one number 10**12 times, be
sparse, quantized or of whole numbers, and many names may share one storage, which every copy then takes apart.

Known weakness: an honest file of many gigabytes is not small, and is read.
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from minimind.base.errors import UserError
from minimind.base.strict.json_text import brief

_PICKLE_BYTES = 64 << 20  # names, shapes and settings; ten thousand tensors take about three MiB
_MEMBERS = 200_000
_LEGACY_PICKLES = 4  # before torch 1.6, and DeepSpeed without "zipfile_serialization": magic, version, system, content
_GLOBALS = re.compile(
    r"collections (OrderedDict|Counter)"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter)"
    r"|torch(\.storage)? \w+Storage"
    r"|torch (Size|device|bfloat16|(float|u?int|complex)\d+|bool|float8\w+)"
    r"|torch\.serialization _get_layout"
    r"|torch\.nn\.parameter Parameter"
    r"|(builtins|__builtin__) (set|complex)"
    r"|_codecs encode"
)

_LARGEST_TUPLE = 10_000  # a tensor's arguments are about twenty
_TO_MARK = ("TUPLE", "APPENDS", "SETITEMS")
_POPS = {
    "TUPLE1": 1,
    "TUPLE2": 2,
    "TUPLE3": 3,
    "REDUCE": 2,
    "NEWOBJ": 2,
    "BINPERSID": 1,
    "BUILD": 1,
    "APPEND": 1,
    "SETITEM": 2,
}


def refuse_bombs(path: Path) -> None:
    """Raises ValueError with the reason for a file that ``torch.load`` must not see; OSError as it comes."""
    if not path.is_file():
        raise ValueError("not a regular file")
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            for _ in range(_LEGACY_PICKLES):
                _refuse_globals(file)
        return
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        _refuse_members(members, path.stat().st_size)
        for member in members:
            if member.filename.endswith("data.pkl"):
                with archive.open(member) as file:
                    _refuse_globals(file)


def _refuse_members(members: list[zipfile.ZipInfo], there: int) -> None:
    if len(members) > _MEMBERS:
        raise ValueError(f"{len(members):,} members in its archive")
    packed = next((m for m in members if m.compress_type != zipfile.ZIP_STORED or m.file_size != m.compress_size), None)
    if packed is not None:
        raise ValueError(f"its member {brief(packed.filename)} is compressed, torch.save compresses none")
    if sum(member.file_size for member in members) > there:
        raise ValueError("its members declare more bytes than the file has")
    if any(m.filename.endswith("data.pkl") and m.file_size > _PICKLE_BYTES for m in members):
        raise ValueError(f"its pickle is larger than {_PICKLE_BYTES >> 20} MiB")


def _refuse_globals(file: IO[bytes]) -> None:
    """ValueError for a pickle that names what plain tensors don't need, or keys that take for ever to hash."""
    nesting = _Nesting()
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name == "GLOBAL" and not _GLOBALS.fullmatch(str(argument)):
            raise ValueError(f"it names {brief(argument)}, which weights don't need: torch would call it")
        nesting.take(opcode.name, argument)


class _Nesting:
    """Follows a pickle's stack to know how many values each tuple holds, with those inside those inside it.

    Forty tuples, each twice in the next, are a few hundred bytes, and a hash that takes for ever (a dictionary's key).
    """

    def __init__(self) -> None:
        self._levels: list[list[int]] = [[]]  # values on the stack as their number of values; one list a mark
        self._memo: dict[Any, int] = {}

    def take(self, name: str, argument: Any) -> None:
        """One opcode. Raises ValueError for a tuple that is too large."""
        top = self._levels[-1]
        if name == "MARK":
            self._levels.append([])
        elif name in _TO_MARK:
            items = self._levels.pop() if len(self._levels) > 1 else []
            if name == "TUPLE":
                self._push(1 + sum(items))
        elif name in _POPS:
            items = [top.pop() for _ in range(_POPS[name]) if top]
            if name not in ("BUILD", "APPEND", "SETITEM"):
                self._push(1 + sum(items) if name.startswith("TUPLE") else 1)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = top[-1] if top else 1
        elif name not in ("PROTO", "STOP"):
            self._push(self._memo.get(argument, 1) if name in ("BINGET", "LONG_BINGET") else 1)

    def _push(self, values: int) -> None:
        if values > _LARGEST_TUPLE:
            raise ValueError(f"one of its tuples holds more than {_LARGEST_TUPLE:,} values")
        self._levels[-1].append(values)


def refuse_misfits(state: Mapping[str, Any], source: Path) -> None:
    """UserError for weights that are no plain dense numbers, or more of them than their storages and files hold."""
    held: dict[int, int] = {}
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise UserError(f"{source}: {brief(name)} is a {type(value).__name__}, not a tensor by its name")
        if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized or value.is_nested:
            raise UserError(f"{source}: {brief(name)} is not a plain dense tensor")
        if not value.is_floating_point() or not 1 <= value.element_size() <= 8:
            raise UserError(f"{source}: {brief(name)} holds {value.dtype}, not floating-point numbers")
        storage = value.untyped_storage()
        if value.numel() * value.element_size() > storage.nbytes():
            raise UserError(
                f"{source}: {brief(name)} declares {tuple(value.shape)}, more numbers than the file holds for it"
            )
        held[storage.data_ptr()] = storage.nbytes()
    declared = sum(value.numel() * value.element_size() for value in state.values())
    there = sum(held.values())
    if declared > 2 * there:  # twice: a tied projection stands under both names
        raise UserError(f"{source}: its names declare {declared:,} bytes of weights, the file holds {there:,}")
