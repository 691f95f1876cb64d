"""Spoilers of codebooks of changes and of sparse blocks (docs/format.md, sections 5 and 9)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from tests.support.frame_builder.parts import (
    Draft,
    Inline,
    Residual,
    pack,
    plain_block,
    sealed_block,
    to_bytes,
)
from tests.support.frame_builder.sparse import (
    N_COUNTS,
    NO_TEMPLATE,
    Changes,
    Sparse,
    category,
    number_bits,
)
from tests.support.frame_builder.spoilers import (
    Spoilt,
    broken_codes,
    pick_blocks,
    spoils,
    spoilt_block,
    with_block,
    with_fields,
    with_record,
    with_residual,
)

MOST_CHANGES = 16

# Codebooks of changes (§5).


def a_codebook(W: int, n_classes: int, n_gaps: int = 2) -> Changes:
    """A codebook of changes whose codes have two symbols each, the first ones; a code of one symbol is empty."""

    def code(n: int) -> tuple[int, ...]:
        return (1, 1) + (0,) * (n - 2) if n > 1 else (0,) * n

    classes = (code(3 * n_gaps if n_classes else n_gaps),) * max(n_classes, 1)
    thresholds = tuple(range(1, n_classes))
    return Changes(W, n_classes, n_gaps, thresholds, code(N_COUNTS), code(2 * W + 1) if n_classes else (), classes)


def two_codes(n: int, symbol: int, apart: int = 1) -> tuple[tuple[int, ...], str]:
    """Code lengths of n symbols of which a symbol and one that is `apart` have codes, and the code of the symbol."""
    other = symbol + apart if symbol + apart < n else symbol - apart
    return tuple(int(i in (symbol, other)) for i in range(n)), "0" if symbol < other else "1"


def counting(codebook: Changes, n: int) -> tuple[Changes, str]:
    """The codebook with a code of counts that has n's category, and the bits of n in it."""
    g, low = category(n)
    lengths, code = two_codes(N_COUNTS, g)
    return replace(codebook, counts=lengths), code + number_bits(g, low)


def pick_changes(draft: Draft, rng: Random) -> Iterator[tuple[int, Changes]]:
    """One of the codebooks of changes that are not given by id, with its position."""
    inline = [c for c, record in enumerate(draft.records) if record[0] == 3]
    for c in rng.sample(inline, min(1, len(inline))):
        yield c, Changes.of(draft.records[c])


def with_codebook(draft: Draft, codebook: Changes) -> Draft | None:
    """With one more codebook of changes, the last one; None if there is no room for it, or if dictionaries follow."""
    if draft.n_changes == MOST_CHANGES or draft.n_dictionaries or len(draft.records) == 255:
        return None
    return replace(draft, records=(*draft.records, codebook.record()), n_changes=draft.n_changes + 1)


@spoils("codebooks of changes")
def spoil_number_of_changes(draft: Draft, rng: Random) -> Spoilt:
    record = a_codebook(draft.kind.W, rng.randrange(3)).record()
    for n in MOST_CHANGES + 1, 255:
        more = n - draft.n_changes
        at = draft.n_coded
        if len(draft.records) + more <= 255:
            records = draft.records[:at] + (record,) * more + draft.records[at:]
            yield f"{n}", replace(draft, records=records).seal(), "corruption"


@spoils("order of codebooks")
def spoil_order(draft: Draft, rng: Random) -> Spoilt:
    end = draft.n_coded + draft.n_changes
    coded, changes = draft.records[: draft.n_coded], draft.records[draft.n_coded : end]
    dictionaries = draft.records[end:]
    if coded and changes:
        yield "changes first", replace(draft, records=changes + coded + dictionaries).seal(), "corruption"
        records = coded[:-1] + changes[:1] + coded[-1:] + changes[1:] + dictionaries
        yield "one of changes before the last", replace(draft, records=records).seal(), "corruption"
    if (changes or dictionaries) and len(draft.records) < 255:
        lengths = (1, 1)
        late = Inline(((0, 0),) * len(draft.levels), lengths).record()
        yield "one of kind 0 behind", replace(draft, records=(*draft.records, late)).seal(), "corruption"
    if dictionaries and len(draft.records) < 255:
        late = a_codebook(draft.kind.W, 0).record()
        yield "one of changes behind", replace(draft, records=(*draft.records, late)).seal(), "corruption"
    if dictionaries and (coded or changes):
        yield "dictionaries first", replace(draft, records=dictionaries + coded + changes).seal(), "corruption"
        records = draft.records[: end - 1] + dictionaries[:1] + draft.records[end - 1 : end] + dictionaries[1:]
        yield "a dictionary before the last of others", replace(draft, records=records).seal(), "corruption"


@spoils("codebook of changes among residual ones")
def spoil_residual_by_changes(draft: Draft, rng: Random) -> Spoilt:
    if draft.residuals:
        c = rng.randrange(len(draft.residuals))
        record = a_codebook(draft.kind.W, rng.randrange(3)).record()
        yield "in place of one", with_residual(draft, c, record), "unsupported"
        if draft.n_changes:
            record = draft.records[draft.n_coded + draft.n_changes - 1]
            yield "one of the frame's", with_residual(draft, c, record), "unsupported"


@spoils("residual codebook among those of changes")
def spoil_changes_by_residual(draft: Draft, rng: Random) -> Spoilt:
    if draft.n_changes:
        record = Residual((1, 1) + (0,) * (15 * draft.kind.W // 4 - 1)).record()
        yield "the last", with_record(draft, draft.n_coded + draft.n_changes - 1, record), "unsupported"


@spoils("changes n_classes")
def spoil_n_classes(draft: Draft, rng: Random) -> Spoilt:
    W = draft.kind.W
    for c, codebook in pick_changes(draft, rng):
        for n_classes in 17, 18, 100:
            yield f"{n_classes}", with_record(draft, c, a_codebook(W, n_classes).record()), "corruption"
        for n_classes in 17, 255:
            spoilt = codebook.record(n_classes=n_classes)
            yield f"{n_classes} for {codebook.n_classes}", with_record(draft, c, spoilt), "corruption"


@spoils("changes n_gaps")
def spoil_n_gaps(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in pick_changes(draft, rng):
        for n_classes in 0, 3:
            for n_gaps in 0, 42, 85, 255:
                spoilt = a_codebook(draft.kind.W, n_classes, n_gaps).record()
                yield f"{n_gaps}, {n_classes} classes", with_record(draft, c, spoilt), "corruption"
        for n_gaps in 0, 42, 255:
            spoilt = codebook.record(n_gaps=n_gaps)
            yield f"{n_gaps} for {codebook.n_gaps}", with_record(draft, c, spoilt), "corruption"


@spoils("changes value_bytes")
def spoil_value_bytes(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in pick_changes(draft, rng):
        W = draft.kind.W
        for other in {0, 1, 2, 3, 4, 8, 16, W, 255} - {W // 8}:
            spoilt = codebook.record(value_bytes=other)
            yield f"{other} for {W // 8}", with_record(draft, c, spoilt), "corruption"
        for other in {8, 16, 24, 32, 64, 128} - {W}:
            spoilt = a_codebook(other, rng.choice([0, 1, 3])).record()
            yield f"{other // 8} and codes for them", with_record(draft, c, spoilt), "corruption"


@spoils("thresholds")
def spoil_thresholds(draft: Draft, rng: Random) -> Spoilt:
    W = draft.kind.W
    half = 1 << W - 1
    sound = a_codebook(W, 4)
    for c, _ in pick_changes(draft, rng):
        for thresholds in (
            (0, 1, 2),
            (1, 1, 2),
            (1, 2, 2),
            (3, 2, 4),
            (1, 3, 2),
            (0, 0, 0),
            (1, 2, half),
            (half, half + 1, half + 2),
            (1, 2, 2 * half - 1),
            (half - 1, half - 1, half - 1),
        ):
            spoilt = replace(sound, thresholds=thresholds).record()
            yield f"{thresholds}", with_record(draft, c, spoilt), "corruption"
        for threshold in 0, half, 2 * half - 1:
            spoilt = replace(a_codebook(W, 2), thresholds=(threshold,)).record()
            yield f"only {threshold}", with_record(draft, c, spoilt), "corruption"


@spoils("changes code lengths")
def spoil_changes_lengths(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in pick_changes(draft, rng):
        for how, lengths in broken_codes(codebook.counts):
            if any(lengths):  # an empty code is legal
                yield f"counts: {how}", with_record(draft, c, replace(codebook, counts=lengths).record()), "corruption"
        for how, lengths in broken_codes(codebook.steps) if codebook.steps else ():
            if any(lengths):
                yield f"steps: {how}", with_record(draft, c, replace(codebook, steps=lengths).record()), "corruption"
        k = rng.randrange(len(codebook.classes))
        for how, lengths in broken_codes(codebook.classes[k]):
            if any(lengths):
                classes = (*codebook.classes[:k], lengths, *codebook.classes[k + 1 :])
                spoilt = replace(codebook, classes=classes).record()
                yield f"class {k} of {codebook.n_classes}: {how}", with_record(draft, c, spoilt), "corruption"


@spoils("padding of a codebook of changes")
def spoil_changes_padding(draft: Draft, rng: Random) -> Spoilt:
    for c, codebook in pick_changes(draft, rng):
        # With 8 and with 4 lengths behind the counts' there are 3 bytes of padding, and one.
        for spoilt in codebook, a_codebook(draft.kind.W, 0, 8), a_codebook(draft.kind.W, 0, 4):
            record = spoilt.record(fill=rng.randint(1, 255))
            if record != spoilt.record():
                yield f"{spoilt.n_gaps} gaps", with_record(draft, c, record), "corruption"


# Sparse blocks (§6, §9).


def some_sparse(draft: Draft, rng: Random) -> Iterator[tuple[int, Sparse]]:
    for b, block in pick_blocks(draft, rng, kinds=(4,)):
        yield b, Sparse.of(block)


@spoils("sparse block where there is none")
def spoil_not_sparse(draft: Draft, rng: Random) -> Spoilt:
    if draft.n_changes:
        return
    for b, block in pick_blocks(draft, rng):
        spoilt = with_fields(block, kind=4, codebook=0, base=NO_TEMPLATE)
        yield f"in place of kind {block[0]}", with_block(draft, b, spoilt), "corruption"
        (n_values,) = struct.unpack_from("<I", block, 4)
        for base in NO_TEMPLATE, 0:
            whole = Sparse(0, base, n_values, b"", (b"",), 0, 0, draft.block_log2).block()
            yield f"with base {base}", with_block(draft, b, whole), "corruption"


@spoils("codebook of another kind")
def spoil_codebook_of_block(draft: Draft, rng: Random) -> Spoilt:
    end = draft.n_coded + draft.n_changes
    own = {2: range(draft.n_coded), 4: range(draft.n_coded, end), 5: range(end, len(draft.records))}
    for b, block in pick_blocks(draft, rng, kinds=(2, 4, 5)):
        for codebook in sorted({0, draft.n_coded - 1, draft.n_coded, end - 1, end, len(draft.records) - 1}):
            if 0 <= codebook < len(draft.records) and codebook not in own[block[0]]:
                yield spoilt_block(draft, b, f"{codebook}, kind {block[0]}", with_fields(block, codebook=codebook))


@spoils("base of a sparse block")
def spoil_sparse_base(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        others = set(range(len(draft.templates) + len(draft.columns))) | {NO_TEMPLATE}
        wrong = others - ({NO_TEMPLATE} if sparse.base == NO_TEMPLATE else set(draft.bases))
        for base in sorted({min(wrong, default=0), max(wrong, default=0)} & wrong):
            yield spoilt_block(draft, b, f"{base} for {sparse.base}", replace(sparse, base=base).block())


@spoils("codebook without the base it needs")
def spoil_base_needed(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        for n_classes in (0,) if draft.bases else (1, 2):
            more = with_codebook(draft, a_codebook(draft.kind.W, n_classes))
            if more:
                base = draft.bases[0] if draft.bases else NO_TEMPLATE
                spoilt = replace(sparse, codebook=len(draft.records), base=base).cut_anew(draft.block_log2)
                yield spoilt_block(more, b, f"{n_classes} classes, base {base}", spoilt.block())


@spoils("sparse symbol_bytes")
def spoil_sparse_symbol_bytes(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        size = sum(len(stream) for stream in sparse.streams)
        for other in size - 8, size + 8, 2**31, 2**32 - 1:
            if other >= 0:
                yield spoilt_block(draft, b, f"{other} for {size}", sparse.block(symbol_bytes=other))
        for more in 1, 8:
            yield spoilt_block(draft, b, f"{more} bytes of no sub-stream", sparse.block(surplus=bytes(more)))


@spoils("sparse min_stream_bytes")
def spoil_sparse_min_stream_bytes(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        block = sparse.block()
        for other in {sparse.min_stream_bytes ^ 1, sparse.min_stream_bytes + 1, 2**16, 2**31, 2**32 - 1}:
            spoilt = block[:20] + struct.pack("<I", other) + block[24:]
            yield spoilt_block(draft, b, f"{other} for {sparse.min_stream_bytes}", spoilt)


@spoils("sparse length_width")
def spoil_sparse_length_width(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        for width in 25, 32, 255:
            yield spoilt_block(draft, b, f"{width}", replace(sparse, length_width=width).block())


@spoils("sparse stream_log2")
def spoil_sparse_stream_log2(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        for stream_log2 in {0, 5, draft.block_log2 + 1, 21, 32, 255} - {draft.block_log2}:
            empty = sparse.cut_anew(stream_log2).block()
            yield spoilt_block(draft, b, f"{stream_log2}, nothing differs", empty)
            if len(sparse.streams) == 1 and stream_log2 > draft.block_log2:
                yield spoilt_block(draft, b, f"{stream_log2}", replace(sparse, stream_log2=stream_log2).block())


@spoils("sparse reserved")
def spoil_sparse_reserved(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        for reserved in 1, 256, rng.randrange(1, 1 << 16):
            yield spoilt_block(draft, b, f"{reserved}", sparse.block(reserved=reserved))


@spoils("changes")
def spoil_change_streams(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        long = [s for s, stream in enumerate(sparse.streams) if len(stream) >= 2]
        for s in rng.sample(long, min(3, len(long))):
            stream = sparse.streams[s]
            yield spoilt_block(draft, b, f"{s}: a byte less", sparse.restreamed(s, stream[:-1]).block())
            yield spoilt_block(draft, b, f"{s}: a byte more", sparse.restreamed(s, stream + b"\0").block())
            yield spoilt_block(draft, b, f"{s}: 8 bytes more", sparse.restreamed(s, stream + bytes(8)).block())
            if s + 1 < len(sparse.streams):
                moved = sparse.restreamed(s, stream[:-1]).restreamed(s + 1, stream[-1:] + sparse.streams[s + 1])
                yield spoilt_block(draft, b, f"{s}: a byte to the next", moved.block())


@spoils("sub-stream of classes without codes")
def spoil_empty_codes(draft: Draft, rng: Random) -> Spoilt:
    """No bit is read of it, so it should have 0 bytes."""
    for b, sparse in some_sparse(draft, rng):
        for n_classes in (0, 1, 3) if draft.bases else (0,):
            empty = a_codebook(draft.kind.W, n_classes)
            empty = replace(empty, classes=tuple((0,) * len(code) for code in empty.classes))
            more = with_codebook(draft, empty)
            if more:
                base = draft.bases[0] if n_classes else NO_TEMPLATE
                spoilt = replace(sparse, codebook=len(draft.records), base=base)
                for stream in b"\0", b"\1", bytes(8):
                    block = spoilt.cut_anew(draft.block_log2, (stream,)).block()
                    yield spoilt_block(more, b, f"{n_classes} classes, {len(stream)} bytes", block)


@spoils("count without a code")
def spoil_no_counts(draft: Draft, rng: Random) -> Spoilt:
    """Nothing differs, but there is a sub-stream, and no count has a code; of no bits, it would come out."""
    for b, sparse in some_sparse(draft, rng):
        for n_classes in (0, 1, 3) if draft.bases else (0,):
            more = with_codebook(draft, replace(a_codebook(draft.kind.W, n_classes), counts=(0,) * N_COUNTS))
            if more:
                base = draft.bases[0] if n_classes else NO_TEMPLATE
                spoilt = replace(sparse, codebook=len(draft.records), base=base)
                for stream in b"\0", b"\xff", bytes(8):
                    block = spoilt.cut_anew(draft.block_log2, (stream,)).block()
                    yield spoilt_block(more, b, f"{n_classes} classes, {stream!r}", block)


@spoils("step without a code")
def spoil_no_steps(draft: Draft, rng: Random) -> Spoilt:
    """All values differ, by a step of which there is no code; if one of no bits were read, all would come out."""
    for b, sparse in some_sparse(draft, rng):
        codebook = replace(a_codebook(draft.kind.W, 1, 1), steps=(0,) * (2 * draft.kind.W + 1), classes=((0, 1, 1),))
        codebook, count = counting(codebook, sparse.n_values)
        more = with_codebook(draft, codebook) if draft.bases else None
        if more:
            spoilt = replace(sparse, codebook=len(draft.records), base=draft.bases[0])
            stream = to_bytes(count + "1" * sparse.n_values)
            yield spoilt_block(more, b, "", spoilt.cut_anew(draft.block_log2, (stream,)).block())


@spoils("bits past a sub-stream of changes")
def spoil_changes_cut(draft: Draft, rng: Random) -> Spoilt:
    """A change must be there with all of its bits; those behind the sub-stream are such as it lacks."""
    for b, sparse in some_sparse(draft, rng):
        for n in {8, min(sparse.n_values, 64)}:
            if n > sparse.n_values:
                continue
            codebook, count = counting(a_codebook(draft.kind.W, 0, 2), n)
            more = with_codebook(draft, codebook)
            stream = to_bytes(count + "0" * n)
            spoilt = replace(sparse, codebook=len(draft.records), base=NO_TEMPLATE)
            spoilt = spoilt.cut_anew(draft.block_log2, (stream,))
            inner = sealed_block(plain_block(0, n, pack([1], draft.kind.W)), 0)
            for size in {1, len(stream) - 1} - {0, len(stream)} if more else ():
                cut = replace(spoilt, streams=(stream[:size],), inner=inner)
                yield spoilt_block(more or draft, b, f"{size} of {len(stream)} bytes", cut.block())


def with_changes(
    draft: Draft, b: int, how: str, codebook: Changes, text: str, stream_log2: int, n_inner: Sequence[int]
) -> Spoilt:
    """Frames in whose block b the first sub-stream holds what none may, and all others nothing.

    Without a base they have inner blocks of so many values, which are what is left if some changes count for nothing.
    """
    more = with_codebook(draft, codebook)
    alone = codebook.n_classes == 0
    if more is None or not (alone or draft.bases):
        return
    base = NO_TEMPLATE if alone else draft.bases[0]
    sparse = replace(Sparse.of(draft.blocks[b]), codebook=len(draft.records), base=base).cut_anew(stream_log2)
    sparse = sparse.restreamed(0, to_bytes(text))
    for n in n_inner if alone else (0,):
        inner = sealed_block(plain_block(0, n, pack([1], draft.kind.W)), 0) if n else b""
        where = f"{how}, {codebook.n_classes} classes, {len(sparse.streams)} sub-streams, {n} inner values"
        yield spoilt_block(more, b, where, replace(sparse, inner=inner).block())


def firsts(draft: Draft, sparse: Sparse) -> set[tuple[int, int]]:
    """stream_log2 for a block of one sub-stream and of short ones, each with the values of the first."""
    return {(draft.block_log2, sparse.n_values), (6, min(sparse.n_values, 64))}


@spoils("more changes than values")
def spoil_many_changes(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        W = draft.kind.W
        for stream_log2, n in firsts(draft, sparse):
            for n_classes in 0, 1:
                codebook, count = counting(a_codebook(W, n_classes), n + 1)
                text = count + "0" * (n + 1)
                yield from with_changes(draft, b, f"{n + 1} of {n}", codebook, text, stream_log2, (n, n + 1))
            # In 16 classes, so that there are too many in one of them at least.
            each = n // 16 + 1
            codebook, count = counting(a_codebook(W, 16), each)
            text = 16 * (count + "0" * each)
            yield from with_changes(draft, b, f"{16 * each} of {n}", codebook, text, stream_log2, ())
        for n in (3 << 19) - 1, (1 << 20) + 1:
            codebook, count = counting(a_codebook(W, 0), n)
            text = count + "0" * 300
            yield from with_changes(draft, b, f"{n}", codebook, text, draft.block_log2, (0, sparse.n_values))


@spoils("gap past a sub-stream")
def spoil_gap(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        for stream_log2, n in firsts(draft, sparse):
            for gap in n, 2 * n, (3 << 19) - 1:
                g, low = category(gap)
                for n_classes in 0, 1:
                    codebook, count = counting(a_codebook(draft.kind.W, n_classes, N_COUNTS), 1)
                    each = 3 if n_classes else 1
                    lengths, code = two_codes(each * N_COUNTS, each * g, each)
                    codebook = replace(codebook, classes=(lengths,))
                    text = count + code + number_bits(g, low)
                    yield from with_changes(draft, b, f"{gap} of {n}", codebook, text, stream_log2, (0, 1))
