"""Writes ``tests/golden`` and ``tests/golden-invalid``: ``make golden``, or ``python -m tests.support.make_golden``.

* ``golden/sizes.csv``: the exact size of the recorded corpus in every mode. Written each time: run this after a change
  of the encoder that was meant to change sizes, look at what it prints, and commit the file with the change.
* ``golden/*.frame`` and ``manifest.json``: frames that must decode forever. Those that exist are left alone, whatever
  today's encoder would write; what is missing is added.
* ``golden-invalid/*.frame`` and ``manifest.json``: frames that must be refused forever, with the kind of refusal.
* ``*.base`` in both: the values, little-endian, that some frames were encoded against. Frames share them; the manifest
  says which.

Version 1 of the format is frozen: what is in these folders stays as it is (docs/format.md, section 14).
"""

from __future__ import annotations

import argparse
import csv
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import gcodec
from gcodec import LITERAL_GCOMP, PAPER_LADDER
from gcodec.format import modes as bit_layouts
from gcodec.format import shipped
from gcodec.truncation.optimizers import levels_for, view_from_dump
from tests.support import reference
from tests.support.base_pairs import stepped
from tests.support.bit_patterns import (
    KINDS,
    Bits,
    block_of,
    from_floats,
    gaussian,
    infinity,
    multiples,
    noise,
    pieces,
    scaled,
    specials,
    typed,
)
from tests.support.encode_modes import Mode, promised
from tests.support.encode_modes import modes as modes_of
from tests.support.frame_builder import (
    SPOILERS,
    USUAL_PLANES,
    BlockWriter,
    Built,
    Coded,
    Draft,
    Entries,
    Indexed,
    Inline,
    Mutation,
    Sparse,
    build_frame,
    by_id,
    indexed_spoilers,
    mutations,
)
from tests.support.frame_builder.sparse import NO_TEMPLATE
from tests.support.laws import SHIPPED
from tests.support.paths import CORPUS, GOLDEN, GOLDEN_INVALID

SIZES = GOLDEN / "sizes.csv"


# ------------------------------------------------------------------------------------------------ Sizes of the corpus


@dataclass(frozen=True)
class Size:
    """A row of ``sizes.csv``: what all tensors of one group of a dump take in one mode.

    ``digest``: of the frames, so that any change of a byte shows, and any difference between machines.
    """

    dump: str
    group: str
    mode: str
    tensors: int
    values: int
    input_bytes: int
    frame_bytes: int
    digest: str


@dataclass(frozen=True)
class Dump:
    """A recorded step: tensors by group ("grad", "param", a key of the optimizer's state) and name."""

    name: str
    optimizer: str
    hyper: dict[str, dict[str, Any]]
    groups: dict[str, dict[str, np.ndarray]]

    @classmethod
    def read(cls, path: Path) -> Dump:
        """Read a file of ``tests/corpus`` (docs/recording.md)."""
        from safetensors import safe_open  # which a machine with a GPU may lack

        groups: dict[str, dict[str, np.ndarray]] = {}
        with safe_open(path, "np") as dump:
            metadata = dump.metadata()
            for key in sorted(dump.keys()):
                group, name = key.split("/", 1)
                groups.setdefault(group, {})[name] = dump.get_tensor(key)
        hyper = {name: row for row in json.loads(metadata["groups"]) for name in row["params"]}
        return cls(path.stem, metadata["optimizer"], hyper, groups)

    def levels(self, name: str, ladder: gcodec.Ladder | None = None) -> np.ndarray:
        """Levels of a gradient by the optimizer's rule."""
        state = {group: tensors[name] for group, tensors in self.groups.items() if name in tensors}
        known = view_from_dump(self.optimizer, self.hyper[name], state)
        return levels_for(known, self.groups["param"][name], self.groups["grad"][name], ladder=ladder)


def as_bfloat16(x: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16 values."""
    return from_floats(KINDS["bfloat16"], x)


#: (name, frame of one tensor); the near-lossless ones are for gradients.
ANY_GROUP: dict[str, Callable[[np.ndarray], bytes]] = {
    "float32 lossless": gcodec.encode,
    "float32 lossless, GComp's code": lambda x: gcodec.encode(x, options=LITERAL_GCOMP),
    "float32, 9 mantissa bits": lambda x: gcodec.encode(x, mantissa_bits=9),
    "bfloat16 lossless": lambda x: gcodec.encode(as_bfloat16(x), dtype="bfloat16"),
    "bfloat16, 3 mantissa bits": lambda x: gcodec.encode(as_bfloat16(x), dtype="bfloat16", mantissa_bits=3),
    "float16 lossless": lambda x: gcodec.encode(from_floats(KINDS["float16"], x).view(np.float16)),
    "float64 lossless": lambda x: gcodec.encode(x.astype(np.float64)),
    "float8_e5m2 lossless": lambda x: gcodec.encode(from_floats(KINDS["float8_e5m2"], x), dtype="float8_e5m2"),
}
BY_LEVEL: dict[str, tuple[gcodec.Ladder | None, dict[str, Any]]] = {
    "float32 near-lossless": (None, {}),
    "float32 near-lossless, GComp": (PAPER_LADDER["float32"], {"options": LITERAL_GCOMP, "rounding": "truncate"}),
}


def measured_sizes() -> Iterator[Size]:
    """All rows, in the order of the file."""
    for path in sorted(CORPUS.glob("*.safetensors")):
        dump = Dump.read(path)
        for group, tensors in sorted(dump.groups.items()):
            if group == "step":
                continue
            for mode, encode in ANY_GROUP.items():
                yield measured(dump.name, group, mode, tensors, [encode(x) for x in tensors.values()])
            for mode, (ladder, options) in BY_LEVEL.items():
                if group == "grad":
                    frames = [
                        gcodec.encode(x, levels=dump.levels(name, ladder), ladder=ladder, **options)
                        for name, x in tensors.items()
                    ]
                    yield measured(dump.name, group, mode, tensors, frames)


def measured(dump: str, group: str, mode: str, tensors: dict[str, np.ndarray], frames: list[bytes]) -> Size:
    """One row."""
    values = sum(x.size for x in tensors.values())
    itemsize = KINDS[mode.split()[0].rstrip(",")].W // 8
    digest = hashlib.sha256(b"".join(frames)).hexdigest()[:16]
    return Size(dump, group, mode, len(tensors), values, values * itemsize, sum(map(len, frames)), digest)


def committed_sizes() -> list[Size]:
    """The rows of ``sizes.csv``, none if there is no such file."""
    if not SIZES.exists():
        return []
    numbers = ("tensors", "values", "input_bytes", "frame_bytes")
    with SIZES.open(newline="", encoding="utf-8") as file:
        return [
            Size(**{key: int(cell) if key in numbers else cell for key, cell in row.items()})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        ]


def difference(old: list[Size], new: list[Size]) -> str:
    """What has changed from one list of sizes to another, for people; empty if nothing has."""
    before = {(row.dump, row.group, row.mode): row for row in old}
    after = {(row.dump, row.group, row.mode): row for row in new}
    lines = []
    for key in before.keys() | after.keys():
        a, b = before.get(key), after.get(key)
        if a is None or b is None:
            lines.append(f"{', '.join(key)}: {'gone' if b is None else f'new, {b.frame_bytes} bytes'}")
        elif a != b:
            change = f"{a.frame_bytes} -> {b.frame_bytes} bytes ({b.frame_bytes / a.frame_bytes - 1:+.3%})"
            lines.append(f"{', '.join(key)}: {change if a.frame_bytes != b.frame_bytes else 'same size, other bytes'}")
    shared = before.keys() & after.keys()
    if lines and shared:
        was, now = (sum(rows[key].frame_bytes for key in shared) for rows in (before, after))
        lines.append(f"in all: {was} -> {now} bytes ({now / was - 1:+.3%})")
    return "\n".join(sorted(lines))


def write_sizes() -> None:
    """Measure, print what has changed, and write ``sizes.csv``."""
    rows = list(measured_sizes())
    print(difference(committed_sizes(), rows) or "sizes.csv: no change")
    with SIZES.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Size.__dataclass_fields__)
        writer.writerows(tuple(vars(row).values()) for row in rows)


# ----------------------------------------------------------------------------------------------------- Golden frames


def golden_frames() -> Iterator[tuple[str, Built]]:
    """Names and frames: dtype x mode x kind of block by the encoder, then frames that only the page makes valid."""
    for dtype, kind in KINDS.items():
        rng = np.random.default_rng(kind.W + kind.M)
        for mode in modes_of(dtype):
            yield slug(dtype, mode.name, "coded"), encoded(dtype, golden_values(dtype, rng, 700), mode)
        lossless = modes_of(dtype)[0]
        for content, bits in {
            "constant": np.full(300, specials(kind)[8], kind.container),
            "zeros": np.zeros(block_of(kind) + 3, kind.container),
            "raw": noise(kind, rng, 150),
            "corners": specials(kind),
            "empty": np.zeros((2, 0, 3), kind.container),
            "0-d": specials(kind)[7].reshape(()),
            "3-d": gaussian(kind, rng, 90).reshape(3, 5, 6),
            "two-blocks": pieces(np.zeros(block_of(kind), kind.container), golden_values(dtype, rng, 300)),
            "references": golden_rows(dtype, rng),
        }.items():
            yield slug(dtype, content), encoded(dtype, bits, lossless)
        if kind.predicted:
            rows = golden_multiples(dtype, rng)
            yield slug(dtype, "template"), encoded(dtype, rows, lossless)
            base = golden_values(dtype, rng, 700)
            near = stepped(kind, base, rng.integers(-20, 21, 700))
            near[::50], near[::90], near[5:400:7] = noise(kind, rng, 14), specials(kind)[:8], base[5:400:7]
            yield slug(dtype, "base"), encoded(dtype, near, lossless, base)
            yield slug(dtype, "base-equal"), encoded(dtype, base, lossless, base)
            special = specials(kind)
            against, among = np.repeat(special, len(special)), np.tile(special, len(special))
            yield slug(dtype, "base-corners"), encoded(dtype, pieces(near, among), lossless, pieces(base, against))
        yield from encoded_sparse(dtype)
        if kind.T:
            by_name = {mode.name: mode for mode in modes_of(dtype)}
            columns = scaled(kind, np.random.default_rng(kind.M), (130, 66))
            columns[70:80], columns[:, 9] = 0, 0
            if kind.W < 64:  # of float64 one is so far from the others that no column seems to matter
                columns[3, 8] = infinity(kind)
            # Long enough for the encoder to look at; of wide types with few bits each, which is all that differs.
            for mode in (lossless,) if kind.W == 16 else (by_name["1 mantissa bit"],):
                yield slug(dtype, "columns"), encoded(dtype, columns, mode)
        if dtype in ("float32", "bfloat16"):
            uniform = from_floats(kind, np.random.default_rng(kind.M).uniform(-0.75, 0.75, 4100))
            uniform[:300], uniform[700:1800:100] = 0, specials(kind)[:11]
            yield slug(dtype, "wide-head"), encoded(dtype, uniform, lossless)
        if dtype in ("float32", "bfloat16", "float16"):
            skew = from_floats(kind, np.random.default_rng(kind.M).normal(0.3, 0.4, 4100))
            skew[:300], skew[700:1800:100] = 0, specials(kind)[:11]
            yield slug(dtype, "sign-in-head"), encoded(dtype, skew, lossless)
    for number, types, n_levels, _, record in shipped.RECORDS:
        yield f"shipped-{number}", naming(number, types[0], n_levels, bytes.fromhex(record))
    kind, rng = KINDS["bfloat16"], np.random.default_rng(44)
    for rate in (3e-6, 1e-5):  # each names a shipped codebook of changes, of different shapes
        before = rng.normal(0, 0.05, 600)
        bits = [from_floats(kind, weights) for weights in (before, before + rng.normal(0, rate, 600).clip(-rate, rate))]
        yield f"shipped-changes-{rate:g}", encoded("bfloat16", bits[1], modes_of("bfloat16")[0], bits[0])
    for seed in range(40):
        yield (
            f"hand-made-{seed:02}",
            build_frame(
                Random(f"golden {seed}"),
                n_values=[None, 200, 90][seed % 3],
                named=seed % 4 == 0,
                spare_bits=seed % 5 == 0,
            ),
        )
    for code in with_tail():
        for number, levels in enumerate(USUAL_PLANES[reference.DTYPES[code].T]):
            yield (
                f"hand-made-{code}-planes-{number}",
                build_frame(
                    Random(f"golden {code} {number}"),
                    dtype=code,
                    n_values=600,
                    block_log2=10,
                    n_codebooks=1,
                    levels=levels,
                    kinds=["coded"],
                    with_columns=number % 2 == 0,
                ),
            )
        yield f"hand-made-{code}-columns", columns_frame(code)
    yield from every_cell()
    for seed in range(24):
        yield f"hand-made-sparse-{seed:02}", sparse_frame(seed)
    for name in INDEXED:
        yield f"hand-made-{slug('indexed', name)}", indexed_frame(name)
    sixteen = [(drop, 16 | 15 - drop) for drop in range(16)]
    yield (
        "hand-made-1-levels-16",
        build_frame(
            Random("sixteen levels"),
            dtype=1,
            n_values=600,
            block_log2=10,
            levels=([1, 2, 4, 8, 9], sixteen),
            n_codebooks=1,
            kinds=["coded"],
        ),
    )
    yield from device_frames()
    x = np.linspace(-1, 1, 120, dtype=np.float32)
    draft = Draft.of(gcodec.encode(x), SHIPPED)
    yield "float32-of-torch", Built(replace(draft, container=1).seal(), x.view(np.uint32), dict(SHIPPED))


def encoded_sparse(dtype: str) -> Iterator[tuple[str, Built]]:
    """Frames of the encoder's in which little differs from a base, or from zero."""
    kind, rng = KINDS[dtype], np.random.default_rng(KINDS[dtype].M)
    base, special = golden_values(dtype, rng, 1200), specials(kind)
    near = base.copy()
    where = rng.choice(1200, 60, replace=False)
    near[where[:50]] = stepped(kind, near[where[:50]], rng.integers(-3, 4, 50))
    near[where[50:]] = noise(kind, rng, 10)
    few = np.zeros(1200, kind.container)
    few[where] = near[where]
    few[where[: len(special)]] = special[: len(where)]
    modes = {mode.name: mode for mode in modes_of(dtype)}
    yield slug(dtype, "sparse base"), encoded(dtype, near, modes["lossless"], base)
    yield (
        slug(dtype, "sparse base of every magnitude"),
        encoded(dtype, pieces(base, special), modes["lossless"], pieces(base, np.roll(special, 1))),
    )
    for name in ("lossless", "half the mantissa", "fine ladder"):
        if name in modes:
            yield slug(dtype, "sparse zeros", name), encoded(dtype, few, modes[name])


#: Kinds of block as the table of cells has them; predicted and sparse ones by what they are predicted from.
CELLS: dict[str, reference.BlockKind] = {
    "constant": "constant",
    "raw": "raw",
    "coded": "coded",
    "template": "predicted",
    "base": "predicted",
    "sparse-zeros": "sparse",
    "sparse-base": "sparse",
}


def cells() -> Iterator[tuple[int, int, str]]:
    """(code of the type, mode, kind of block): all that there are; of types with the sign in the head, which came last,
    those of the first two modes."""
    types, signed = (
        {code: kind for code, kind in reference.DTYPES.items() if kind.sign_in_head == wanted}
        for wanted in (False, True)
    )
    for some, modes in ((types, 3), (signed, 2)):
        for sparse in (False, True):  # which came later
            for code, kind in some.items():
                for name, of in CELLS.items():
                    if (kind.predicted or of != "predicted") and (of == "sparse") == sparse:
                        yield from ((code, mode, name) for mode in range(modes))


def cell_of(draft: Draft, block: bytes) -> str:
    """The name in ``CELLS`` of the kind of a block."""
    kind, template = reference.KINDS_OF_BLOCK[block[0]], block[2] | block[3] << 8
    if kind == "predicted":
        return "base" if template in draft.bases else "template"
    if kind == "sparse":
        return "sparse-zeros" if template == NO_TEMPLATE else "sparse-base"
    return kind


def every_cell() -> Iterator[tuple[str, Built]]:
    """A short frame of random values for each cell, with blocks of that kind alone."""
    for number, (code, mode, name) in enumerate(cells()):
        for attempt in range(1000):
            built = build_frame(
                Random(f"cell {code} {mode} {name} {attempt}"),
                dtype=code,
                n_values=130,
                block_log2=10 + number % 11,
                levels=levels_of_mode(reference.DTYPES[code].T, mode),
                n_codebooks=1,
                kinds=[CELLS[name]],
                named=mode == 1,
                with_base=name in ("base", "sparse-base"),
            )
            draft = Draft.of(built.frame, built.codebooks)
            (block,) = draft.blocks
            kept = cell_of(draft, block) == name and draft.records[0][0] == (mode == 1)
            if CELLS[name] == "sparse":
                kept = kept and draft.n_changes < 4 and any(Sparse.of(block).streams)
            if kept and len(built.frame) < 2000:
                break
        else:
            raise AssertionError
        yield f"cell-{code}-{mode}-{name}", built._replace(frame=replace(draft, mode=mode).seal())


def levels_of_mode(T: int, mode: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Planes and levels such as a mode has."""
    if T == 0:
        return [], [(0, 0)]
    if T == 4:
        return [([4], [(0, 1)]), ([1], [(3, 1)]), ([2, 1, 1], [(0, 7), (2, 6), (3, 4)])][mode]
    return {0: ([T], [(0, 1)]), 1: ([T - 3], [(3, 1)]), 2: ([2, 2, T - 4], [(0, 7), (2, 6), (4, 4)])}[mode]


def device_frames() -> Iterator[tuple[str, Built]]:
    """What is written on a CUDA device: by the plan that is used there, which the host's encoder follows as well."""
    from gcodec.dtypes import BY_NAME
    from gcodec.frame.encode import encode_values
    from gcodec.gpu.encoder import SharedCodebook, plan_of
    from gcodec.options import EncoderOptions
    from gcodec.plan.codebooks import from_histogram, window_of
    from gcodec.plan.request import EncodeRequest
    from gcodec.plan.sampling import SampleSource, take_sample
    from gcodec.tensors import Values

    for name in ("float32", "bfloat16", "float16"):
        dtype, ladder = BY_NAME[name], gcodec.FINE_LADDER[name]
        bits = golden_values(name, np.random.default_rng(dtype.bits + 1), 900)
        graded = (np.arange(900) // 7 * 5 % 8).astype(np.uint8)
        for mode, bit_layout, levels in (
            ("lossless", bit_layouts.lossless(dtype), graded[:0]),
            ("4-mantissa-bits", bit_layouts.fixed(dtype, 4), graded[:0]),
            ("fine-ladder", bit_layouts.ladder(dtype, ladder), graded),
        ):
            n_levels = len(bit_layout.levels)
            sample = take_sample(SampleSource(bits, levels, n_levels, 1 << 14), dtype, 256, every=1)
            counts = sample.by_stream.sum(axis=0)
            book = from_histogram(
                counts.astype(np.uint64), dtype.head_bits, n_levels, window_of(n_levels)[1], exact=not bit_layout.lossy
            )
            plan = plan_of(dtype, 1, SharedCodebook(book, book.record))
            request = EncodeRequest(Values(bits, dtype, (900,), 1), bit_layout, levels, EncoderOptions(), threads=1)
            frame = bytes(encode_values(request, plan))
            yield f"device-{name}-{mode}", Built(frame, reference.decode(frame, {}).bits, {})


def with_tail() -> list[int]:
    """Codes of the types that may have column references."""
    return [code for code, kind in reference.DTYPES.items() if kind.T]


def columns_frame(code: int) -> Built:
    """A short frame with several records of column references, and with blocks that heed them and that do not."""
    for attempt in range(1000):
        built = build_frame(
            Random(f"columns {code} {attempt}"),
            dtype=code,
            n_values=2300,
            block_log2=10,
            n_codebooks=1,
            kinds=["coded"],
            with_columns=True,
            with_base=False,
        )
        draft = Draft.of(built.frame, {})
        flags = {Coded.of(block, draft.stream_log2).flags for block in draft.blocks}
        if len(built.frame) < 9000 and len(draft.columns) in (2, 3) and flags == {0, 1}:
            return built
    raise AssertionError


def naming(number: int, dtype: str, n_levels: int, record: bytes) -> Built:
    """A frame that names a shipped codebook by id."""
    kind = KINDS[dtype]
    inline = Inline.of(record)
    widths = (kind.T,) if n_levels == 1 else (1,) * (n_levels - 1) + (kind.T - n_levels + 1,)
    named, known = by_id(record, number, kind.H)
    rng = Random(number)
    writer = BlockWriter(rng, kind, 8, tuple(widths), tuple(rows_of(kind, widths, n_levels)), [inline], None)
    block, values = writer.block("coded", 600)
    draft = Draft(
        next(code for code, one in reference.DTYPES.items() if one is kind),
        0,
        0,
        14,
        8,
        600,
        (600,),
        tuple(widths),
        writer.levels,
        (named,),
        (block,),
    )
    return Built(draft.seal(), np.array(values, kind.container), known)


def rows_of(kind: reference.DType, widths: tuple[int, ...], n_levels: int) -> Iterator[tuple[int, int]]:
    """Levels that drop 0, 1, 2 ... bits: a plane of one bit less each."""
    for level in range(n_levels):
        yield level, (1 << len(widths)) - (1 << level)


def golden_values(dtype: str, rng: np.random.Generator, n: int) -> Bits:
    """Values of which some need the escape, some are zero, and a whole sub-stream is."""
    kind = KINDS[dtype]
    bits = gaussian(kind, rng, n, zeros=0.1)
    bits[rng.random(n) < 0.01] = noise(kind, rng, 1)[0]
    bits[256:512] = 0
    return bits


def golden_multiples(dtype: str, rng: np.random.Generator) -> Bits:
    """Rows that are nearly multiples of one, and some that are not; just enough for a template to pay."""
    kind = KINDS[dtype]
    rows = multiples(kind, rng, (250, 33), noise=2.0 ** -(kind.M - 1))
    rows[100:104], rows[70, 5], rows[71, 6] = 0, infinity(kind) + 1, infinity(kind)
    return rows


def golden_rows(dtype: str, rng: np.random.Generator) -> Bits:
    """Rows of which each has a scale of its own."""
    kind = KINDS[dtype]
    reach = {5: 8, 4: 4}.get(kind.W - 1 - kind.M, 60)
    return from_floats(kind, rng.standard_normal((6, 256)) * np.exp2(rng.integers(-reach, reach, (6, 1))))


def slug(*words: str) -> str:
    """A file's name."""
    return "-".join(words).lower().replace("'", "").replace(",", "").replace(" ", "-")


def encoded(dtype: str, bits: Bits, mode: Mode, base: Bits | None = None) -> Built:
    """A frame of the encoder, and the values that it promises."""
    options = dict(mode.options)
    if "ladder" in options:
        n_levels = len(options["ladder"].drops)
        options["levels"] = (np.arange(bits.size) // 7 * 5 % n_levels).astype(np.uint8)
    if base is not None:
        options["base"] = typed(dtype, base)
    # What a mode promises, also where that saves too little for the encoder to drop bits by itself.
    options["options"] = replace(options.get("options", gcodec.EncoderOptions()), exact_if_smaller=False)
    frame = gcodec.encode(typed(dtype, bits), dtype=dtype, **options)
    named = {name: SHIPPED[name] for name in named_in(frame)}
    return Built(frame, promised(kind_of(frame), bits, options).reshape(-1), named, base)


def kind_of(frame: bytes) -> reference.DType:
    """The value type of a frame."""
    return reference.DTYPES[frame[5]]


def named_in(frame: bytes) -> list[tuple[int, int]]:
    """(id, hash) of the codebooks that a frame names."""
    records = (record for record in Draft.of(frame, SHIPPED).records if record[0] == 1)
    return [(int.from_bytes(record[4:8], "little"), int.from_bytes(record[8:16], "little")) for record in records]


def entry(built: Built) -> dict[str, Any]:
    """What the manifest says about a frame; the second decoder must agree."""
    decoded = reference.decode(built.frame, built.codebooks, base=built.base)
    assert np.array_equal(decoded.bits, built.bits)
    found: dict[str, Any] = {
        "dtype": decoded.dtype,
        "shape": list(decoded.shape),
        "mode": decoded.mode,
        "container": decoded.container,
        "blocks": decoded.kinds,
        "sha256": hashlib.sha256(decoded.bits.tobytes()).hexdigest(),
    }
    return found | held(built)


def as_lists(codebooks: reference.Known) -> list[list[Any]]:
    """Codebooks as JSON has them: [id, hash, record]; the last two in hexadecimal."""
    return [[number, f"{digest:016x}", record.hex()] for (number, digest), record in codebooks.items()]


def as_known(lists: list[list[Any]]) -> dict[tuple[int, int], bytes]:
    """Inverse of :func:`as_lists`."""
    return {(number, int(digest, 16)): bytes.fromhex(record) for number, digest, record in lists}


def name_of_base(base: Bits) -> str:
    """The file that a base is in: named by what it holds, since frames share bases."""
    return f"{hashlib.sha256(base.tobytes()).hexdigest()[:12]}.base"


def as_base(folder: Path, described: dict[str, Any]) -> Bits | None:
    """The base of a frame, None if its entry names none."""
    if "base" not in described:
        return None
    name, width = described["base"]
    return np.frombuffer((folder / name).read_bytes(), f"<u{width // 8}")


# ---------------------------------------------------------------------------------------------------- Invalid frames


def invalid_frames() -> Iterator[tuple[str, Built, dict[str, Any]]]:
    """(name, what to decode, entry of the manifest): every way to spoil a frame, once or twice, and what else is
    refused."""
    seen: dict[str, int] = {}
    of_columns = (columns_frame(code) for code in with_tail())
    sparse = map(sparse_frame, range(24))
    for built in (*map(small_frame, range(16)), *map(predicted_frame, range(12)), *of_columns, *sparse):
        seed = len(built.bits)
        for mutation in mutations(built.frame, Random(seed), built.codebooks):
            field = mutation.name.partition(":")[0]
            if seen.setdefault(field, 0) < 2 and (mutation.name != field):
                seen[field] += 1
                yield (
                    f"{slug(field)}-{seen[field]}",
                    built._replace(frame=mutation.frame),
                    {"what": mutation.name, "expected": mutation.expected} | held(built),
                )
    yield from invalid_indexed(seen)
    built = small_frame(0)
    for size in (0, 1, 4, 47, 48, len(built.frame) // 2, len(built.frame) - 1):
        described = {"what": f"only {size} bytes", "expected": "insufficient"} | held(built)
        yield f"truncated-{size:03}", built._replace(frame=built.frame[:size]), described
    unknown = {"what": "a codebook that is not known", "expected": "unsupported"}
    yield "unknown-codebook", named_frame()._replace(codebooks={}), unknown
    bit = bytearray(built.frame)
    bit[-1] ^= 0x80
    yield (
        "flipped-bit",
        built._replace(frame=bytes(bit)),
        {"what": "the last bit", "expected": "corruption"} | held(built),
    )
    for seed in (0, 2, 4):
        for how, other in other_bases(predicted_frame(seed)):
            yield (f"{slug(how)}-{seed // 2 + 1}", other, {"what": how, "expected": "unsupported"} | held(other))


#: What can be spoilt in blocks of any kind; of others it has been in frames with older kinds.
OF_ANY_BLOCK = (
    "block kind",
    "block codebook",
    "block base",
    "block n_values",
    "block body",
    "padding of a block",
    "codebook of another kind",
)


def invalid_indexed(seen: dict[str, int]) -> Iterator[tuple[str, Built, dict[str, Any]]]:
    """Frames with indexed blocks, spoilt: of each way to spoil those, up to three in as many frames; `seen` counts."""
    for built in sorted(map(indexed_frame, INDEXED), key=lambda built: len(built.frame)):
        rng, found = Random(len(built.frame)), dict[str, list[Mutation]]()
        for mutation in mutations(built.frame, rng, built.codebooks):
            field = mutation.name.partition(":")[0]
            if SPOILERS[field].__module__ == indexed_spoilers.__name__:
                found.setdefault(field, []).append(mutation)
            elif field in OF_ANY_BLOCK and mutation.name.endswith((" kind 5", ": 255 for 5")):
                found.setdefault(f"indexed {field}", []).append(mutation)
            elif field == "order of codebooks":
                found.setdefault("order of dictionaries", []).append(mutation)
        for field, some in found.items():
            if seen.setdefault(field, 0) < 3:
                seen[field] += 1
                mutation = rng.choice(some)
                yield (
                    f"{slug(field)}-{seen[field]}",
                    built._replace(frame=mutation.frame),
                    {"what": mutation.name, "expected": mutation.expected} | held(built),
                )


def other_bases(built: Built) -> Iterator[tuple[str, Built]]:
    """A frame that needs a base, with none and with others."""
    base = built.base
    assert base is not None
    yield "no base", built._replace(base=None)
    yield (
        "a base of another last bit",
        built._replace(base=base ^ (np.arange(base.size) == base.size - 1).astype(base.dtype)),
    )
    yield "a base of another size", built._replace(base=base[:-1])


def held(built: Built) -> dict[str, Any]:
    """Return the codebooks and the base that the decoder holds, as JSON has them."""
    known: dict[str, Any] = {"codebooks": as_lists(built.codebooks)} if built.codebooks else {}
    if built.base is not None:
        known["base"] = [name_of_base(built.base), 8 * built.base.itemsize]
    return known


def small_frame(seed: int) -> Built:
    """A short frame with a coded block."""
    rng = Random(f"invalid {seed}")
    kinds: list[reference.BlockKind] = ["coded", "coded", "raw" if seed % 2 else "constant"]
    return build_frame(
        rng,
        dtype=1 + seed % 8,
        n_values=rng.choice([40, 70, 1100]),
        block_log2=10,
        n_codebooks=1 + seed % 2,
        kinds=kinds,
        named=seed % 3 == 1,
    )


def predicted_frame(seed: int) -> Built:
    """A short frame with predicted blocks, every other with a base."""
    for attempt in range(1000):
        rng = Random(f"invalid, predicted {seed} {attempt}")
        built = build_frame(
            rng,
            dtype=1 + seed % 3,
            n_values=[40, 71, 130, 1100][seed % 4],
            block_log2=10,
            n_codebooks=0,
            kinds=["predicted"],
            with_base=seed % 2 == 0,
        )
        if len(built.frame) < 4000 and built.frame[15]:
            return built
    raise AssertionError


def sparse_frame(seed: int) -> Built:
    """A short frame with sparse blocks, the first of which has changes; every other with a base."""
    for attempt in range(1000):
        rng = Random(f"sparse {seed} {attempt}")
        built = build_frame(
            rng,
            dtype=1 + seed % 8,
            n_values=[65, 130, 300, 1100][seed // 2 % 4],
            block_log2=10,
            n_codebooks=1,
            kinds=["sparse"],
            with_base=seed // 8 % 2 == 0,
            named=seed % 3 == 1,
            spare_bits=seed % 5 == 0,
        )
        draft = Draft.of(built.frame, built.codebooks)
        few = len(draft.templates) < 20 and len(draft.residuals) < 20 and len(draft.columns) < 20
        n_changed = sum(len(stream) for block in draft.blocks for stream in Sparse.of(block).streams)
        if few and draft.n_changes < 6 and len(built.frame) < 3500 and n_changed > 5:
            return built
    raise AssertionError


@dataclass(frozen=True)
class Wanted:
    """What a frame with indexed blocks shall be like: its type and number of values, its form if it has one only,
    and what holds for its indexed blocks."""

    code: int
    n_values: int
    form: int | None
    holds: Callable[[Draft, list[Indexed]], bool]
    kinds: tuple[reference.BlockKind, ...] = ("indexed",)


#: Frames with indexed blocks: one of each type, and of all that such blocks have.
INDEXED: dict[str, Wanted] = {
    "scale across blocks": Wanted(
        1,
        2060,
        1,
        lambda draft, blocks: (
            0 < blocks[1].skipped < blocks[1].segment < 1024
            and blocks[1].skipped == 1024 % blocks[1].segment
            and blocks[0].inner[0] == 2
        ),
    ),
    "segment longer than a block": Wanted(
        2,
        1500,
        1,
        lambda draft, blocks: all(block.n_segments == 1 and block.skipped == b << 10 for b, block in enumerate(blocks)),
    ),
    "scale for each value": Wanted(
        3, 200, 1, lambda draft, blocks: blocks[0].segment == 1 and blocks[0].inner[0] == 1 and not blocks[0].exceptions
    ),
    "float64": Wanted(
        4,
        300,
        0,
        lambda draft, blocks: (
            blocks[0].inner[0] == 2 and bool(blocks[0].exceptions) and len(blocks[0].exceptions) < 200
        ),
    ),
    "256 factors": Wanted(7, 300, 1, lambda draft, blocks: blocks[0].inner[0] == 2 and n_entries(draft, 0) == 256),
    "256 values": Wanted(8, 200, 0, lambda draft, blocks: blocks[0].inner[0] == 2 and n_entries(draft, 0) == 256),
    "exceptions only": Wanted(16, 130, 1, lambda draft, blocks: len(blocks[0].exceptions) == 130),
    "one value": Wanted(
        17,
        1100,
        0,
        lambda draft, blocks: (
            n_entries(draft, 0) == 1
            and blocks[1].inner[0] == 0
            and {len(block.exceptions) == block.n_values for block in blocks} == {True, False}
        ),
    ),
    "three bytes of scales": Wanted(
        18,
        1100,
        1,
        lambda draft, blocks: (
            {3} == {block.scale_bytes for block in blocks} and {1, 2} == {block.inner[0] for block in blocks}
        ),
    ),
    "among others, float64": Wanted(
        19,
        4196,
        None,
        lambda draft, blocks: len({block[0] for block in draft.blocks}) >= 4,
        ("indexed", "indexed", "constant", "coded", "sparse"),
    ),
    "among all others": Wanted(
        20,
        5200,
        None,
        lambda draft, blocks: {block[0] for block in draft.blocks} == set(range(6)),
        reference.KINDS_OF_BLOCK,
    ),
    "16 dictionaries": Wanted(
        21,
        2060,
        None,
        lambda draft, blocks: (
            draft.n_dictionaries == 16
            and len({block.codebook for block in blocks}) == 3
            and {block.segment > 0 for block in blocks} == {True, False}
        ),
    ),
    "float16 coded": Wanted(
        3,
        500,
        1,
        lambda draft, blocks: (
            blocks[0].inner[0] == 2 and blocks[0].scale_bytes == 2 and blocks[0].skipped == blocks[0].segment - 1 > 0
        ),
    ),
    "bfloat16 exceptions": Wanted(
        2,
        300,
        1,
        lambda draft, blocks: (
            blocks[0].inner[0] == 2 and 5 < len(blocks[0].exceptions) < 150 and blocks[0].scale_bytes == 4
        ),
    ),
    "offsets across blocks": Wanted(
        1,
        2060,
        3,
        lambda draft, blocks: (
            0 < blocks[1].skipped < blocks[1].segment < 1024
            and blocks[1].skipped == 1024 % blocks[1].segment
            and blocks[0].inner[0] == 2
        ),
    ),
    "bfloat16 offsets and exceptions": Wanted(
        2,
        300,
        3,
        lambda draft, blocks: (
            blocks[0].inner[0] == 2
            and bool(blocks[0].exceptions)
            and blocks[0].n_segments > 1
            and blocks[0].pairs[14] == 2
        ),
    ),
    "float16 offset for each value": Wanted(
        3,
        100,
        3,
        lambda draft, blocks: blocks[0].segment == 1 and blocks[0].pairs[5] > 8 and blocks[0].pairs[13] > 8,
    ),
}


def n_entries(draft: Draft, b: int) -> int:
    """Return the number of entries of the dictionary that an indexed block names."""
    return len(Entries.of(draft.records[draft.blocks[b][1]], draft.kind.W).values)


@functools.cache
def indexed_frame(name: str) -> Built:
    """A short frame with indexed blocks, such as ``INDEXED`` says."""
    wanted = INDEXED[name]
    for attempt in range(20_000):
        built = build_frame(
            Random(f"indexed {name} {attempt}"),
            dtype=wanted.code,
            n_values=wanted.n_values,
            block_log2=10,
            n_codebooks=1,
            kinds=wanted.kinds,
            spare_bits=attempt % 5 == 0,
            with_base=False,
            with_offsets=wanted.form == 3,
        )
        draft = Draft.of(built.frame, built.codebooks)
        blocks = [Indexed.of(block, draft.kind.W) for block in draft.blocks if block[0] == 5]
        few = len(draft.templates) < 20 and len(draft.residuals) < 20 and len(draft.columns) < 20
        forms = {draft.records[block.codebook][1] for block in blocks}
        sound = bool(blocks) and (wanted.form is None or forms == {wanted.form})
        small = len(built.frame) < (8000 if wanted.form is None else 3500)
        if few and sound and small and wanted.holds(draft, blocks):
            return built
    raise AssertionError(name)


def named_frame() -> Built:
    """A frame that names a codebook by id."""
    seeds = (build_frame(Random(seed), n_values=50, n_codebooks=1, named=True, kinds=["coded"]) for seed in range(100))
    return next(built for built in seeds if built.codebooks)


# ------------------------------------------------------------------------------------------------------------ Writing


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Entries by name; none if the folder is not there."""
    path = folder / "manifest.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_manifest(folder: Path, entries: dict[str, dict[str, Any]]) -> None:
    """One line for each frame."""
    lines = (f"  {json.dumps(name)}: {json.dumps(entries[name])}" for name in sorted(entries))
    (folder / "manifest.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def write_frames(folder: Path, frames: Iterator[tuple[str, Built, dict[str, Any]]]) -> None:
    """Add to a folder the frames that it lacks."""
    folder.mkdir(exist_ok=True)
    entries, added = read_manifest(folder), 0
    for name, built, described in frames:
        if name not in entries:
            (folder / f"{name}.frame").write_bytes(built.frame)
            if built.base is not None:
                (folder / name_of_base(built.base)).write_bytes(built.base.tobytes())
            entries[name] = described
            added += 1
    write_manifest(folder, entries)
    print(f"{folder.name}: {added} frames added, {len(entries)} in all")


def main() -> None:
    """The command."""
    argparse.ArgumentParser(
        prog="python -m tests.support.make_golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    GOLDEN.mkdir(exist_ok=True)
    write_frames(GOLDEN, ((name, built, entry(built)) for name, built in golden_frames()))
    write_frames(GOLDEN_INVALID, invalid_frames())
    write_sizes()


if __name__ == "__main__":
    main()
