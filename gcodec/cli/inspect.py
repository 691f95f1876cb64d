"""``gcodec inspect``: what is in an archive, a frame or a tensor file, down to blocks and codebooks."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from ..archive import ArchiveReader
from ..archive.description import describe_file, tensor_bytes
from ..archive.layout import MAGIC as ARCHIVE_MAGIC
from ..archive.layout import VERSION
from ..errors import Unsupported, number_of
from ..files import FilePlan, FileSource, TensorView, open_source, plan_file
from . import UsageError, base_option, display
from .streams import STDIO

FRAME_MAGIC = b"\x89GCF"
COLUMNS = ("tensor", "dtype", "shape", "mode", ">size", ">stored", ">ratio", ">bits", "blocks", ">books")

EXAMPLES = """examples:
  gcodec inspect run.gc                          per tensor: mode, size, ratio, bits per value, blocks, codebooks
  gcodec inspect run.gc --chunks                 and every stored chunk with its offset
  gcodec inspect run.gc --json | jq              everything, for programs
  gcodec inspect dump.safetensors                what a file that is not compressed holds

The columns: size, what is stored of it, their ratio, stored bits per value, blocks by kind, number of codebooks.
Block kinds: constant (one value), raw (as it is), coded, predicted (from a row or from the base), sparse (what differs
from the base, or from zero), indexed (few values, or few multiples of scales). The modes "stored" and "zstd" mean that
no frame holds the tensor, as with integers and small tensors. Tensors that share bytes with one above show "shared". A
tensor's base is shown by the hash that an archive of the base has for it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="a .gc archive, a file with one frame, a tensor file, or -")
    add("--chunks", action="store_true", help="also list the chunks of every segment of an archive")
    add("--json", action="store_true", help="everything as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Shows all files; the exit code."""
    if args.files.count(STDIO) > 1:
        raise UsageError("standard input (-) can be read only once")
    results = []
    for name in args.files:
        with closing(open_source(display.stdin_bytes() if name == STDIO else name)) as source:
            results.append(_inspect(name, source))
        if not args.json:
            _show(results[-1], args.chunks)
    if args.json:
        display.print_json(results)
    elif sum(len(result.get("files", [result])) for result in results) > 1:
        display.show(f"total: {_total(results)}")
    return 0


def _total(results: list[dict[str, Any]]) -> str:
    """Return the last line: what there is of each kind, and its sizes."""
    archives, frames, files = (
        [result for result in results if result["kind"] == kind] for kind in ("archive", "frame", "file")
    )
    told = [display.archives_line(archives)] if archives else []
    for what, found in (("frame", frames), ("tensor file", files)):
        if found:
            told.append(f"{number_of(len(found), what)}, {display.size(sum(row['bytes'] for row in found))}")
    return "; ".join(told) + (", not compressed" if files else "")


def _inspect(name: str, source: FileSource) -> dict[str, Any]:
    head = source.read(0, min(4, source.size)).tobytes()
    if head == ARCHIVE_MAGIC:
        with ArchiveReader(source) as archive:
            files = [describe_file(archive, entry) for entry in archive.files]
            return {"name": name, "kind": "archive", "version": VERSION, "bytes": archive.size, "files": files}
    if head == FRAME_MAGIC:
        from .. import codec

        info = codec.inspect(source.read(0, source.size).data).as_dict()
        return {"name": name, "kind": "frame", "bytes": source.size, **info}
    with closing(plan_file("" if name == STDIO else name, source)) as plan:
        if plan.format == "bytes":
            reason = f" ({plan.note.removeprefix('kept as plain bytes: ')})" if plan.note else ""
            raise Unsupported(f"{name}: neither an archive, nor a frame, nor a tensor file{reason}")
        rows = [(v.name, v.dtype, list(v.shape), _bytes_in_file(plan, v)) for v in plan.tensors]
        tensors = [dict(zip(("name", "dtype", "shape", "bytes"), row, strict=True)) for row in rows]
        row = {"name": name, "kind": "file", "format": plan.format, "bytes": source.size, "metadata": plan.metadata}
        return {**row, "note": plan.note, "tensors": tensors}


def _bytes_in_file(plan: FilePlan, view: TensorView) -> int | None:
    """Return the bytes of a tensor; those of its blocks if it is of quantized weights in a ``.gguf`` file."""
    segment = plan.segments[view.segment]
    return segment.stop - segment.start if plan.format == "gguf" else tensor_bytes(view)


def _show(result: dict[str, Any], chunks: bool) -> None:
    if result["kind"] == "archive":
        count = len(result["files"])
        size = display.size(result["bytes"])
        display.show(display.titled(result["name"], f"archive version {VERSION}, {number_of(count, 'file')}, {size}"))
        for file in result["files"]:
            _show_file(file, chunks)
    elif result["kind"] == "frame":
        display.show(display.titled(result["name"], f"frame, {display.size(result['bytes'])}"))
        for key in ("dtype", "shape", "mode", "container", "n_values", "n_blocks", "block_values", "stream_values"):
            display.show(display.cut_end(f"  {key:16}  {result[key]}"))
        books = "codebooks", "change_codebooks", "dictionaries"
        for key in ("levels", "planes", "kinds", *books, "prelude_bytes", "ratio", "bits_per_value"):
            display.show(display.cut_end(f"  {key:16}  {result[key]}"))
    else:
        size = f"{result['format']} file, {display.size(result['bytes'])}, not compressed"
        display.show(display.titled(result["name"], size))
        _show_metadata(result["metadata"])
        rows = [(t["name"], t["dtype"], _shape(t), _size(t["bytes"])) for t in result["tensors"]]
        display.print_table(("tensor", "dtype", "shape", ">size"), rows, indent=2)


def _show_file(file: dict[str, Any], chunks: bool) -> None:
    display.show(display.file_line(file))
    _show_metadata(file["metadata"])
    for line in base_option.against_lines(file):
        display.show(display.cut_end(f"  {line}"))
    if file["tensors"]:
        names = (*COLUMNS, "base") if "base" in file else COLUMNS
        tensors = [_row(tensor, file["segments"])[: len(names)] for tensor in file["tensors"]]
        display.print_table(names, tensors, indent=2)
    if chunks:
        rows = [_chunk_row(segment["name"], chunk) for segment in file["segments"] for chunk in segment["chunks"]]
        columns = ("chunk of", ">at byte", "codec", ">size", ">stored", ">blocks", "levels", "planes", "codebooks")
        display.print_table(columns, rows, indent=2)


def _show_metadata(metadata: dict[str, str]) -> None:
    for key, value in metadata.items():
        display.show(display.cut_end(f"  {key} = {value}"))


def _row(tensor: dict[str, Any], segments: list[dict[str, Any]]) -> tuple[str, ...]:
    segment = segments[tensor["segment"]]
    first = tensor["name"], tensor["dtype"], _shape(tensor)
    if "shares" in tensor:
        return (*first, f"shared: {tensor['shares']}", _size(tensor["bytes"]), "", "", "", "", "", "")
    if "same" in segment:
        return (*first, f"same as {segment['same']}", _size(tensor["bytes"]), "", "", "", "", "", "")
    if "group" in tensor:
        size, taken = tensor["bytes"], tensor["stored_bytes"]
        shares = _size(size), display.size(taken), display.ratio(size, taken)
        return (*first, f"group: {tensor['group']}", *shares, "", "", "", "")
    bits = "-" if segment["bits_per_value"] is None else f"{segment['bits_per_value']:.2f}"
    stored = display.size(segment["stored_bytes"])
    ratio = display.ratio(segment["bytes"], segment["stored_bytes"])
    kinds = " ".join(f"{count} {kind}" for kind, count in segment["kinds"].items() if count)
    books = str(segment["codebooks"]) if segment["kinds"] else ""
    sizes = display.size(segment["bytes"]), stored, ratio, bits
    modes = f"cast of {segment['cast']}" if "cast" in segment else " ".join(segment["modes"])
    return (*first, modes, *sizes, kinds, books, segment.get("base", ""))


def _chunk_row(name: str, chunk: dict[str, Any]) -> tuple[str, ...]:
    frame = chunk.get("frame")
    sizes = str(chunk["offset"]), chunk["codec"], display.size(chunk["bytes"]), display.size(chunk["stored_bytes"])
    if frame is None:
        return (name, *sizes, "", "", "", "")
    levels, planes = ("/".join(str(number) for number in frame[key]) for key in ("levels", "planes"))
    books = " ".join(f"{symbols}@{longest}" for symbols, longest in frame["codebooks"])
    return (name, *sizes, str(frame["n_blocks"]), levels, planes, books)


def _shape(tensor: dict[str, Any]) -> str:
    return "x".join(str(n) for n in tensor["shape"]) or "scalar"


def _size(count: int | None) -> str:
    return "?" if count is None else display.size(count)
