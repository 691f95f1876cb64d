"""Sources of inputs: folders of dumps, and any file that gcodec reads."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from ..dtypes import BY_NAME
from ..errors import GcodecError, InvalidArgument, Unsupported
from ..files import open_source, plan_file
from ..files.elements import stored_as
from ..files.safetensors import MAX_HEADER
from ..files.urls import is_url, name_at
from ..recorder import GRAD, PARAM, Dump, read_dump
from ..tensors import Values, values_of
from .inputs import GRADIENTS, LADDERS, PARAMETERS, STATE, Input, choices_of

MARK = b"gcodec-dump-"  #: in the header of every dump, whatever its version


def find_dumps(folder: Path) -> list[tuple[str, Dump]]:
    """Return (model, dump) for every dump in ``folder`` and its subfolders, which are named for their models, by step.

    The committed corpus's flat layout, ``MODEL-step-000020.safetensors``, is understood too.
    """
    dumps = []
    for path in sorted(folder.rglob("*step-*.safetensors")):
        model = path.name.partition("-step-")[0] if "-step-" in path.name else path.parent.name
        dumps.append((model, read_dump(path)))
    if not dumps:
        raise InvalidArgument(f"{folder} holds no dumps (step-000001.safetensors and so on)")
    return sorted(dumps, key=lambda pair: (pair[0], pair[1].step))


def read_file(path: str | Path, limit: int = 1 << 62) -> list[Input]:
    """Return the floating-point tensors of any file that gcodec reads, joined by kind of tensor (in a dump) and type.

    Args:
        path: The file, or a URL for fsspec.
        limit: Bytes of values to read; of a larger file the first part of every tensor, in proportion. A dump is read
            whole, then cut.

    Raises:
        InvalidArgument: There are none.
    """
    if (dump := _as_dump(path)) is not None:
        return [_shortened(part, limit) for part in _of_dump(dump, PurePath(name_at(path)).stem)]
    name = name_at(path)
    source = open_source(path)
    try:
        plan = plan_file(name, source)
        segments = {number: segment for number, segment in enumerate(plan.segments) if segment.dtype}
        share = min(1.0, limit / max(1, sum(segment.stop - segment.start for segment in segments.values())))
        parts: dict[str, list[np.ndarray]] = {}
        shapes: dict[str, list[tuple[int, ...]]] = {}
        columns = plan.columns()
        for number, segment in segments.items():
            if dtype := stored_as(segment.dtype or ""):
                width = BY_NAME[dtype].itemsize
                count = math.ceil((segment.stop - segment.start) // width * share)
                data = source.read(segment.start, segment.start + count * width)
                parts.setdefault(dtype, []).append(data.view(BY_NAME[dtype].uint))
                n_rows, rest = divmod(count, columns.get(number, 1))
                shapes.setdefault(dtype, []).extend([(n_rows, columns.get(number, 1)), (rest,)])
    finally:
        source.close()
    inputs = [
        Input(f"{name} {dtype}", dtype, np.concatenate(bits), shapes=tuple(shapes[dtype]))
        for dtype, bits in parts.items()
    ]
    inputs = [part for part in inputs if part.bits.size]
    if not inputs:
        raise InvalidArgument(f"{path}: no floating-point tensors to measure")
    return [replace(part, name=f"{part.name}, {100 * share:.2g} % of it") for part in inputs] if share < 1 else inputs


def _shortened(data: Input, limit: int) -> Input:
    """Return the first ``limit`` bytes of an input, named so."""
    if data.nbytes <= limit:
        return data
    count = max(1, limit // data.bits.itemsize)
    levels = {ladder: levels[:count] for ladder, levels in data.levels.items()}
    return replace(
        data, name=f"{data.name}, the first {limit / 1e6:.0f} MB", bits=data.bits[:count], levels=levels, shapes=()
    )


def _as_dump(path: str | Path) -> Dump | None:
    if not name_at(path).endswith(".safetensors") or (is_url(path) and not _has_mark(path)):
        return None
    try:
        return read_dump(path)
    except InvalidArgument:
        return None


def _has_mark(url: str | Path) -> bool:
    """Return True if the header of a file at a URL is that of a dump, which is copied here whole to be read."""
    with closing(open_source(url)) as source:
        size = int.from_bytes(source.read(0, min(8, source.size)).tobytes(), "little")
        return size <= MAX_HEADER and MARK in source.read(0, min(8 + size, source.size)).tobytes()


def _of_dump(dump: Dump, stem: str) -> list[Input]:
    """Gradients (with levels where the optimizer has a rule), parameters and state of a dump, each type apart."""
    inputs: list[Input] = []
    for group, kinds in ((GRADIENTS, (GRAD,)), (PARAMETERS, (PARAM,)), (STATE, dump.state_kinds)):
        by_type: dict[str, list[tuple[str, Any]]] = {}
        shapes: dict[str, list[tuple[int, ...]]] = {}
        for kind in kinds:
            for name in dump.names:
                if f"{kind}/{name}" in dump.keys and kind != "step":
                    values = _values_of(dump.tensor(f"{kind}/{name}"))
                    if values and values.bits.size:
                        by_type.setdefault(values.dtype.name, []).append((name, values.bits))
                        shapes.setdefault(values.dtype.name, []).append(values.shape)
        for dtype, parts in by_type.items():
            bits = np.concatenate([part for _, part in parts])
            levels = _levels_where_ruled(dump, dtype, parts) if group == GRADIENTS else {}
            inputs.append(
                Input(
                    f"{stem} {group} {dtype}", dtype, bits, levels, stem, dump.step, group, shapes=tuple(shapes[dtype])
                )
            )
    return inputs


def _levels_where_ruled(dump: Dump, dtype: str, parts: list[tuple[str, Any]]) -> dict[str, np.ndarray]:
    names, bits = [name for name, _ in parts], [part for _, part in parts]
    try:
        calls = {ladder: choices_of(dump, names, bits, dtype, ladder) for ladder in LADDERS}
        return {name: np.concatenate([call().reshape(-1) for call in of_ladder]) for name, of_ladder in calls.items()}
    except (Unsupported, InvalidArgument, KeyError):
        return {}


def _values_of(tensor: Any) -> Values | None:
    """Return a numpy array or torch tensor as bits; None if its type is not one of the codec's."""
    try:
        return values_of(tensor)
    except GcodecError:
        return None
