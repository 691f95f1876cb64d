"""Random valid frames (docs/format.md), each with its values."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

import numpy as np

from tests.support.frame_builder.blocks import BlockWriter, random_factor, random_lengths
from tests.support.frame_builder.indexed import Entries, IndexedWriter, random_entries
from tests.support.frame_builder.parts import (
    Columns,
    Draft,
    Inline,
    LevelRow,
    Residual,
    base_template,
    by_id,
    kept_bits,
)
from tests.support.frame_builder.sparse import Changes, SparseWriter, random_changes
from tests.support.reference import BYTES, DTYPES, Bits, BlockKind, DType, base_hash

# ----------------------------------------------------------------------------------------------- Valid frames


class Built(NamedTuple):
    """A valid frame, its values as integers of W bits, the codebooks that it names by id, and its base, if any."""

    frame: bytes
    bits: Bits
    codebooks: dict[tuple[int, int], bytes]
    base: Bits | None = None


ANY_KIND: tuple[BlockKind, ...] = ("constant", "raw", "coded", "coded", "coded", "coded", "predicted", "predicted")
ANY_KIND_OR_SPARSE: tuple[BlockKind, ...] = (*ANY_KIND, "sparse", "sparse", "sparse")
ANY_KIND_OR_INDEXED: tuple[BlockKind, ...] = (*ANY_KIND_OR_SPARSE, *("indexed",) * 8)


def build_frame(
    rng: Random,
    *,
    dtype: int | None = None,
    n_values: int | None = None,
    block_log2: int | None = None,
    stream_log2: int | None = None,
    levels: tuple[Sequence[int], Sequence[LevelRow]] | None = None,
    n_codebooks: int | None = None,
    kinds: Sequence[BlockKind] | None = None,
    named: bool = False,
    spare_bits: bool = False,
    with_base: bool | None = None,
    with_columns: bool | None = None,
    with_offsets: bool = False,
    with_predictions: bool = True,
) -> Built:
    """A valid frame of random values, and of a random shape in all that is not given.

    `levels` are the planes and the levels; `kinds` the kinds of block to choose from, of which those that the
    frame cannot have are left out, and only with "sparse" there are codebooks of changes, and dictionaries only with
    "indexed"; `named` lets codebooks be
    given by id; `spare_bits` fills the spare bits of packed arrays and sub-streams, which readers ignore;
    `with_base`: whether templates stand for a base, of types that may have templates, or of any type if blocks may be
    sparse; `with_columns`: whether there are column references, of types with a tail; `with_offsets`: whether some
    dictionaries are of form 3; `with_predictions`: whether there may be templates and codebooks of residuals.
    """
    dtype = rng.choice(list(DTYPES)) if dtype is None else dtype
    kind = DTYPES[dtype]
    if block_log2 is None:
        block_log2 = rng.choice([10, 10, 10, 11, rng.randint(10, 20)])
    if stream_log2 is None:
        stream_log2 = rng.randint(6, min(12, block_log2))
    if n_values is None:
        below = rng.choice([1, 2, 30, 100, 1000, 2500, 4000])
        n_values = rng.choice([rng.randrange(below), min(2, below) << 10, 1])
    planes, rows = random_levels(rng, kind) if levels is None else levels
    spare = rng if spare_bits else None

    inline = [random_codebook(rng, kind, len(rows)) for _ in range(pick_count(rng, n_codebooks))]
    records = [codebook.record(spare=spare) for codebook in inline]
    known: dict[tuple[int, int], bytes] = {}
    for c, record in enumerate(records):
        if named and rng.random() < 0.7:
            records[c], held = by_id(record, rng.choice([256, 2**32 - 1, rng.randrange(256, 2**32)]), kind.H)
            known |= held
    residuals, templates = random_residuals(rng, kind), random_templates(rng, kind, 1 << block_log2)
    if not with_predictions:
        residuals, templates = [], []
    may_be_sparse = "sparse" in (kinds or ANY_KIND)
    base = random_base(rng, kind, n_values) if kind.predicted or may_be_sparse else []
    if (kind.predicted or may_be_sparse) and (rng.random() < 0.4 if with_base is None else with_base):
        residuals = residuals or ([random_residual(rng, kind)] if kind.predicted else [])
        templates = templates[: 255 - rng.randint(1, 2)]
        for _ in range(min(rng.choice([1, 1, 2, 5]), 255 - len(templates))):
            templates.insert(rng.randint(0, len(templates)), [])
    changes: list[Changes] = []
    if may_be_sparse:
        changes = [random_changes(rng, kind.W, base) for _ in range(rng.choice([1, 2, 3, 5, 16]))]
        inline, records = inline[: 255 - len(changes)], records[: 255 - len(changes)]
        for codebook in changes:
            records.append(codebook.record(spare=spare))
            if named and rng.random() < 0.7:
                records[-1], held = by_id(codebook.record(), rng.randrange(256, 2**32), 256 + kind.W)
                known |= held
    dictionaries: list[Entries] = []
    if "indexed" in (kinds or ANY_KIND) and kind.T:
        dictionaries = [
            random_entries(rng, kind, random_codebook(rng, BYTES, 1), with_offsets)
            for _ in range(rng.choice([1, 1, 2, 3, 16]))
        ]
        n_changes = min(len(changes), 255 - len(dictionaries))
        n_coded = min(len(inline), 255 - len(dictionaries) - n_changes)
        records = [*records[:n_coded], *records[len(inline) : len(inline) + n_changes]]
        inline, changes = inline[:n_coded], changes[:n_changes]
        records += [dictionary.record(spare=spare) for dictionary in dictionaries]
    columns: list[Columns] = []
    if kind.T and n_values and (rng.random() < 0.4 if with_columns is None else with_columns):
        templates = templates[:254]
        columns = random_columns(rng, n_values, 255 - len(templates))

    values: list[int] = []
    blocks = []
    writer = BlockWriter(
        rng, kind, stream_log2, tuple(planes), tuple(rows), inline, spare, residuals, templates, base, columns
    )
    bases = [t for t, template in enumerate(templates) if not template]
    sparse = SparseWriter(writer, block_log2, changes, len(inline), bases)
    indexed = IndexedWriter(writer, block_log2, dictionaries, len(inline) + len(changes))
    lacking = {"coded"} if not inline else set()
    lacking |= {"predicted"} if not (residuals and templates) else set()
    lacking |= {"sparse"} if not sparse.usable else set()
    lacking |= {"indexed"} if not dictionaries else set()
    possible = [name for name in kinds or ANY_KIND if name not in lacking] or ["raw"]
    while len(values) < n_values:
        count, name = min(1 << block_log2, n_values - len(values)), rng.choice(possible)
        draw = {"sparse": sparse.block, "indexed": indexed.block}.get(name, functools.partial(writer.block, name))
        block, new = draw(count, len(values))
        blocks.append(block)
        values += new
    earlier = np.array(base, kind.container)
    stored = [
        struct.pack(f"<{1 + len(template)}I", len(template), *template)
        if template
        else base_template(base_hash(earlier))
        for template in templates
    ]
    draft = Draft(
        dtype,
        rng.randrange(3),
        rng.randrange(2),
        block_log2,
        stream_log2,
        n_values,
        random_shape(rng, n_values),
        tuple(planes),
        tuple(rows),
        tuple(records),
        tuple(blocks),
        tuple(codebook.record(spare=spare) for codebook in residuals),
        tuple(stored),
        tuple(entry.record(spare=spare) for entry in columns),
        len(changes),
        len(dictionaries),
    )
    return Built(draft.seal(), np.array(values, kind.container), known, None if all(templates) else earlier)


def pick_count(rng: Random, n_codebooks: int | None) -> int:
    if n_codebooks is not None:
        return n_codebooks
    return rng.choice([0, 255]) if rng.random() < 0.05 else rng.choice([1, 1, 1, 2, 3, rng.randint(1, 12)])


def random_shape(rng: Random, n_values: int) -> tuple[int, ...]:
    """Dimensions whose product is n_values (§4)."""
    if n_values == 0:
        shape = [0, *(rng.randrange(5) for _ in range(rng.randrange(3)))]
    else:
        shape = []
        while n_values > 1:
            divisors = [d for d in range(2, min(n_values, 50) + 1) if n_values % d == 0] or [n_values]
            shape.append(rng.choice([*divisors, n_values]))
            n_values //= shape[-1]
    ones = rng.choice([0, 0, 0, 1, 2, 32 - len(shape)])
    shape += [1] * ones
    rng.shuffle(shape)
    return tuple(shape)


# Planes of a single level, such as encoders are likely to have kernels of their own for: by T, the first of them whole.
USUAL_PLANES: dict[int, list[tuple[list[int], list[LevelRow]]]] = {
    4: [([4], [(0, 1)]), ([2, 2], [(0, 3)]), ([3], [(1, 1)])],
    7: [([7], [(0, 1)]), ([6], [(1, 1)])],
    8: [([8], [(0, 1)]), ([7], [(1, 1)])],
    20: [([16, 4], [(0, 3)]), ([20], [(0, 1)]), ([16, 3], [(1, 3)])],
    23: [
        ([16, 7], [(0, 3)]),
        ([23], [(0, 1)]),
        ([7, 16], [(0, 3)]),
        ([16, 7, 1], [(0, 3)]),
        ([16, 6], [(1, 3)]),
        ([16, 7], [(7, 1)]),
        ([16, 7], [(16, 2)]),
        ([8, 8, 7], [(0, 7)]),
    ],
    24: [([24], [(0, 1)]), ([16, 7], [(1, 3)]), ([23], [(1, 1)]), ([16, 8], [(0, 3)])],
    52: [([52], [(0, 1)])],
    53: [([53], [(0, 1)])],
}


def random_levels(rng: Random, kind: DType) -> tuple[list[int], list[LevelRow]]:
    """Planes, of which some may be in no level's mask, and 1 ... 16 levels (§4)."""
    if kind.T == 0:
        return [], [(0, 0)]
    if rng.random() < 0.3:
        usual = USUAL_PLANES[kind.T]
        return usual[0] if rng.random() < 0.5 else rng.choice(usual)
    while True:
        match rng.randrange(3):
            case 0:  # any
                planes = [rng.randint(1, rng.choice([3, 12, 56])) for _ in range(rng.randint(1, 8))]
            case 1:  # powers of two, of which many levels can be made
                planes = [1 << p for p in range(rng.randint(1, 6)) if 1 << p < kind.T]
                planes.append(max(1, kind.T - sum(planes)))
            case _:  # chunks that add up to some number of kept bits
                kept = rng.randint(1, kind.T)
                cuts = sorted({0, kept, *(rng.randrange(1, kept + 1) for _ in range(rng.randrange(8)))})
                planes = [high - low for low, high in pairwise(cuts)]
        rng.shuffle(planes)
        masks: dict[int, list[int]] = {}
        for mask in range(1, 1 << len(planes)):
            masks.setdefault(sum(width for p, width in enumerate(planes) if mask >> p & 1), []).append(mask)
        drops = [drop for drop in range(kind.M + 1) if kept_bits(kind, drop) in masks]
        if drops and len(planes) <= 8:
            break
    most = min(16, len(drops))
    chosen = sorted(rng.sample(drops, rng.choice([1, most, rng.randint(1, most)])))
    return planes, [(drop, rng.choice(masks[kept_bits(kind, drop)])) for drop in chosen]


def random_codebook(rng: Random, kind: DType, n_levels: int) -> Inline:
    """A codebook of 2 ... 256 symbols (§5)."""
    n_symbols = rng.choice([0, 1, 5, 254, rng.randrange(255), rng.randrange(40)])
    cuts = sorted(rng.randint(0, n_symbols) for _ in range(n_levels - 1))
    counts = [high - low for low, high in pairwise([0, *cuts, n_symbols])]
    top = (1 << kind.H) - 1
    firsts = [rng.choice([0, top, max(0, top - count // 2), rng.randint(0, top)]) for count in counts]
    return Inline(tuple(zip(firsts, counts, strict=True)), tuple(random_lengths(rng, 2 + n_symbols)))


def random_residuals(rng: Random, kind: DType) -> list[Residual]:
    """Residual codebooks (§5), none for types that may have none."""
    if not kind.predicted:
        return []
    n = 255 if rng.random() < 0.02 else rng.choice([0, 1, 1, 2, 3])
    return [random_residual(rng, kind) for _ in range(n)]


def random_residual(rng: Random, kind: DType) -> Residual:
    """A residual codebook."""
    return Residual(tuple(random_lengths(rng, 1 + 15 * kind.W // 4)))


def random_templates(rng: Random, kind: DType, block: int) -> list[list[int]]:
    """Templates (§4) as bits of float32: anything, what is special, and values like those of a row."""
    if not kind.predicted:
        return []
    templates: list[list[int]] = []
    for _ in range(255 if rng.random() < 0.02 else rng.choice([0, 1, 1, 2, 3])):
        many = min(block + rng.randint(1, 9), 3000)
        n_columns = rng.choice([2, 3, rng.randint(2, 70), rng.randint(2, 300), many if len(templates) < 3 else 2])
        nature = rng.randrange(3)
        templates.append([random_factor(rng, rng.randrange(3) if nature == 2 else nature) for _ in range(n_columns)])
    return templates


def random_columns(rng: Random, n_values: int, most: int) -> list[Columns]:
    """Records of column references (§4), up to `most`: they begin and end anywhere, with gaps between them or none."""
    count = min(most, (n_values + 1) // 2, 255 if rng.random() < 0.02 else rng.choice([1, 1, 2, 3, 5]))
    apart = rng.random() < 0.5
    cuts = sorted(rng.sample(range(n_values + 1), 2 * count if apart else count + 1))
    if rng.random() < 0.3:  # one that covers all
        cuts = [0, n_values]
    spans = list(zip(cuts[::2], cuts[1::2], strict=True)) if apart or len(cuts) == 2 else list(pairwise(cuts))
    records = []
    for first, end in spans:
        group = rng.choice([1, 1, rng.randint(1, 9), rng.randint(1, 700)])
        width = rng.choice([0, 1, 3, 8, rng.randint(0, 8)])
        below = rng.choice([3, 70, 300, max(3, 3000 // group)])
        n_columns = group * rng.randint(2 if group == 1 else 1, max(2, below))
        if n_columns == 1 or rng.random() < 0.03:  # as many columns as there may be
            n_columns, group = rng.choice([((1 << 24) - 1, 61455), (65535 << 8, 65535)])
        least = rng.choice([0, -128, rng.randint(-128, 127), rng.randint(-4, 0)])
        top = min(127 - least, (1 << width) - 1)
        numbers = [rng.choice([top, rng.randint(0, top)]) for _ in range(n_columns // group)] if width else []
        records.append(Columns(n_columns, first, end, group, least, width, tuple(numbers)))
    return records


def random_base(rng: Random, kind: DType, n_values: int) -> list[int]:
    """Values of a base (§8): anything, or what lies at the seams of the order of real numbers."""
    half = 1 << kind.W - 1
    inf = half - (1 << kind.M)
    seams = [0, 1, half, half + 1, half - 1, 2 * half - 1, inf, inf + 1, half | inf, half | inf + 1]
    share = rng.choice([0, 0.5, 1])
    return [rng.choice(seams) if rng.random() < share else rng.getrandbits(kind.W) for _ in range(n_values)]
