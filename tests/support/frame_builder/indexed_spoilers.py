"""Spoilers of dictionaries, of indexed blocks, and of the blocks inside of them (docs/format.md, sections 5 and 10)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random

from tests.support.frame_builder.indexed import Entries, Indexed
from tests.support.frame_builder.parts import (
    Coded,
    Draft,
    Inline,
    Residual,
    pack,
    plain_block,
    sealed_block,
)
from tests.support.frame_builder.sparse import NO_TEMPLATE, Sparse
from tests.support.frame_builder.sparse_spoilers import a_codebook
from tests.support.frame_builder.spoilers import (
    Spoilt,
    broken_codes,
    flipped,
    pick_blocks,
    spoils,
    spoilt_block,
    with_block,
    with_fields,
    with_record,
    with_residual,
)
from tests.support.reference import ESCAPE, Kind, packed_bytes, round_up

MOST_DICTIONARIES = 16
TWO_CODES = Inline(((0, 0),), (1, 1))
NOT_FINITE = 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF

# Dictionaries (§5).


def an_entry(draft: Draft, form: int = 0) -> Entries:
    """A dictionary of one entry."""
    return Entries(draft.kind.W, form, TWO_CODES, (0,))


def first_dictionary(draft: Draft) -> int:
    """Position of the first among the codebooks."""
    return draft.n_coded + draft.n_changes


def pick_dictionaries(draft: Draft, rng: Random) -> Iterator[tuple[int, Entries]]:
    """Some of the dictionaries with their positions."""
    there = range(first_dictionary(draft), len(draft.records))
    for c in rng.sample(there, min(2, len(there))):
        yield c, Entries.of(draft.records[c], draft.kind.W)


@spoils("dictionaries")
def spoil_number_of_dictionaries(draft: Draft, rng: Random) -> Spoilt:
    for n in MOST_DICTIONARIES + 1, 255:
        more = n - draft.n_dictionaries
        if draft.kind.T and len(draft.records) + more <= 255:
            records = draft.records + (an_entry(draft).record(),) * more
            yield f"{n}", replace(draft, records=records).seal(), "corruption"


@spoils("dictionary of a type without tail")
def spoil_dictionary_without_tail(draft: Draft, rng: Random) -> Spoilt:
    if draft.kind.T == 0 and len(draft.records) < 255:
        for entries in an_entry(draft), an_entry(draft, form=1), replace(an_entry(draft), values=(0, 1, 2, 255)):
            records = (*draft.records, entries.record())
            how = f"form {entries.form}, {len(entries.values)} entries"
            yield how, replace(draft, records=records).seal(), "unsupported"


@spoils("dictionary among residual ones")
def spoil_residual_by_dictionary(draft: Draft, rng: Random) -> Spoilt:
    if draft.residuals:
        c = rng.randrange(len(draft.residuals))
        yield "in place of one", with_residual(draft, c, an_entry(draft).record()), "unsupported"
        if draft.n_dictionaries:
            yield "one of the frame's", with_residual(draft, c, draft.records[-1]), "unsupported"


@spoils("residual codebook among dictionaries")
def spoil_dictionary_by_residual(draft: Draft, rng: Random) -> Spoilt:
    if draft.n_dictionaries:
        record = Residual((1, 1) + (0,) * (15 * draft.kind.W // 4 - 1)).record()
        yield "the last", with_record(draft, len(draft.records) - 1, record), "unsupported"


@spoils("form of a dictionary")
def spoil_form(draft: Draft, rng: Random) -> Spoilt:
    for c, entries in pick_dictionaries(draft, rng):
        for form in 2, 4, 128, 255:
            yield f"{form} for {entries.form}", with_record(draft, c, entries.record(form=form)), "unsupported"
        if not draft.kind.predicted:
            for form, n in product((1, 3), (1, len(entries.values))):
                factors = Entries(draft.kind.W, form, entries.codebook, (0x3F800000,) * n)
                how = f"{n} factors of {draft.kind.name}" + (" with offsets" if form == 3 else "")
                yield how, with_record(draft, c, factors.record()), "corruption"


@spoils("n_entries")
def spoil_n_entries(draft: Draft, rng: Random) -> Spoilt:
    for c, entries in pick_dictionaries(draft, rng):
        for n in 0, 257, 300:
            values = (entries.values * 300)[:n]
            yield f"{n}, and as many", with_record(draft, c, replace(entries, values=values).record()), "corruption"
        for n in 0, 257, 2**15, 2**16 - 1:
            yield f"{n}", with_record(draft, c, entries.record(n_entries=n)), "corruption"
        if c == len(draft.records) - 1 and not (draft.residuals or draft.templates or draft.columns):
            n = len(entries.values) - 1  # what is left over would be padding
            if n and entries.values[-1] and entries.form:
                yield "one less", with_record(draft, c, entries.record(n_entries=n)), "corruption"


@spoils("codebook of a dictionary")
def spoil_codebook_of_dictionary(draft: Draft, rng: Random) -> Spoilt:
    for c, entries in pick_dictionaries(draft, rng):
        codebook = entries.codebook
        ((first, count),) = codebook.ranges

        def other(how: str, record: bytes, c: int = c, entries: Entries = entries) -> tuple[str, bytes, Kind]:
            return how, with_record(draft, c, entries.record(codebook=record)), "corruption"

        for kind in 1, 2, 3, 4, 5, 255:
            yield other(f"kind {kind}", bytes([kind]) + codebook.record()[1:])
        yield other("by id", struct.pack("<B3sIQ", 1, b"", 1, 0x2023B30BA49A0B1A))
        yield other("of changes", a_codebook(draft.kind.W, 0).record())
        yield other("a dictionary", an_entry(draft).record())
        yield other("2 levels", replace(codebook, ranges=((first, count), (0, 0))).record())
        yield other("no level", Inline((), (1, 1)).record())
        yield other("reserved", codebook.record(reserved=1 << rng.randrange(16)))
        for beyond in 256, 511, 2047:
            yield other(f"first {beyond}", replace(codebook, ranges=((beyond, count),)).record())
        for n in 255, 256:
            yield other(f"{n} symbols", Inline(((first, n),), codebook.lengths + (0,) * (n - count)).record())
        for how, lengths in broken_codes(codebook.lengths):
            yield other(f"lengths: {how}", replace(codebook, lengths=lengths).record())
        for sound in codebook, TWO_CODES:
            spoilt = sound.record(fill=rng.randint(1, 255))
            if spoilt != sound.record() and len(sound.lengths) % 8 not in (0, 7):
                yield other(f"padding after {len(sound.lengths)} lengths", spoilt)


@spoils("factor")
def spoil_factor(draft: Draft, rng: Random) -> Spoilt:
    for c, entries in pick_dictionaries(draft, rng):
        for factor in NOT_FINITE if entries.form else ():
            for at in {0, len(entries.values) - 1, rng.randrange(len(entries.values))}:
                values = (*entries.values[:at], factor, *entries.values[at + 1 :])
                spoilt = replace(entries, values=values).record()
                yield f"{factor:x} in place {at} of {len(values)}", with_record(draft, c, spoilt), "corruption"


@spoils("padding of a dictionary")
def spoil_dictionary_padding(draft: Draft, rng: Random) -> Spoilt:
    for c, entries in pick_dictionaries(draft, rng):
        # An odd number of values of 16 bits leaves two bytes.
        for sound in entries, an_entry(draft), replace(an_entry(draft), values=(0, 1, 2)):
            spoilt = sound.record(fill=rng.randint(1, 255))
            if spoilt != sound.record():
                yield f"{len(sound.values)} entries", with_record(draft, c, spoilt), "corruption"


# Indexed blocks (§6, §10).


def all_indexed(draft: Draft) -> list[tuple[int, Indexed]]:
    """All indexed blocks with their numbers."""
    return [(b, Indexed.of(block, draft.kind.W)) for b, block in enumerate(draft.blocks) if block[0] == 5]


def some_with_offsets(draft: Draft, rng: Random) -> Iterator[tuple[int, Indexed]]:
    """Up to two indexed blocks with offsets."""
    blocks = [(b, indexed) for b, indexed in all_indexed(draft) if indexed.pairs]
    yield from rng.sample(blocks, min(2, len(blocks)))


def some_indexed(draft: Draft, rng: Random) -> Iterator[tuple[int, Indexed]]:
    """An indexed block of each form but that with offsets, and for each kind of inner block."""
    blocks = [(b, indexed) for b, indexed in all_indexed(draft) if not indexed.pairs]
    for form in range(2):
        for kind in range(3):
            of_this_kind = [
                (b, indexed) for b, indexed in blocks if (indexed.segment > 0) == form and indexed.inner[0] == kind
            ]
            if of_this_kind:
                yield rng.choice(of_this_kind)


def rescaled(indexed: Indexed, scale: int = 0x3F800000) -> Indexed:
    """With as many scales as its fields say, all the same."""
    one = (bytes(8) + scale.to_bytes(4, "little"))[12 - indexed.scale_bytes :]
    return replace(indexed, scales=one * indexed.n_segments)


@spoils("indexed block where there is none")
def spoil_not_indexed(draft: Draft, rng: Random) -> Spoilt:
    if draft.n_dictionaries:
        return
    for b, block in pick_blocks(draft, rng):
        spoilt = with_fields(block, kind=5, codebook=0, base=0)
        yield f"in place of kind {block[0]}", with_block(draft, b, spoilt), "corruption"
        (n_values,) = struct.unpack_from("<I", block, 4)
        inner = sealed_block(plain_block(0, n_values, bytes(1)), b)
        whole = Indexed(draft.kind.W, 0, n_values, inner, 0, b"", (), 0, 0)
        yield "form 0", with_block(draft, b, whole.block()), "corruption"
        whole = rescaled(replace(whole, scale_bytes=4, segment=n_values))
        yield "form 1", with_block(draft, b, whole.block()), "corruption"


@spoils("dictionary of the other form")
def spoil_other_form(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        form = draft.records[indexed.codebook][1]
        for c in range(first_dictionary(draft), len(draft.records)):
            if draft.records[c][1] != form:
                other = draft.records[c][1]
                yield spoilt_block(draft, b, f"{other} for {form}", replace(indexed, codebook=c).block())
                break


@spoils("scale_bytes")
def spoil_scale_bytes(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        if indexed.segment == 0:
            for scale_bytes in 1, 2, 3, 4, 256, NO_TEMPLATE:
                spoilt = replace(indexed, scale_bytes=scale_bytes)
                yield spoilt_block(draft, b, f"{scale_bytes} for form 0", spoilt.block())
            for scale_bytes in 2, 3, 4:
                spoilt = rescaled(replace(indexed, scale_bytes=scale_bytes, segment=1 + rng.randrange(300)))
                yield spoilt_block(draft, b, f"{scale_bytes} for form 0, and scales", spoilt.block())
            continue
        for scale_bytes in 0, 1, 5, 6, 8:
            spoilt = rescaled(replace(indexed, scale_bytes=scale_bytes))
            yield spoilt_block(draft, b, f"{scale_bytes}, and scales", spoilt.block())
        for scale_bytes in 0, 1, 5, 256 + indexed.scale_bytes, NO_TEMPLATE:
            spoilt = replace(indexed, scale_bytes=scale_bytes)
            yield spoilt_block(draft, b, f"{scale_bytes} for {indexed.scale_bytes}", spoilt.block())


@spoils("segment")
def spoil_segment(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        if indexed.segment == 0:
            for segment in 1, indexed.n_values, 2**31, 2**32 - 1:
                yield spoilt_block(draft, b, f"{segment} for form 0", replace(indexed, segment=segment).block())
            continue
        yield spoilt_block(draft, b, "0", replace(indexed, segment=0).block())
        for skipped in 0, 1:
            spoilt = replace(indexed, segment=0, skipped=skipped, scales=b"")
            yield spoilt_block(draft, b, f"0, {skipped} skipped, and no scales", spoilt.block())
        size = len(indexed.block())
        for segment in 1, indexed.segment - 1, indexed.segment + 1, 2 * indexed.segment, 2**32 - 1:
            if not indexed.skipped < segment < 2**32:
                continue
            spoilt = replace(indexed, segment=segment)
            n_bytes = 32 + len(indexed.inner) + spoilt.n_segments * indexed.scale_bytes
            n_bytes += len(indexed.exceptions) * indexed.W // 8
            if round_up(n_bytes, 8) != size:
                yield spoilt_block(draft, b, f"{segment} for {indexed.segment}", spoilt.block())


@spoils("skipped")
def spoil_skipped(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        if indexed.segment == 0:
            for skipped in 1, indexed.n_values, 2**31, 2**32 - 1:
                yield spoilt_block(draft, b, f"{skipped} for form 0", replace(indexed, skipped=skipped).block())
            continue
        few = replace(indexed, segment=max(indexed.segment, indexed.n_values))  # of few scales
        for one in indexed, few:
            for skipped in {one.segment, one.segment + 1, 2 * one.segment + 1, 2**32 - 1}:
                spoilt = replace(one, skipped=skipped)
                if one.segment <= skipped < 2**32:
                    how = f"{skipped} of {one.segment}"
                    yield spoilt_block(draft, b, how, spoilt.block())
                    if spoilt.n_segments < 10000:
                        yield spoilt_block(draft, b, f"{how}, and scales", rescaled(spoilt).block())


@spoils("scales of an indexed block")
def spoil_indexed_scales(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        size = len(indexed.block())
        if indexed.segment == 0:
            for scales in b"\1", b"\x80\x3f", b"\1" * 8:
                spoilt = replace(indexed, scales=scales).block()
                if len(spoilt) > size or not indexed.exceptions:  # else what spills over may be zeros
                    yield spoilt_block(draft, b, f"{scales.hex()} for form 0", spoilt)
            continue
        for more in 1, indexed.scale_bytes, 8:
            spoilt = replace(indexed, scales=indexed.scales + b"\x11" * more).block()
            if len(spoilt) > size or not indexed.exceptions:
                yield spoilt_block(draft, b, f"{more} bytes more", spoilt)
        for less in 1, indexed.scale_bytes, 8:
            spoilt = replace(indexed, scales=indexed.scales[:-less]).block()
            if len(indexed.scales) >= less and len(spoilt) < size:
                yield spoilt_block(draft, b, f"{less} bytes less", spoilt)


@spoils("scale that is not finite")
def spoil_scale(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        n, width = indexed.n_segments, indexed.scale_bytes
        for at in {0, n - 1, rng.randrange(n)} if n else ():
            for scale in NOT_FINITE:
                one = scale.to_bytes(4, "little")[4 - width :]
                scales = indexed.scales[: at * width] + one + indexed.scales[(at + 1) * width :]
                spoilt = replace(indexed, scales=scales)
                yield spoilt_block(draft, b, f"{scale:x} in place {at} of {n}", spoilt.block())


@spoils("dictionary of another form than one with offsets")
def spoil_form_with_offsets(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_with_offsets(draft, rng):
        for c in range(first_dictionary(draft), len(draft.records)):
            if draft.records[c][1] != 3:
                form = draft.records[c][1]
                yield spoilt_block(draft, b, f"{form} for 3", replace(indexed, codebook=c).block())


@spoils("segments with offsets")
def spoil_segments_with_offsets(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_with_offsets(draft, rng):
        yield spoilt_block(draft, b, "segment 0", replace(indexed, segment=0, skipped=0).block())
        for skipped in {indexed.segment, min(2 * indexed.segment, 2**32 - 1), 2**32 - 1}:
            yield spoilt_block(draft, b, f"{skipped} skipped", replace(indexed, skipped=skipped).block())
        for scale_bytes in 1, 2, 3, 4, 256:
            yield spoilt_block(
                draft, b, f"scale_bytes {scale_bytes}", replace(indexed, scale_bytes=scale_bytes).block()
            )
        without = replace(indexed, pairs=b"", exceptions=())
        yield spoilt_block(draft, b, "none", without.block())


@spoils("fields of scales and offsets")
def spoil_fields_of_offsets(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_with_offsets(draft, rng):
        pairs, which = indexed.pairs, rng.choice([0, 8])
        name = "offsets" if which else "scales"
        beyond = {"shift": (24, 32, 255), "width": (33, 64, 255), "sign": (3, 4, 255), "reserved": (1, 128)}
        for at, (field, numbers) in enumerate(beyond.items(), 4):
            for number in numbers:
                spoilt = pairs[: which + at] + bytes([number]) + pairs[which + at + 1 :]
                yield spoilt_block(draft, b, f"{field} {number} of {name}", replace(indexed, pairs=spoilt).block())
        for least in 0x7F800000, 0x7FC00000, 0x80000000, 0xFFFFFFFF:
            spoilt = pairs[:which] + least.to_bytes(4, "little") + pairs[which + 4 :]
            yield spoilt_block(draft, b, f"least {least:x} of {name}", replace(indexed, pairs=spoilt).block())


@spoils("items of scales and offsets")
def spoil_items_of_offsets(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_with_offsets(draft, rng):
        size, pairs = len(indexed.block()), indexed.pairs
        for more in 1, 8:
            spoilt = replace(indexed, pairs=pairs + b"\x11" * more).block()
            if len(spoilt) > size or not indexed.exceptions:
                yield spoilt_block(draft, b, f"{more} bytes more", spoilt)
        for less in 1, 8:
            spoilt = replace(indexed, pairs=pairs[:-less]).block()
            if len(pairs) >= 16 + less and len(spoilt) < size:
                yield spoilt_block(draft, b, f"{less} bytes less", spoilt)
        n = indexed.n_segments
        for width, shift in (32, 0), (32, 23), (9, 23), (31, 1):
            items = pack([0] * (n - 1) + [(1 << width) - 1], width)
            fields = struct.pack("<IBBBB", 0x00800000, shift, width, rng.choice([0, 1]), 0)
            one, none = struct.pack("<IBBBB", 0x3F800000, 0, 0, 0, 0), b""
            for spoilt_pairs in fields + one + items + none, one + fields + none + items:
                how = f"the last of {n} beyond all floats: {width} bits, {shift} places up"
                yield spoilt_block(draft, b, how, replace(indexed, pairs=spoilt_pairs).block())


@spoils("n_exceptions")
def spoil_n_exceptions(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        n, exceptions = len(indexed.exceptions), indexed.exceptions
        for other in {n - 1, n + 1, n + 8, 256, 2**29, 2**31, 2**32 - 1} - {n}:
            if other >= 0:
                yield spoilt_block(draft, b, f"{other} for {n}", indexed.block(n_exceptions=other))
        for more in 1, 8:
            spoilt = replace(indexed, exceptions=exceptions + (1,) * more)
            yield spoilt_block(draft, b, f"{n + more} for {n}, and as many", spoilt.block())
        for less in {1, 8, n}:
            if 0 < less <= n:
                spoilt = replace(indexed, exceptions=exceptions[:-less])
                yield spoilt_block(draft, b, f"{n - less} for {n}, and as many", spoilt.block())
        for more in 1, 8:
            spoilt_bytes = indexed.block(surplus=b"\x11" * more)
            yield spoilt_block(draft, b, f"{more} bytes behind", spoilt_bytes)


@spoils("indices of exceptions")
def spoil_indices(draft: Draft, rng: Random) -> Spoilt:
    """More or fewer of the indices are those of exceptions than there are exceptions."""
    for b, indexed in some_indexed(draft, rng):
        n, n_exceptions = indexed.n_values, len(indexed.exceptions)
        n_entries = draft.records[indexed.codebook][2] | draft.records[indexed.codebook][3] << 8
        for index in {0, n_entries - 1, n_entries, 255}:
            if index < 256 and n * (index >= n_entries) != n_exceptions:
                yield spoilt_inner(
                    draft, b, f"{index} for all of {n_entries} entries", plain_block(0, n, bytes([index]))
                )
        for other in n_exceptions - 1, n_exceptions + 1:
            if n_entries < 256 and 0 <= other <= n:
                indices = [255] * other + [0] * (n - other)
                yield spoilt_inner(draft, b, f"{other} indices for {n_exceptions}", plain_block(1, n, bytes(indices)))


# Inner blocks (§10).


def spoilt_inner(draft: Draft, b: int, how: str, inner: bytes) -> tuple[str, bytes, Kind]:
    """A frame whose block b has another inner block, with the checksum that belongs to it."""
    indexed = replace(Indexed.of(draft.blocks[b], draft.kind.W), inner=sealed_block(inner, b))
    return spoilt_block(draft, b, how, indexed.block())


@spoils("indexed inner_bytes")
def spoil_indexed_inner_bytes(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        size = len(indexed.inner)
        for other in {0, size - 8, size + 8, size + 4, size + 1, size - 1, 8, 2**31, 2**32 - 8, 2**32 - 1} - {size}:
            yield spoilt_block(draft, b, f"{other} for {size}", indexed.block(inner_bytes=other))
        for more in 1, 4, 8:
            longer = replace(indexed, inner=indexed.inner + bytes(more))
            yield spoilt_block(draft, b, f"{more} bytes more", longer.block())


@spoils("no indices")
def spoil_no_indices(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        for size in 0, 8, 16:
            yield spoilt_inner(draft, b, f"kind {indexed.inner[0]}, {size} bytes", indexed.inner[:size])


@spoils("kind of indices")
def spoil_kind_of_indices(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        for kind in 3, 4, 5, 6, 255, rng.randint(7, 254):
            yield spoilt_inner(draft, b, f"{kind} for {indexed.inner[0]}", with_fields(indexed.inner, kind=kind))
        n = indexed.n_values
        yield spoilt_inner(draft, b, "indexed", replace(indexed, codebook=0).block())
        yield spoilt_inner(draft, b, "indexed, of the same dictionary", indexed.block())
        within = Sparse(0, NO_TEMPLATE, n, b"", (b"",) * -(-n >> draft.block_log2), 0, 0, draft.block_log2)
        yield spoilt_inner(draft, b, "sparse", within.block())


@spoils("n_values of indices")
def spoil_n_values_of_indices(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        n = indexed.n_values
        for other in {0, n - 1, n + 1, 1 << draft.block_log2, 2**32 - 1} - {n}:
            how = f"{other} for {n}, kind {indexed.inner[0]}"
            yield spoilt_inner(draft, b, how, with_fields(indexed.inner, n_values=other))
        for other in n - 1, n + 1:
            yield spoilt_inner(draft, b, f"{other} for {n}, and as many", plain_block(1, other, bytes(other)))


@spoils("checksum of indices")
def spoil_checksum_of_indices(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        for at in 8, 15, rng.randrange(16, len(indexed.inner)):
            spoilt = replace(indexed, inner=flipped(indexed.inner, at, rng))
            yield spoilt_block(draft, b, f"byte {at}", spoilt.block())
        for other in {0, b + 1, b - 1, -1} - {b}:  # -1: without a seed
            spoilt = replace(indexed, inner=sealed_block(indexed.inner, other))
            yield spoilt_block(draft, b, f"seed of block {other}", spoilt.block())


@spoils("codebook and base of indices")
def spoil_codebook_of_indices(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        kind = indexed.inner[0]
        for codebook in sorted({1, indexed.codebook or 2, len(draft.records), 255}):
            if codebook < 256:
                spoilt = with_fields(indexed.inner, codebook=codebook)
                yield spoilt_inner(draft, b, f"codebook {codebook}, kind {kind}", spoilt)
        for base in (256, 511, NO_TEMPLATE) if kind == 2 else (1, 256, NO_TEMPLATE):
            yield spoilt_inner(draft, b, f"base {base}, kind {kind}", with_fields(indexed.inner, base=base))


@spoils("coded indices")
def spoil_coded_indices(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        if indexed.inner[0] != 2:
            continue
        coded = Coded.of(indexed.inner, draft.stream_log2)
        for flags in 1, 2, 255:  # 1 even if there are column references
            yield spoilt_inner(draft, b, f"flags {flags}", replace(coded, flags=flags).block())
        n_symbols = len(Entries.of(draft.records[indexed.codebook], draft.kind.W).codebook.lengths) - 2
        for symbol in {n_symbols + 1, ESCAPE}:
            yield spoilt_inner(draft, b, f"run_symbol {symbol}", replace(coded, run_symbol=symbol).block())
        for width in 9, 16, 255:
            yield spoilt_inner(draft, b, f"reference_width {width}", replace(coded, reference_width=width).block())
        for width in 17, 255:
            yield spoilt_inner(draft, b, f"length_width {width}", replace(coded, length_width=width).block())
        yield spoilt_inner(draft, b, "reserved", coded.block(reserved=b"\0\1"))
        yield spoilt_inner(draft, b, "symbol_bytes", coded.block(surplus=b"\0"))
        for n in {1, 8, packed_bytes(indexed.n_values, draft.kind.T)}:
            yield spoilt_inner(draft, b, f"{n} bytes of planes", replace(coded, planes=bytes(n)).block())
        long = [s for s, stream in enumerate(coded.streams) if stream]
        for s in rng.sample(long, min(2, len(long))):
            stream = coded.streams[s]
            yield spoilt_inner(draft, b, f"sub-stream {s}: a byte more", coded.restreamed(s, stream + b"\0").block())
            if len(stream) > 1:
                yield spoilt_inner(draft, b, f"sub-stream {s}: a byte less", coded.restreamed(s, stream[:-1]).block())


@spoils("padding of indices")
def spoil_padding_of_indices(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        inner, kind = indexed.inner, indexed.inner[0]
        if kind == 2:
            coded = Coded.of(inner, draft.stream_log2)
            sound, spoilt = coded.block(), coded.block(fill=255)
        else:
            size = 16 + (1 if kind == 0 else indexed.n_values)
            sound, spoilt = inner, inner[:size] + b"\xff" * (len(inner) - size)
        if spoilt[16:] != sound[16:]:
            yield spoilt_inner(draft, b, f"kind {kind}", spoilt)
        yield spoilt_inner(draft, b, f"kind {kind}: 8 bytes more", inner + bytes(8))


@spoils("indices of as many bits as values")
def spoil_wide_indices(draft: Draft, rng: Random) -> Spoilt:
    for b, indexed in some_indexed(draft, rng):
        W, n = draft.kind.W, indexed.n_values
        spoilt = plain_block(0, n, pack([1 << W - 8], W))
        yield spoilt_inner(draft, b, "constant", spoilt)
        spoilt = plain_block(1, n, pack([0] * n, W))
        if len(spoilt) > len(plain_block(1, n, bytes(n))):
            yield spoilt_inner(draft, b, "raw", spoilt)
