"""Frames with one thing wrong, and the kind of refusal that each must meet (docs/format.md, section 11)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple, TypeAlias

from tests.support.frame_builder.indexed import Indexed
from tests.support.frame_builder.parts import (
    BLOCK_HEADER,
    Coded,
    Columns,
    Draft,
    Inline,
    LevelRow,
    Predicted,
    Residual,
    base_template,
    kept_bits,
    pack,
    padded,
    plain_block,
    sealed_block,
)
from tests.support.frame_builder.sparse import Sparse
from tests.support.reference import ESCAPE, Kind, Known

# ---------------------------------------------------------------------------------------------- Spoilt frames


class Mutation(NamedTuple):
    """A frame with one thing wrong, and the kind of refusal that it must meet (§11)."""

    name: str  # the field, as the tables of the page call it, and what became of it
    frame: bytes
    expected: Kind


Spoilt: TypeAlias = Iterator[tuple[str, bytes, Kind]]
Spoiler: TypeAlias = Callable[[Draft, Random], Spoilt]

# What can be spoilt, by name. A spoiler yields nothing for a frame that lacks what it spoils.
SPOILERS: dict[str, Spoiler] = {}


def spoils(name: str) -> Callable[[Spoiler], Spoiler]:
    def register(spoiler: Spoiler) -> Spoiler:
        assert name not in SPOILERS, name
        SPOILERS[name] = spoiler
        return spoiler

    return register


def mutations(
    frame: bytes, rng: Random, codebooks: Known | None = None, names: Collection[str] | None = None
) -> Iterator[Mutation]:
    """All that can be spoilt in a valid frame, one thing at a time, with all checksums set right again; with `names`
    what those of `SPOILERS` spoil.

    `codebooks` holds the codebooks that the frame names by id; what is expected is what a decoder reports that has
    them, and the frame's base if it has one. Where it can be done, a spoilt frame is
    consistent in all but the one thing: for example, a count out of range is followed by as many items as it
    says. What cannot be spoilt in this frame, such as a coded block where there is none, is left out.
    """
    draft = Draft.of(frame, codebooks or {})
    for name, spoiler in SPOILERS.items():
        if names is None or name in names:
            for how, spoilt, expected in spoiler(draft, rng):
                yield Mutation(f"{name}: {how}", spoilt, expected)


def flipped(data: bytes, at: int, rng: Random) -> bytes:
    """With another byte at `at`."""
    return data[:at] + bytes([data[at] ^ rng.randint(1, 255)]) + data[at + 1 :]


# Header (§4). Fields that only announce how many items follow are spoilt together with the items.


@spoils("magic")
def spoil_magic(draft: Draft, rng: Random) -> Spoilt:
    for at in range(4):
        magic = int.from_bytes(flipped(b"\x89GCF", at, rng), "little")
        yield f"byte {at}", draft.seal(magic=magic), "corruption"


@spoils("version")
def spoil_version(draft: Draft, rng: Random) -> Spoilt:
    for version in 0, 2, rng.randint(3, 255):
        yield f"{version}", draft.seal(version=version), "unsupported"


@spoils("dtype")
def spoil_dtype(draft: Draft, rng: Random) -> Spoilt:
    for dtype in 0, 9, rng.randint(10, 15), rng.randint(22, 255):
        yield f"{dtype}", draft.seal(dtype=dtype), "unsupported"
    other = {1: 8, 2: 7, 7: 2, 8: 1}.get(draft.dtype)
    if other and draft.all_inline and draft.levels[0][0] < draft.kind.M:  # else the planes are the same
        yield f"{other} for {draft.dtype}", draft.seal(dtype=other), "corruption"


@spoils("mode")
def spoil_mode(draft: Draft, rng: Random) -> Spoilt:
    for mode in 3, rng.randint(4, 255):
        yield f"{mode}", draft.seal(mode=mode), "corruption"


@spoils("container")
def spoil_container(draft: Draft, rng: Random) -> Spoilt:
    for container in 2, rng.randint(3, 255):
        yield f"{container}", draft.seal(container=container), "corruption"


@spoils("ndim")
def spoil_ndim(draft: Draft, rng: Random) -> Spoilt:
    for ndim in 33, 255:
        shape = draft.shape + (1,) * (ndim - len(draft.shape))
        yield f"{ndim}", replace(draft, shape=shape).seal(), "corruption"


@spoils("block_log2")
def spoil_block_log2(draft: Draft, rng: Random) -> Spoilt:
    for block_log2 in 9, 21, 0, 255:
        yield f"{block_log2}", draft.seal(block_log2=block_log2), "corruption"


@spoils("stream_log2")
def spoil_stream_log2(draft: Draft, rng: Random) -> Spoilt:
    for stream_log2 in sorted({5, 13, 0, 255} | set(range(draft.block_log2 + 1, 13))):
        yield f"{stream_log2}", draft.seal(stream_log2=stream_log2), "corruption"


@spoils("n_codebooks")
def spoil_n_codebooks(draft: Draft, rng: Random) -> Spoilt:
    if draft.records and not draft.residuals:
        yield "one less", draft.seal(n_codebooks=len(draft.records) - 1), "corruption"


def with_levels(draft: Draft, planes: Sequence[int], levels: Sequence[LevelRow]) -> Draft:
    """With other levels, of which inline codebooks know, too; new ones have no symbols."""
    records = list(draft.records)
    for c, record in enumerate(draft.records[: draft.n_coded]):
        codebook = Inline.of(record)
        ranges = codebook.ranges[: len(levels)] + ((0, 0),) * (len(levels) - len(codebook.ranges))
        lengths = codebook.lengths[: 2 + sum(count for _, count in ranges)]
        records[c] = Inline(ranges, lengths).record()
    return replace(draft, planes=tuple(planes), levels=tuple(levels), records=tuple(records))


@spoils("n_levels")
def spoil_n_levels(draft: Draft, rng: Random) -> Spoilt:
    if not draft.all_inline:
        return
    yield "0", with_levels(replace(draft, records=(), n_changes=0, n_dictionaries=0), [], []).seal(), "corruption"
    if draft.kind.T > 16:
        planes = [1, 1, 2, 4, 8, draft.kind.T - 16]
        by_sum = {sum(w for p, w in enumerate(planes) if mask >> p & 1): mask for mask in range(64)}
        levels = [(drop, by_sum[draft.kind.T - drop]) for drop in range(17)]
    else:
        planes, levels = list(draft.planes), [draft.levels[0]] * 17
    yield "17", with_levels(draft, planes, levels).seal(), "corruption"


@spoils("n_planes")
def spoil_n_planes(draft: Draft, rng: Random) -> Spoilt:
    for n_planes in 9, 255:
        planes = draft.planes + (1,) * (n_planes - len(draft.planes))
        yield f"{n_planes}", replace(draft, planes=planes).seal(), "corruption"


A_TEMPLATE = struct.pack("<I2f", 2, 1.0, -0.5)


@spoils("n_residuals")
def spoil_n_residuals(draft: Draft, rng: Random) -> Spoilt:
    if not draft.kind.predicted:
        for digits in {max(1, draft.kind.W // 4), 8}:
            lengths = (1, 1) + (0,) * (15 * digits - 1)
            spoilt = replace(draft, residuals=(Residual(lengths).record(),))
            yield f"1 for {draft.kind.name}", spoilt.seal(), "corruption"
        for n_residuals in 1, 255:
            yield f"{n_residuals} for {draft.kind.name}, none there", draft.seal(n_residuals=n_residuals), "corruption"
    elif draft.residuals:
        yield "one less", draft.seal(n_residuals=len(draft.residuals) - 1), "corruption"
        if sum(map(len, draft.templates)) > 200 and draft.templates[0][0] != 2 and len(draft.residuals) < 255:
            yield "one more", draft.seal(n_residuals=len(draft.residuals) + 1), "unsupported"


@spoils("n_templates")
def spoil_n_templates(draft: Draft, rng: Random) -> Spoilt:
    n = len(draft.templates) + len(draft.columns)
    if not draft.kind.predicted:
        yield f"1 for {draft.kind.name}", replace(draft, templates=(A_TEMPLATE,)).seal(), "corruption"
        for n_templates in 1, 255:
            if not n:
                spoilt = draft.seal(n_templates=n_templates)
                yield f"{n_templates} for {draft.kind.name}, none there", spoilt, "corruption"
    if n:
        yield "one less", draft.seal(n_templates=n - 1), "corruption"
        if n < 255:
            yield "one more", draft.seal(n_templates=n + 1), "corruption"


@spoils("frame_bytes")
def spoil_frame_bytes(draft: Draft, rng: Random) -> Spoilt:
    size = len(draft.seal())
    for frame_bytes in 0, 8, 40, size - 8, size - 4, size - 1:
        yield f"{frame_bytes} of {size}", draft.seal(frame_bytes=frame_bytes), "corruption"
    for more in 1, 4, 8, 800:
        yield f"{more} more, held", draft.seal(frame_bytes=size + more) + bytes(more), "corruption"
    for more in 8, 2**32, 2**63:
        yield f"{more} more", draft.seal(frame_bytes=size + more), "insufficient"
    yield "2^64 - 8", draft.seal(frame_bytes=2**64 - 8), "insufficient"


@spoils("n_values")
def spoil_n_values(draft: Draft, rng: Random) -> Spoilt:
    for n_values in draft.n_values - 1, draft.n_values + 1, 2**48 - 1, 2**63, 2**64 - 1:
        if n_values >= 0:
            yield f"{n_values}", draft.seal(n_values=n_values), "corruption"
    for n_values in 2**48, 2**48 + draft.n_values, 2**63, 2**64 - 1:
        spoilt = replace(draft, n_values=n_values, shape=(n_values,))
        yield f"and shape: {n_values}", spoilt.seal(), "corruption"


@spoils("prelude_bytes")
def spoil_prelude_bytes(draft: Draft, rng: Random) -> Spoilt:
    frame = draft.seal()
    (prelude_bytes,) = struct.unpack_from("<Q", frame, 32)
    changed = [prelude_bytes + change for change in (-8, -4, 1, 8)]
    for other in 0, 8, 40, *changed, len(frame) + 8, 2**64 - 8:
        yield f"{other} for {prelude_bytes}", draft.seal(prelude_bytes=other), "corruption"
    yield "8 bytes more between index and blocks", draft.seal(surplus=8), "corruption"
    yield "4 bytes more between index and blocks", draft.seal(surplus=4), "corruption"


@spoils("checksum")
def spoil_checksum(draft: Draft, rng: Random) -> Spoilt:
    frame = draft.seal()
    for at in 40, 47, rng.randrange(41, 47):
        yield f"byte {at}", flipped(frame, at, rng), "corruption"
    yield "none", frame[:40] + bytes(8) + frame[48:], "corruption"


# The rest of the prelude (§4).


@spoils("shape")
def spoil_shape(draft: Draft, rng: Random) -> Spoilt:
    if draft.shape:
        d = rng.randrange(len(draft.shape))
        for longer in 1, 2**63:
            other = list(draft.shape)
            other[d] += longer
            if 0 not in other or 0 not in draft.shape:
                yield f"dimension {d} + {longer}", replace(draft, shape=tuple(other)).seal(), "corruption"
    shape: tuple[int, ...] = (2**32, 2**32)  # a product that is right modulo 2^64 only
    if draft.n_values:
        odd = rng.randrange(3, 2**32, 2)
        shape = (draft.n_values, odd, pow(odd, -1, 2**64))
    yield "2^64 times around", replace(draft, shape=shape).seal(), "corruption"
    shape = (0,) if draft.n_values else ()
    yield f"{shape} for {draft.n_values} values", replace(draft, shape=shape).seal(), "corruption"


@spoils("plane widths")
def spoil_planes(draft: Draft, rng: Random) -> Spoilt:
    if draft.kind.T and len(draft.planes) < 8:
        for width in 0, 57, 255:
            planes = (*draft.planes, width)
            yield f"{width}, in no mask", replace(draft, planes=planes).seal(), "corruption"
    for p, width in enumerate(draft.planes):
        if any(mask >> p & 1 for _, mask in draft.levels):
            for other in width - 1, width + 1:
                planes = (*draft.planes[:p], other, *draft.planes[p + 1 :])
                yield f"plane {p}: {other} for {width}", replace(draft, planes=planes).seal(), "corruption"


@spoils("levels")
def spoil_levels(draft: Draft, rng: Random) -> Spoilt:
    if draft.kind.T == 0:
        return
    for level, (drop, mask) in enumerate(draft.levels):

        def other(row: LevelRow, level: int = level) -> bytes:
            return replace(draft, levels=(*draft.levels[:level], row, *draft.levels[level + 1 :])).seal()

        if len(draft.planes) < 8:
            row = drop, mask | 1 << len(draft.planes)
            yield f"level {level}: a plane that does not exist", other(row), "corruption"
        yield f"level {level}: no plane", other((drop, 0)), "corruption"
        if kept_bits(draft.kind, drop + 1) != kept_bits(draft.kind, drop):
            yield f"level {level}: drops one more", other((drop + 1, mask)), "corruption"
    drop, mask = draft.levels[-1]
    for beyond in draft.kind.M + 1, 255:
        levels = (*draft.levels[:-1], (beyond, mask))
        yield f"drop {beyond}", replace(draft, levels=levels).seal(), "corruption"
        if draft.all_inline and not draft.any_coded:
            yield f"drop {beyond} only", with_levels(draft, [1], [(beyond, 1)]).seal(), "corruption"
    if draft.all_inline and len(draft.levels) < 16:
        for level in 0, len(draft.levels) - 1:
            levels = (*draft.levels, draft.levels[level])
            yield f"level {level} again", with_levels(draft, draft.planes, levels).seal(), "corruption"


@spoils("levels of a type without tail")
def spoil_no_levels(draft: Draft, rng: Random) -> Spoilt:
    if draft.kind.T == 0:
        yield "a plane", replace(draft, planes=(1,)).seal(), "corruption"
        for row in (1, 0), (0, 1), (0, 128):
            yield f"{row}", replace(draft, levels=(row,)).seal(), "corruption"
        if draft.all_inline:
            for row in (0, 0), (1, 0):
                yield f"second level {row}", with_levels(draft, [], [(0, 0), row]).seal(), "corruption"


@spoils("padding of the prelude")
def spoil_padding(draft: Draft, rng: Random) -> Spoilt:
    for where, fill in ("after codebooks", (255, 0)), ("after index", (0, 255)):
        spoilt = draft.seal(fill=fill)
        if spoilt != draft.seal():
            yield where, spoilt, "corruption"


@spoils("index")
def spoil_index(draft: Draft, rng: Random) -> Spoilt:
    sizes = [len(block) for block in draft.blocks]
    for change in 8, -8, 4, -4, 2**31:
        for b in {0, len(sizes) - 1} & set(range(len(sizes))):
            other = [size + change * (i == b) for i, size in enumerate(sizes)]
            yield f"block {b}: {change:+}", draft.seal(index=other), "corruption"
    for change in 8, 4:
        if len(sizes) > 1:
            other = [sizes[0] + change, sizes[1] - change, *sizes[2:]]
            yield f"{change} bytes to block 0 from block 1", draft.seal(index=other), "corruption"
    for size in 0, 8, 16:
        for b, block in enumerate(draft.blocks[:2]):
            blocks = (*draft.blocks[:b], block[:size], *draft.blocks[b + 1 :])
            yield f"block {b} of {size} bytes", replace(draft, blocks=blocks).seal(), "corruption"
    if sizes:
        blocks = draft.blocks[:-1]
        yield "a block too few", replace(draft, blocks=blocks).seal(), "corruption"
        blocks = (*blocks, draft.blocks[-1] + bytes(4))
        yield "4 bytes more", replace(draft, blocks=blocks).seal(), "corruption"
    block = plain_block(0, 1, bytes(8))
    for more in 1, 2, 3:
        blocks = draft.blocks + (block,) * more
        yield f"{more} blocks too many", replace(draft, blocks=blocks).seal(), "corruption"


# Codebooks (§5).


def with_record(draft: Draft, c: int, record: bytes) -> bytes:
    return replace(draft, records=(*draft.records[:c], record, *draft.records[c + 1 :])).seal()


def inline_records(draft: Draft, rng: Random, most: int = 2) -> Iterator[tuple[int, Inline]]:
    """Some of the inline codebooks with their positions."""
    inline = [c for c, record in enumerate(draft.records) if record[0] == 0]
    for c in rng.sample(inline, min(most, len(inline))):
        yield c, Inline.of(draft.records[c])


@spoils("codebook kind")
def spoil_codebook_kind(draft: Draft, rng: Random) -> Spoilt:
    for c, record in list(enumerate(draft.records))[:3] + list(enumerate(draft.records))[-1:]:
        for number in 2, 5, rng.randint(6, 255):
            spoilt = bytes([number]) + record[1:]
            yield f"codebook {c}: {number}", with_record(draft, c, spoilt), "unsupported"
    if draft.records and draft.kind.predicted:
        spoilt = Residual((1, 1) + (0,) * (15 * draft.kind.W // 4 - 1)).record()
        yield "a residual one", with_record(draft, 0, spoilt), "unsupported"


@spoils("codebook n_levels")
def spoil_codebook_n_levels(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in inline_records(draft, rng):
        more = replace(codebook, ranges=(*codebook.ranges, (0, 0)))
        yield "one more", with_record(draft, c, more.record()), "corruption"
        count = codebook.ranges[-1][1]
        less = Inline(codebook.ranges[:-1], codebook.lengths[: len(codebook.lengths) - count])
        yield "one less", with_record(draft, c, less.record()), "corruption"


@spoils("codebook reserved")
def spoil_codebook_reserved(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in inline_records(draft, rng):
        for reserved in 1, 1 << 15:
            yield f"{reserved}", with_record(draft, c, codebook.record(reserved=reserved)), "corruption"


@spoils("first of a range")
def spoil_first(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in inline_records(draft, rng):
        for level, (first, count) in enumerate(codebook.ranges):
            row = first + (1 << draft.kind.H), count
            ranges = (*codebook.ranges[:level], row, *codebook.ranges[level + 1 :])
            spoilt = replace(codebook, ranges=ranges).record()
            yield f"level {level}: 2^H more", with_record(draft, c, spoilt), "corruption"


@spoils("count of a range")
def spoil_count(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in inline_records(draft, rng):
        for total in 255, 256, 300:
            level = rng.randrange(len(codebook.ranges))
            first, count = codebook.ranges[level]
            more = total - (len(codebook.lengths) - 2)
            ranges = (*codebook.ranges[:level], (first, count + more), *codebook.ranges[level + 1 :])
            spoilt = Inline(ranges, codebook.lengths + (0,) * more).record()
            yield f"level {level}: {total} in all", with_record(draft, c, spoilt), "corruption"
        ranges = ((0, 65535), *codebook.ranges[1:])
        yield "65535", with_record(draft, c, replace(codebook, ranges=ranges).record()), "corruption"


def broken_codes(lengths: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Code lengths that are too long or make no complete code, from such that do."""
    free = [i for i, length in enumerate(lengths) if length == 0]
    deepest = lengths.index(max(lengths))

    def other(change: dict[int, int]) -> tuple[int, ...]:
        return tuple(change.get(i, n) for i, n in enumerate(lengths))

    for length in 13, 14, 15:
        yield f"{length}", other({deepest: length})
        if free:
            yield f"{length} for a symbol without code", other({free[0]: length})
    if free and lengths[deepest] == 12:
        yield "two of 13 for one of 12", other({deepest: 13, free[0]: 13})
    nothing = dict.fromkeys(range(len(lengths)), 0)
    yield "no codes", other(nothing)
    yield "one code", other(nothing | {deepest: 1})
    yield "a code less", other({deepest: 0})
    if lengths[deepest] < 12:
        yield "one longer", other({deepest: lengths[deepest] + 1})
    if lengths[deepest] > 1:
        yield "one shorter", other({deepest: lengths[deepest] - 1})
    if free:
        yield "a code more", other({free[-1]: 12})


@spoils("code lengths")
def spoil_lengths(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in inline_records(draft, rng):
        for how, lengths in broken_codes(codebook.lengths):
            yield how, with_record(draft, c, replace(codebook, lengths=lengths).record()), "corruption"


@spoils("padding of a codebook")
def spoil_codebook_padding(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in inline_records(draft, rng, most=8):
        spoilt = codebook.record(fill=rng.randint(1, 255))
        if spoilt != draft.records[c] and len(codebook.lengths) % 8 not in (0, 7):
            yield f"codebook {c}", with_record(draft, c, spoilt), "corruption"


@spoils("codebook by id")
def spoil_by_id(draft: Draft, rng: Random) -> Spoilt:
    named = [c for c, record in enumerate(draft.records) if record[0] == 1]
    for c in rng.sample(named, min(2, len(named))):
        record = draft.records[c]
        for at in 1, 2, 3:
            yield f"reserved byte {at}", with_record(draft, c, flipped(record, at, rng)), "corruption"
        for at in rng.randrange(4, 8), 8, 15:
            what = "id" if at < 8 else "hash"
            yield f"{what}, byte {at}", with_record(draft, c, flipped(record, at, rng)), "unsupported"


# Residual codebooks (§5) and templates (§4).


def with_residual(draft: Draft, c: int, record: bytes) -> bytes:
    return replace(draft, residuals=(*draft.residuals[:c], record, *draft.residuals[c + 1 :])).seal()


def pick_residuals(draft: Draft, rng: Random) -> Iterator[tuple[int, Residual]]:
    """Some of the residual codebooks with their positions."""
    for c in rng.sample(range(len(draft.residuals)), min(2, len(draft.residuals))):
        yield c, Residual.of(draft.residuals[c])


@spoils("residual codebook kind")
def spoil_residual_kind(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in pick_residuals(draft, rng):
        for number in 3, 0, 1, 4, rng.randint(5, 255):
            spoilt = bytes([number]) + codebook.record()[1:]
            yield f"{number}", with_residual(draft, c, spoilt), "unsupported"


@spoils("residual codebook digits")
def spoil_digits(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in pick_residuals(draft, rng):
        digits = draft.kind.W // 4
        for other in 0, digits - 1, digits + 1, 12 - digits, 255:
            yield f"{other} for {digits}", with_residual(draft, c, codebook.record(digits=other)), "corruption"
        for other in digits - 1, digits + 1, 12 - digits:
            lengths = Residual((1, 1) + (0,) * (15 * other - 1))
            yield f"{other} for {digits}, and lengths", with_residual(draft, c, lengths.record()), "corruption"


@spoils("residual codebook reserved")
def spoil_residual_reserved(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in pick_residuals(draft, rng):
        for reserved in 1, 1 << 15:
            yield f"{reserved}", with_residual(draft, c, codebook.record(reserved=reserved)), "corruption"


@spoils("residual codebook lengths")
def spoil_residual_lengths(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in pick_residuals(draft, rng):
        for how, lengths in broken_codes(codebook.lengths):
            yield how, with_residual(draft, c, Residual(lengths).record()), "corruption"


@spoils("padding of a residual codebook")
def spoil_residual_padding(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in pick_residuals(draft, rng):  # there is always padding: 1 + 15 W / 4 is 5 modulo 8
        yield "", with_residual(draft, c, codebook.record(fill=rng.randint(1, 255))), "corruption"


def with_template(draft: Draft, t: int, template: bytes) -> bytes:
    return replace(draft, templates=(*draft.templates[:t], template, *draft.templates[t + 1 :])).seal()


@spoils("template n_columns")
def spoil_n_columns(draft: Draft, rng: Random) -> Spoilt:
    for t in rng.sample(range(len(draft.templates)), min(2, len(draft.templates))):
        template, n_columns = draft.templates[t], draft.n_columns(t)
        yield "1", with_template(draft, t, struct.pack("<I", 1) + template[4:8]), "corruption"
        for many in 2**24, 2**24 + n_columns, 2**31, 2**32 - 1:
            spoilt = struct.pack("<I", many) + template[4:]
            yield f"{many}, and not as many values", with_template(draft, t, spoilt), "corruption"
        if any(template[-4:]) and n_columns > 2:
            spoilt = struct.pack("<I", n_columns - 1) + template[4:]
            yield "one less, and as many values as before", with_template(draft, t, spoilt), "corruption"
        if t == len(draft.templates) - 1 and not draft.columns:  # what follows is shorter than a hash
            yield "0, and no hash", with_template(draft, t, struct.pack("<I", 0)), "corruption"


@spoils("base that is not at hand")
def spoil_base_hash(draft: Draft, rng: Random) -> Spoilt:
    for changed in flipped(bytes(8), 0, rng), flipped(bytes(8), 7, rng), flipped(bytes(8), rng.randrange(1, 7), rng):
        if draft.bases:
            hashed = struct.unpack_from("<Q", draft.templates[draft.bases[0]], 4)[0] ^ int.from_bytes(changed, "little")
            templates = tuple(
                base_template(hashed) if t in draft.bases else template for t, template in enumerate(draft.templates)
            )
            yield "another hash", replace(draft, templates=templates).seal(), "unsupported"
    if not draft.bases and len(draft.templates) + len(draft.columns) < 255:
        templates = (*draft.templates, base_template(rng.getrandbits(64)))
        yield "one more template, unused", replace(draft, templates=templates).seal(), "unsupported"


@spoils("bases of two hashes")
def spoil_two_bases(draft: Draft, rng: Random) -> Spoilt:
    """Whichever of them a decoder has, it lacks the other."""
    if len(draft.templates) + len(draft.columns) > 253:
        return
    first = base_template(rng.getrandbits(64))
    if draft.bases:
        first = draft.templates[draft.bases[0]]
        if len(draft.bases) > 1:
            t = rng.choice(draft.bases)
            yield (
                "one of several",
                with_template(
                    draft, t, draft.templates[t][:4] + flipped(draft.templates[t][4:], rng.randrange(8), rng)
                ),
                "corruption",
            )
    else:
        draft = replace(draft, templates=(*draft.templates, first))
    (hashed,) = struct.unpack_from("<Q", first, 4)
    for other in hashed ^ 1, hashed ^ 1 << 63, hashed ^ rng.randrange(1, 1 << 64):
        templates = (*draft.templates, base_template(other))
        yield f"{other:x} after {hashed:x}", replace(draft, templates=templates).seal(), "corruption"
        templates = (base_template(other), *draft.templates)
        yield f"{other:x} before {hashed:x}", replace(draft, templates=templates).seal(), "corruption"


@spoils("base and template exchanged")
def spoil_base_for_template(draft: Draft, rng: Random) -> Spoilt:
    for t in range(min(2, len(draft.templates))):
        if t not in draft.bases:
            expected: Kind = "corruption" if draft.bases else "unsupported"
            yield "of any hash", with_template(draft, t, base_template(rng.getrandbits(64))), expected
        for b, block in pick_blocks(draft, rng, kinds=(3,)):
            parts = draft.predicted(block)
            if parts.template != t:
                continue
            if draft.bases and any(parts.scales):
                spoilt = with_template(draft, t, draft.templates[draft.bases[0]])
                yield f"block {b}: of the right hash, and scales", spoilt, "corruption"
            # Its hash makes two columns; scales of 3 bytes might be in the padding.
            if t in draft.bases and len(replace(parts, scales=bytes(3)).block()) > len(block):
                spoilt = with_template(draft, t, struct.pack("<I", 2) + draft.templates[t][4:])
                yield f"block {b}: two columns, and no scales", spoilt, "corruption"


# Column references (§4).


def spoilt_columns(draft: Draft, c: int, how: str, record: bytes) -> tuple[str, bytes, Kind]:
    spoilt = replace(draft, columns=(*draft.columns[:c], record, *draft.columns[c + 1 :]))
    return how, spoilt.seal(), "corruption"


def pick_columns(draft: Draft, rng: Random) -> Iterator[tuple[int, Columns]]:
    """Some of the records with their positions."""
    for c in rng.sample(range(len(draft.columns)), min(2, len(draft.columns))):
        yield c, Columns.of(draft.columns[c])


@spoils("columns of a type without tail")
def spoil_columns_without_tail(draft: Draft, rng: Random) -> Spoilt:
    if draft.kind.T == 0:
        record = Columns(2, 0, max(1, draft.n_values), 1, 0, 1, (0, 1)).record()
        yield "one record", replace(draft, columns=(record,)).seal(), "corruption"


@spoils("columns n_columns")
def spoil_columns_n_columns(draft: Draft, rng: Random) -> Spoilt:
    for c, entry in pick_columns(draft, rng):
        for n_columns in 0, 1, 1 << 24, (1 << 24) + 1, 1 << 30, (1 << 31) - 1:
            few = n_columns < 2
            spoilt = replace(entry, n_columns=n_columns, group=1, width=int(few), numbers=(0,) * (n_columns * few))
            yield spoilt_columns(draft, c, f"{n_columns}", spoilt.record())


@spoils("columns first and end")
def spoil_columns_first(draft: Draft, rng: Random) -> Spoilt:
    n = draft.n_values
    for c, entry in pick_columns(draft, rng):
        for first, end in (
            (entry.first, entry.first),
            (entry.end, entry.first),
            (entry.first, n + 1),
            (n, n + 1),
            (entry.first, (1 << 64) - 1),
            (1 << 63, (1 << 63) + 1),
            ((1 << 64) - 1, entry.end),
        ):
            spoilt = replace(entry, first=first, end=end)
            yield spoilt_columns(draft, c, f"{first} and {end} of {n}", spoilt.record())
    if draft.columns:
        last = Columns.of(draft.columns[-1])
        for first, end in ((last.first, last.end), (last.end - 1, n), (0, last.first or 1)):
            again = replace(last, first=first, end=end).record()
            if len(draft.templates) + len(draft.columns) < 255:
                yield (
                    f"{first} and {end} after {last.end}",
                    replace(draft, columns=(*draft.columns, again)).seal(),
                    "corruption",
                )
    if len(draft.columns) > 1:
        yield "out of order", replace(draft, columns=draft.columns[::-1]).seal(), "corruption"


@spoils("columns group")
def spoil_columns_group(draft: Draft, rng: Random) -> Spoilt:
    for c, entry in pick_columns(draft, rng):
        yield spoilt_columns(draft, c, "0", replace(entry, group=0).record())
        yield spoilt_columns(draft, c, "0, and no references", replace(entry, group=0, numbers=()).record())
        for n_columns, group in ((5, 2), (5, 6), (7, 65535), (4, 3), (300, 256)):
            for width in 0, 3:
                spoilt = replace(
                    entry, n_columns=n_columns, group=group, least=0, width=width, numbers=(1,) * (n_columns // group)
                )
                yield spoilt_columns(draft, c, f"{group} of {n_columns}, {width} bits", spoilt.record())


@spoils("columns width")
def spoil_columns_width(draft: Draft, rng: Random) -> Spoilt:
    for c, entry in pick_columns(draft, rng):
        for width in 9, 16, 32, 255:
            numbers = tuple(number % 100 for number in entry.numbers) or (0,) * (entry.n_columns // entry.group)
            spoilt = replace(entry, least=0, width=width, numbers=numbers[:3000])
            yield spoilt_columns(draft, c, f"{width}", spoilt.record())


@spoils("column reference")
def spoil_column_reference(draft: Draft, rng: Random) -> Spoilt:
    for c, entry in pick_columns(draft, rng):
        for least, width, most in (127, 1, 1), (0, 8, 128), (-127, 8, 255), (100, 5, 28):
            for place in 0, 6, rng.randrange(7):
                numbers = tuple(most if i == place else 0 for i in range(7))
                spoilt = Columns(7 * entry.group, entry.first, entry.end, entry.group, least, width, numbers)
                yield spoilt_columns(draft, c, f"{least} and {most} in place {place}", spoilt.record())


@spoils("padding of columns")
def spoil_columns_padding(draft: Draft, rng: Random) -> Spoilt:
    for c, entry in pick_columns(draft, rng):
        for width in 1, 6, 8:  # of three numbers, 1, 3 and 3 bytes
            spoilt = Columns(3 * entry.group, entry.first, entry.end, entry.group, -3, width, (1, 0, 1))
            yield spoilt_columns(draft, c, f"{width} bits each", spoilt.record(fill=rng.randint(1, 255)))


@spoils("columns cut short")
def spoil_columns_cut(draft: Draft, rng: Random) -> Spoilt:
    if draft.columns:  # the last, so that what is missing is taken from what is no record
        record, c = draft.columns[-1], len(draft.columns) - 1
        for size in {len(record) - 8, 16, 8, 4}:
            yield spoilt_columns(draft, c, f"{size} of {len(record)} bytes", record[:size])
        many = replace(Columns.of(record), n_columns=(1 << 24) - 1, group=1, width=8, numbers=())
        yield spoilt_columns(draft, c, "2^24 columns, and no references", many.record())


@spoils("template behind columns")
def spoil_template_behind(draft: Draft, rng: Random) -> Spoilt:
    if draft.columns:
        for c in {0, len(draft.columns) - 1}:
            for what, template in ("values", A_TEMPLATE), ("a base", base_template(0)):
                columns = (*draft.columns[: c + 1], template, *draft.columns[c + 1 :])
                if len(draft.templates) + len(columns) < 256:
                    yield f"{what}, record {c}", replace(draft, columns=columns).seal(), "corruption"
        if draft.templates and len(draft.templates) + len(draft.columns) < 256:
            columns = (*draft.columns, draft.templates[-1])
            yield "the last", replace(draft, templates=draft.templates[:-1], columns=columns).seal(), "corruption"


# Blocks (§6).


def with_block(draft: Draft, b: int, block: bytes) -> bytes:
    return replace(draft, blocks=(*draft.blocks[:b], block, *draft.blocks[b + 1 :])).seal()


def pick_blocks(draft: Draft, rng: Random, kinds: Sequence[int] = (0, 1, 2, 3, 4, 5)) -> Iterator[tuple[int, bytes]]:
    """A block of each kind, with its position."""
    for kind in kinds:
        places = [b for b, block in enumerate(draft.blocks) if block[0] == kind]
        if places:
            b = rng.choice(places)
            yield b, draft.blocks[b]


def with_fields(block: bytes, **change: int) -> bytes:
    """A block with other fields in its header."""
    names = "kind", "codebook", "base", "n_values", "checksum"
    fields = dict(zip(names, BLOCK_HEADER.unpack_from(block), strict=True)) | change
    return BLOCK_HEADER.pack(*fields.values()) + block[16:]


@spoils("block kind")
def spoil_block_kind(draft: Draft, rng: Random) -> Spoilt:
    for b, block in pick_blocks(draft, rng):
        for kind in 6, 255, rng.randint(7, 254):
            yield f"{kind} for {block[0]}", with_block(draft, b, with_fields(block, kind=kind)), "unsupported"


@spoils("predicted block where there is none")
def spoil_not_predictable(draft: Draft, rng: Random) -> Spoilt:
    """Without residual codebooks or templates no codebook or template is below their number."""
    for b, block in pick_blocks(draft, rng):
        if not (draft.residuals and draft.templates):
            spoilt = with_fields(block, kind=3, codebook=0, base=0)
            yield f"in place of kind {block[0]}", with_block(draft, b, spoilt), "corruption"
            (n_values,) = struct.unpack_from("<I", block, 4)
            streams = (b"",) * -(-n_values >> draft.stream_log2)
            whole = Predicted(0, 0, n_values, b"", streams, bytes(3 * n_values), 0, 0, 0, 0).block()
            yield (
                f"{len(draft.residuals)} codebooks, {len(draft.templates)} templates",
                with_block(draft, b, whole),
                "corruption",
            )


@spoils("block codebook")
def spoil_block_codebook(draft: Draft, rng: Random) -> Spoilt:
    for b, block in pick_blocks(draft, rng):
        n = len(draft.residuals if block[0] == 3 else draft.records)
        for codebook in (n, 255) if block[0] >= 2 else (1, 255):
            spoilt = with_fields(block, codebook=codebook)
            yield f"{codebook} of {n}, kind {block[0]}", with_block(draft, b, spoilt), "corruption"


@spoils("block base")
def spoil_base(draft: Draft, rng: Random) -> Spoilt:
    for b, block in pick_blocks(draft, rng):
        (base,) = struct.unpack_from("<H", block, 2)
        n = len(draft.templates)
        wrong = {2: (base + (1 << draft.kind.H), 65535), 3: (n, base + 256, 65535), 4: (n, 256, 65534)}
        for other in wrong.get(block[0], (1, 256, 65535)):
            spoilt = with_fields(block, base=other)
            yield f"{other}, kind {block[0]}", with_block(draft, b, spoilt), "corruption"


@spoils("block n_values")
def spoil_block_n_values(draft: Draft, rng: Random) -> Spoilt:
    for b, block in pick_blocks(draft, rng):
        (n_values,) = struct.unpack_from("<I", block, 4)
        for other in 0, n_values - 1, n_values + 1, 2**32 - 1:
            spoilt = with_fields(block, n_values=other)
            yield f"{other} for {n_values}, kind {block[0]}", with_block(draft, b, spoilt), "corruption"
        for more in 1, -1:  # with a body that fits
            if block[0] == 1:
                body = pack([0] * (n_values + more), draft.kind.W)
                spoilt = plain_block(1, n_values + more, body)
                yield f"{more:+} and body", with_block(draft, b, spoilt), "corruption"


@spoils("block checksum")
def spoil_block_checksum(draft: Draft, rng: Random) -> Spoilt:
    frame = draft.seal()
    start = len(frame) - sum(len(block) for block in draft.blocks)
    for b, block in enumerate(draft.blocks):
        if b in (0, len(draft.blocks) - 1):
            for at in 8, 15, rng.randrange(1, len(block)):
                yield f"block {b}, byte {at}", flipped(frame, start + at, rng), "corruption"
        start += len(block)
    sealed = [sealed_block(block, b) for b, block in enumerate(draft.blocks)]
    if len(sealed) > 2 or (len(sealed) == 2 and draft.n_values % (1 << draft.block_log2) == 0):
        blocks = (sealed[1], sealed[0], *sealed[2:])
        yield "blocks 0 and 1 swapped", replace(draft, blocks=blocks).seal(seal_blocks=False), "corruption"
    blocks = tuple(sealed_block(block, b + 1) for b, block in enumerate(draft.blocks))
    if blocks:
        yield "seed of the next block", replace(draft, blocks=blocks).seal(seal_blocks=False), "corruption"


@spoils("block body")
def spoil_body(draft: Draft, rng: Random) -> Spoilt:
    for b, block in pick_blocks(draft, rng):
        yield f"8 bytes more, kind {block[0]}", with_block(draft, b, block + bytes(8)), "corruption"
        yield f"8 bytes less, kind {block[0]}", with_block(draft, b, block[:-8]), "corruption"


@spoils("padding of a block")
def spoil_block_padding(draft: Draft, rng: Random) -> Spoilt:
    for b, block in pick_blocks(draft, rng):
        if block[0] >= 2:
            parts = parts_of(draft, block)
            spoilt = parts.block(fill=255)
            changed = spoilt != parts.block()
        else:
            (n_values,) = struct.unpack_from("<I", block, 4)
            size = 16 + draft.kind.W // 8 * (n_values if block[0] == 1 else 1)
            spoilt, changed = padded(block[:size], 8, fill=255), size % 8 != 0
        if changed:
            yield f"kind {block[0]}", with_block(draft, b, spoilt), "corruption"


def parts_of(draft: Draft, block: bytes) -> Coded | Predicted | Sparse | Indexed:
    match block[0]:
        case 2:
            return Coded.of(block, draft.stream_log2)
        case 3:
            return draft.predicted(block)
        case 4:
            return Sparse.of(block)
        case _:
            return Indexed.of(block, draft.kind.W)


# Coded blocks (§7), and what they share with predicted ones (§8).


def some_with_streams(draft: Draft, rng: Random) -> Iterator[tuple[int, Coded | Predicted]]:
    yield from some_coded(draft, rng)
    yield from some_predicted(draft, rng)


def some_predicted(draft: Draft, rng: Random) -> Iterator[tuple[int, Predicted]]:
    for b, block in pick_blocks(draft, rng, kinds=(3,)):
        yield b, draft.predicted(block)


def some_coded(draft: Draft, rng: Random) -> Iterator[tuple[int, Coded]]:
    for b, block in pick_blocks(draft, rng, kinds=(2,)):
        yield b, Coded.of(block, draft.stream_log2)


def spoilt_block(draft: Draft, b: int, how: str, block: bytes) -> tuple[str, bytes, Kind]:
    return how, with_block(draft, b, block), "corruption"


@spoils("symbol_bytes")
def spoil_symbol_bytes(draft: Draft, rng: Random) -> Spoilt:
    for b, coded in some_with_streams(draft, rng):
        size = sum(len(stream) for stream in coded.streams)
        for other in size - 8, size + 8, 2**31, 2**32 - 1:
            if other >= 0:
                yield spoilt_block(draft, b, f"{other} for {size}", coded.block(symbol_bytes=other))
        for more in 1, 8:
            yield spoilt_block(draft, b, f"{more} bytes of no sub-stream", coded.block(surplus=bytes(more)))


@spoils("plane_bytes")
def spoil_plane_bytes(draft: Draft, rng: Random) -> Spoilt:
    for b, coded in some_with_streams(draft, rng):
        size = len(coded.planes)
        for other in size - 8, size + 8, 2**31, 2**32 - 1:
            if other >= 0:
                yield spoilt_block(draft, b, f"{other} for {size}", coded.block(plane_bytes=other))
        longer = replace(coded, planes=coded.planes + b"\0")
        yield spoilt_block(draft, b, "and planes: one byte more", longer.block())
        if size:
            shorter = replace(coded, planes=coded.planes[:-1])
            yield spoilt_block(draft, b, "and planes: one byte less", shorter.block())


@spoils("min_stream_bytes")
def spoil_min_stream_bytes(draft: Draft, rng: Random) -> Spoilt:
    for b, coded in some_with_streams(draft, rng):
        block = coded.block()
        for other in coded.min_stream_bytes - 1, coded.min_stream_bytes + 1, 65535:
            if other >= 0:
                spoilt = block[:24] + struct.pack("<H", other) + block[26:]
                yield spoilt_block(draft, b, f"{other} for {coded.min_stream_bytes}", spoilt)


@spoils("length_width")
def spoil_length_width(draft: Draft, rng: Random) -> Spoilt:
    for b, coded in some_with_streams(draft, rng):
        for width in 17, 32, 255:
            yield spoilt_block(draft, b, f"{width}", replace(coded, length_width=width).block())


@spoils("reference_width")
def spoil_reference_width(draft: Draft, rng: Random) -> Spoilt:
    for b, coded in some_coded(draft, rng):
        for width in draft.kind.H + 1, 16, 255:
            yield spoilt_block(draft, b, f"{width}", replace(coded, reference_width=width).block())


@spoils("run_symbol")
def spoil_run_symbol(draft: Draft, rng: Random) -> Spoilt:
    for b, coded in some_coded(draft, rng):
        if draft.records[coded.codebook][0] == 0:
            n_symbols = len(Inline.of(draft.records[coded.codebook]).lengths) - 2
            for symbol in sorted({n_symbols + 1, ESCAPE}):
                spoilt = replace(coded, run_symbol=symbol).block()
                yield spoilt_block(draft, b, f"{symbol} with {n_symbols} symbols", spoilt)


@spoils("coded reserved")
def spoil_coded_reserved(draft: Draft, rng: Random) -> Spoilt:
    for b, coded in some_coded(draft, rng):
        for at in range(2):
            reserved = flipped(bytes(2), at, rng)
            yield spoilt_block(draft, b, f"byte {at}", coded.block(reserved=reserved))


@spoils("flags")
def spoil_flags(draft: Draft, rng: Random) -> Spoilt:
    for b, coded in some_coded(draft, rng):
        for flags in 2, 3, 128, 255:
            yield spoilt_block(draft, b, f"{flags}", replace(coded, flags=flags).block())
        without = replace(draft, columns=())
        yield spoilt_block(without, b, "1, and no column references", replace(coded, flags=1).block())


@spoils("sub-stream")
def spoil_streams(draft: Draft, rng: Random) -> Spoilt:
    for b, coded in some_with_streams(draft, rng):
        long = [s for s, stream in enumerate(coded.streams) if len(stream) >= 2]
        for s in rng.sample(long, min(3, len(long))):
            stream = coded.streams[s]
            yield spoilt_block(draft, b, f"{s}: a byte less", coded.restreamed(s, stream[:-1]).block())
            yield spoilt_block(draft, b, f"{s}: a byte more", coded.restreamed(s, stream + b"\0").block())
            if s + 1 in long:
                next_stream = stream[-1:] + coded.streams[s + 1]
                moved = coded.restreamed(s, stream[:-1]).restreamed(s + 1, next_stream)
                yield spoilt_block(draft, b, f"{s}: a byte to the next", moved.block())
        if coded.n_values > 8 and not coded.streams[0]:
            yield spoilt_block(draft, b, "0: a byte and not a run", coded.restreamed(0, b"\0").block())


# Predicted blocks (§8).


@spoils("predicted run_symbol")
def spoil_predicted_run_symbol(draft: Draft, rng: Random) -> Spoilt:
    for b, predicted in some_predicted(draft, rng):
        most = 15 * draft.kind.W // 4
        for symbol in most + 1, 255:
            yield spoilt_block(draft, b, f"{symbol} of {most}", replace(predicted, run_symbol=symbol).block())


@spoils("column")
def spoil_column(draft: Draft, rng: Random) -> Spoilt:
    for b, predicted in some_predicted(draft, rng):
        n_columns = draft.n_columns(predicted.template)
        for column in n_columns or 1, n_columns + (predicted.column or 2), 2**31, 2**32 - 1:
            spoilt = replace(predicted, column=column)
            yield spoilt_block(draft, b, f"{column} of {n_columns}", spoilt.block())
        if n_columns:
            spoilt = replace(predicted, column=n_columns + predicted.column, scales=bytes(3) + predicted.scales)
            yield spoilt_block(draft, b, "and scales: a row on", spoilt.block())


@spoils("column of a base")
def spoil_column_of_base(draft: Draft, rng: Random) -> Spoilt:
    for b, predicted in some_predicted(draft, rng):
        if predicted.template in draft.bases:
            for column in 1, 255, 256, predicted.n_values, 2**16, 2**24, 2**31:
                yield spoilt_block(draft, b, f"{column}", replace(predicted, column=column).block())


@spoils("scales")
def spoil_scales(draft: Draft, rng: Random) -> Spoilt:
    for b, predicted in some_predicted(draft, rng):
        size = len(predicted.block())
        for more in 1, 3, 8:
            spoilt = replace(predicted, scales=predicted.scales + b"\xff" * more).block()
            yield spoilt_block(draft, b, f"{more} bytes more", spoilt)
        for less in 1, 2, 3, 8:
            spoilt = replace(predicted, scales=predicted.scales[:-less]).block()
            if len(predicted.scales) >= less and len(spoilt) < size:
                yield spoilt_block(draft, b, f"{less} bytes less", spoilt)
        n_columns = draft.n_columns(predicted.template)
        left = -(predicted.column + predicted.n_values) % n_columns if n_columns else 0
        column = predicted.column + left + 1  # so far on, there is a row more
        if column < n_columns and len(replace(predicted, scales=predicted.scales + bytes(3)).block()) > size:
            yield spoilt_block(draft, b, "a row more by the column", replace(predicted, column=column).block())


@spoils("scales with a base")
def spoil_scales_of_base(draft: Draft, rng: Random) -> Spoilt:
    for b, predicted in some_predicted(draft, rng):
        if predicted.template in draft.bases:
            for scales in b"\0\0\x80", b"\0\0\x3f" * 4, b"\xff" * 3 * predicted.n_values:
                yield spoilt_block(draft, b, f"{len(scales)} bytes", replace(predicted, scales=scales).block())
