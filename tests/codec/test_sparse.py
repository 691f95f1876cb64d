"""The laws of frames that say what differs from a base, or from zero (docs/format.md, section 9).

Which values of how many differ, in how many sub-streams and blocks, of which magnitudes and by how much: whatever it
is, decoding brings it back, and the frame is no longer than one of other blocks.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec import EncoderOptions
from gcodec.dtypes import BY_NAME
from gcodec.frame import encode, smallest
from gcodec.frame.sizes import block_log2
from gcodec.plan import finding, sparse_frames
from tests.support import laws
from tests.support.base_pairs import stepped
from tests.support.bit_patterns import KINDS, Array, Bits, from_floats, gaussian, noise, pieces, specials, typed
from tests.support.encode_modes import modes
from tests.support.frame_builder import BlockWriter, Built, Changes, Draft, base_template, build_frame, mutations
from tests.support.frame_builder.sparse import SparseWriter, random_code, random_counts
from tests.support.reference import DTYPES, DType, base_hash

WITHOUT = EncoderOptions(sparse=False)
#: Lengths around those of groups, of sub-streams and of blocks.
LENGTHS = (
    0,
    1,
    63,
    64,
    65,
    255,
    256,
    257,
    321,
    1 << 16,
    (1 << 16) - 1,
    (1 << 16) + 1,
    (1 << 16) + 65,
    (1 << 18) - 1,
    1 << 18,
    (1 << 18) + 1,
)
#: Shares of values that differ; an integer is a number of them.
SHARES: tuple[float, ...] = (0, 1, 0.001, 0.01, 0.1, 1.0)

every_type = pytest.mark.parametrize("dtype", KINDS)


def weights(kind: DType, rng: np.random.Generator, n: int) -> Bits:
    """Draw values like those of a model, and a few that are special."""
    bits = gaussian(kind, rng, n)
    where = rng.random(n) < 0.01
    bits[where] = rng.choice(specials(kind), np.count_nonzero(where))
    return bits


def places(rng: np.random.Generator, n: int, share: float) -> Array:
    """Draw places among n values, in no order."""
    return rng.choice(n, min(share if isinstance(share, int) else round(share * n), n), replace=False)


def changed(kind: DType, rng: np.random.Generator, before: Bits, share: float) -> Bits:
    """Change some values, most of them by a step or two."""
    bits, where = before.copy(), places(rng, len(before), share)
    steps = np.where(
        rng.random(len(where)) < 0.9,
        rng.choice([-2, -1, 1, 2], len(where)),
        noise(kind, rng, len(where)).astype(np.int64),
    )
    bits[where] = stepped(kind, bits[where], steps)
    return bits


def few(kind: DType, rng: np.random.Generator, n: int, share: float) -> Bits:
    """Draw values of which some differ from zero."""
    bits, where = np.zeros(n, kind.container), places(rng, n, share)
    bits[where] = weights(kind, rng, len(where))
    return bits


def kinds_of(frame: bytes) -> set[int]:
    """Return the kinds of a frame's blocks, as their headers have them."""
    return {block[0] for block in Draft.of(frame, laws.SHIPPED).blocks}


def check(dtype: str, bits: Bits, base: Bits | None = None, **options: Any) -> bytes:
    """Check that a frame returns its values and is no longer than one without sparse blocks; return it."""
    options["dtype"] = dtype
    if base is not None:
        options["base"] = typed(dtype, base)
    frame = laws.check_round_trip(typed(dtype, bits), bits, **options)
    laws.check_decoding_in_place(frame, bits, base)
    # Where next to nothing differs from a base, nothing else is tried, though runs could be a few bytes shorter.
    surplus = 0 if base is None else 16
    assert len(frame) <= len(gcodec.encode(typed(dtype, bits), options=WITHOUT, **options)) + surplus
    return frame


# What differs, and how much


@every_type
def test_arrays_of_all_lengths_come_back(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(1)
    for i, n in enumerate(LENGTHS):
        base, share = weights(kind, rng, n), SHARES[i % len(SHARES)]
        check(dtype, changed(kind, rng, base, share), base)
        check(dtype, few(kind, rng, n, share))


@every_type
@pytest.mark.parametrize("n", [500, 5000])
def test_any_share_of_values_may_differ(dtype, n):
    kind, rng = KINDS[dtype], np.random.default_rng(2)
    for share in SHARES:
        base = weights(kind, rng, n)
        for bits, earlier in ((changed(kind, rng, base, share), base), (few(kind, rng, n, share), None)):
            frame = check(dtype, bits, earlier)
            if n == 5000 and 0 < share < 0.05:
                assert kinds_of(frame) == {4}
            laws.check_agreement(frame, base=earlier)
            laws.check_random_access(frame, Random(n), None if earlier is None else typed(dtype, earlier))


@every_type
def test_special_values_are_changes_like_any_other(dtype):
    """Among them zero and negative zero, which is no zero without a base; either may become the other."""
    kind, rng = KINDS[dtype], np.random.default_rng(3)
    special = specials(kind)
    before = np.repeat(special, 10 * len(special))
    after = before.copy()
    after[::10] = np.tile(special, len(special))
    assert kinds_of(check(dtype, after, before)) == {4}
    alone = np.zeros(100 * len(special), kind.container)
    alone[3::100] = special
    assert kinds_of(check(dtype, alone)) == {4}
    negative = np.zeros(3000, kind.container)
    negative[rng.choice(3000, 30)] = 1 << kind.W - 1
    frame = check(dtype, negative)
    assert kinds_of(frame) == {4}
    assert kinds_of(check(dtype, negative, np.zeros_like(negative))) == {4}
    some = np.where(rng.random(3000) < 0.5, negative, 0).astype(kind.container)
    some[0] = 1
    assert kinds_of(check(dtype, some, negative)) == {4}


@every_type
def test_steps_of_every_size_come_back(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(4)
    sizes = sorted({(1 << k) + more for k in range(kind.W) for more in (-1, 0, 1)})
    steps = np.array(sizes + [-size for size in sizes], object) % (1 << kind.W)
    base = weights(kind, rng, 8 * len(steps))
    after = base.copy()
    after[::8] = stepped(kind, base[::8], steps.astype(np.uint64))
    assert kinds_of(check(dtype, after, base)) == {4}


@every_type
def test_bases_of_magnitudes_at_the_ends_come_back(dtype):
    """Only magnitudes decide which values change, so that classes begin and end at the ends."""
    kind, rng = KINDS[dtype], np.random.default_rng(5)
    half = 1 << kind.W - 1
    ends = np.array([0, 1, 2, half - 2, half - 1, half, half + 1, 2 * half - 2, 2 * half - 1], kind.container)
    for shares in ([0, 0, 0, 0, 0.5, 0, 0, 0, 0.5], [0.3, 0, 0, 0, 0, 0.3, 0, 0, 0], [0, 0.4, 0] * 3, [0.02] * 9):
        numbers = rng.integers(0, 9, 20000)
        base, where = ends[numbers], rng.random(20000) < np.array(shares)[numbers]
        after = base.copy()
        after[where] = stepped(kind, base[where], rng.choice([-1, 1], np.count_nonzero(where)))
        check(dtype, after, base)


@pytest.mark.parametrize("code", DTYPES)
def test_thresholds_anywhere_are_read_as_the_page_says(code):
    """The encoder's are few; here they are as many as there may be, at both ends of what they may be."""
    kind, rng = DTYPES[code], Random(code)
    half = 1 << kind.W - 1
    for thresholds in (
        (),
        (1,),
        (half - 1,),
        (1, half - 1),
        tuple(range(1, 16)),
        tuple(range(half - 15, half)),
        (*range(1, 8), *range(half - 8, half)),
    ):
        n_gaps, n_classes = rng.randint(3, 16), len(thresholds) + 1
        codebook = Changes(
            kind.W,
            n_classes,
            n_gaps,
            thresholds,
            random_counts(rng),
            random_code(rng, 2 * kind.W + 1),
            tuple(random_code(rng, 3 * n_gaps) for _ in range(n_classes)),
        )
        near = [threshold + more for threshold in (1, half, *thresholds) for more in (-1, 0, 1)]
        base = [(rng.choice(near) + rng.choice([0, half])) % (2 * half) for _ in range(1500)]
        built = with_codebook(code, codebook, base, rng)
        laws.check_agreement(built.frame, base=built.base)
        laws.assert_same_bits(laws.decode_known(built.frame, {}, base=built.base).reshape(-1), built.bits)


def with_codebook(code: int, codebook: Changes, base: list[int], rng: Random) -> Built:
    """Build a frame of sparse blocks of a codebook."""
    kind = DTYPES[code]
    plain = Draft.of(
        build_frame(
            rng,
            dtype=code,
            n_values=len(base),
            block_log2=10,
            stream_log2=6,
            n_codebooks=0,
            kinds=["raw"],
            with_base=False,
            with_columns=False,
        ).frame,
        {},
    )
    writer = BlockWriter(rng, kind, 6, plain.planes, plain.levels, [], None, base=base)
    sparse = SparseWriter(writer, 10, [codebook], 0, [0])
    drawn = [sparse.block(min(1024, len(base) - start), start) for start in range(0, len(base), 1024)]
    earlier = np.array(base, kind.container)
    draft = replace(
        plain,
        records=(codebook.record(),),
        n_changes=1,
        blocks=tuple(block for block, _ in drawn),
        templates=(base_template(base_hash(earlier)),),
        residuals=(),
    )
    return Built(draft.seal(), pieces(*(np.array(values, kind.container) for _, values in drawn)), {}, earlier)


# What is kept of values


@pytest.mark.parametrize(("dtype", "mode"), [(dtype, mode) for dtype in KINDS for mode in modes(dtype)], ids=str)
def test_rounded_values_are_those_of_other_blocks(dtype, mode):
    """Without a base, levels go with the values that are not zero, wherever these lie."""
    kind, rng = KINDS[dtype], np.random.default_rng(6)
    for n, share in ((3000, 0.02), (700, 0.3)):
        options: dict[str, Any] = {"dtype": dtype} | mode.options
        if "ladder" in options:
            options["levels"] = rng.integers(0, len(options["ladder"].drops), n).astype(np.uint8)
        x = typed(dtype, few(kind, rng, n, share))
        coding = replace(options.pop("options", None) or EncoderOptions(), exact_if_smaller=False)
        others = {"options": replace(coding, sparse=False)}
        frame, other = (
            gcodec.encode(x, **options | coding)
            for coding in ({"options": replace(others["options"], sparse=True)}, others)
        )
        assert 4 not in kinds_of(other)
        assert len(frame) <= len(other)
        if share < 0.1:
            assert kinds_of(frame) == {4}
        laws.assert_same_bits(gcodec.decode(frame), laws.bits_of(gcodec.decode(other)))
        laws.check_agreement(frame)


def test_levels_belong_to_values_in_every_block():
    rng = np.random.default_rng(7)
    n = (1 << 18) + 5000
    x = few(KINDS["bfloat16"], rng, n, 0.01)
    levels = rng.integers(0, len(gcodec.FINE_LADDER["bfloat16"].drops), n).astype(np.uint8)
    frame, other = (gcodec.encode(x, dtype="bfloat16", levels=levels, options=options) for options in (None, WITHOUT))
    assert kinds_of(frame) == {4}
    laws.assert_same_bits(gcodec.decode(frame), laws.bits_of(gcodec.decode(other)))


# How arrays are held, and by whom they are coded


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_threads_and_parts_of_long_arrays_change_nothing(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(8)
    base = np.tile(weights(kind, rng, 1 << 16), 9)[: (1 << 19) + 777]
    for bits, earlier in ((changed(kind, rng, base, 0.003), base), (few(kind, rng, len(base), 0.003), None)):
        frame = check(dtype, bits, earlier)
        assert kinds_of(frame) == {4}
        options = {"dtype": dtype} | ({} if earlier is None else {"base": typed(dtype, earlier)})
        laws.check_threads(typed(dtype, bits), frame, **options)
        laws.check_random_access(frame, Random(9), options.get("base"))


@every_type
def test_unaligned_and_read_only_arrays_come_back(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(10)
    base = weights(kind, rng, 4099)
    bits = changed(kind, rng, base, 0.01)

    def unaligned(values: Bits) -> Array:
        room = np.zeros(values.nbytes + 1, np.uint8)
        room[1:] = values.view(np.uint8)
        array = typed(dtype, values[:0]).dtype.type
        held = room[1:].view(array)
        held.flags.writeable = False
        return held

    frame = check(dtype, bits, base)
    assert gcodec.encode(unaligned(bits), base=unaligned(base), dtype=dtype) == frame
    out = np.zeros(bits.nbytes + 1, np.uint8)[1:].view(typed(dtype, bits).dtype)
    assert gcodec.decode(frame, base=unaligned(base), out=out) is out
    laws.assert_same_bits(out, bits)
    alone = few(kind, rng, 4099, 0.01)
    frame = check(dtype, alone)
    assert gcodec.encode(unaligned(alone), dtype=dtype) == frame
    gcodec.decode(frame, out=out)
    laws.assert_same_bits(out, alone)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("share", [0, 0.01, 0.6, 1])
def test_differing_values_are_all_that_differ(dtype, share):
    kind, rng = KINDS[dtype], np.random.default_rng(11)
    for n in (0, 1, 63, 64, 65, 128, 40_001):
        base = weights(kind, rng, n)
        bits = changed(kind, rng, base, share) if n else base.copy()
        room = np.zeros(bits.nbytes + 1, np.uint8)[1:].view(bits.dtype)
        room[:] = bits
        for values in (bits, room):
            places, found = finding.differing_values(values, base)
            np.testing.assert_array_equal(places, np.flatnonzero(bits != base))
            laws.assert_same_bits(found, bits[bits != base])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float8_e5m2"])
def test_buffers_of_the_caller_are_filled(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(11)
    base = weights(kind, rng, 2000)
    for bits, earlier in ((changed(kind, rng, base, 0.01), base), (few(kind, rng, 2000, 0.01), None)):
        options = {"dtype": dtype} | ({} if earlier is None else {"base": typed(dtype, earlier)})
        frame = check(dtype, bits, earlier)
        laws.check_encode_buffers(typed(dtype, bits), frame, **options)
        laws.check_decode_buffers(frame, options.get("base"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_frames_of_any_lengths_may_follow_each_other(dtype):
    """Buffers are kept from frame to frame; one that was made for a short frame must not serve a long one."""
    kind, rng = KINDS[dtype], np.random.default_rng(12)
    arrays: list[tuple[Bits, Bits | None]] = []
    for n in (300, 70000, 257, 5000, 1 << 18, 64):
        base = weights(kind, rng, n)
        arrays += [(changed(kind, rng, base, 0.3), base), (few(kind, rng, n, 0.3), None)]
    held = [(gcodec.encode(bits, dtype=dtype, base=earlier), bits, earlier) for bits, earlier in arrays]
    for frame, bits, earlier in held:
        laws.assert_same_bits(gcodec.decode(frame, base=earlier), bits)


# What is refused, and what is switched off


@pytest.mark.parametrize("n", [300, 1000, 4000])
@pytest.mark.parametrize("rate", [1e-7, 1e-6, 1e-5])
def test_small_differences_name_a_codebook_instead_of_carrying_one(n, rate):
    kind, rng = KINDS["bfloat16"], np.random.default_rng(n)
    before = rng.normal(0, 0.02, n)
    base = from_floats(kind, before)
    frame = check("bfloat16", from_floats(kind, before + rng.normal(0, rate, n).clip(-rate, rate)), base)
    (record,) = Draft.of(frame, laws.SHIPPED).records
    assert record[0] == 1
    assert len(frame) < 200 + base.nbytes // 20
    noisy = base.copy()
    noisy[::3] ^= rng.integers(1, 1 << 15, len(noisy[::3]), dtype=np.uint16)
    check("bfloat16", noisy, base)


def test_large_arrays_of_many_changes_are_searched_once(monkeypatch):
    """A second search, for classes that a shipped codebook has, would take as long as all the rest."""
    kind, rng, searches = KINDS["bfloat16"], np.random.default_rng(0), []
    base = from_floats(kind, rng.normal(0, 0.02, 5 << 20))
    find = finding.Finding

    def counted(*arguments: Any) -> finding.Finding:
        searches.append(arguments)
        return find(*arguments)

    monkeypatch.setattr(sparse_frames, "Finding", counted)
    gcodec.encode(base + (rng.random(len(base)) < 0.0122).astype(np.uint16), dtype="bfloat16", base=base)
    assert len(searches) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("n_columns", "share"), [(512, 0.8), (768, 0.65), (128, 0.65), (1, 0.65)])
def test_sparse_blocks_are_tried_only_of_zeros_that_are_no_whole_rows(dtype, n_columns, share, monkeypatch):
    """Of whole rows coded blocks take less; finding out what sparse ones take would take several times as long."""
    rng, searches, search = np.random.default_rng(n_columns), [], finding.Finding.find
    n_rows = (1 << 18) // n_columns
    values = rng.standard_normal((n_rows, n_columns)) * np.exp2(-rng.uniform(0, 4, (n_rows, 1)))
    values[rng.random(n_rows) < share] = 0
    matrix = typed(dtype, from_floats(KINDS[dtype], values.reshape(-1))).reshape(values.shape)

    def counted(self: finding.Finding, begin: int, end: int) -> None:
        searches.append((begin, end))
        search(self, begin, end)

    monkeypatch.setattr(finding.Finding, "find", counted)
    frame = gcodec.encode(matrix, dtype=dtype)
    assert bool(searches) == (n_columns == 1)
    without = gcodec.encode(matrix, dtype=dtype, options=WITHOUT)
    assert len(frame) < len(without) if n_columns == 1 else frame == without
    monkeypatch.setattr(sparse_frames, "has_rows_of_zeros", lambda values, shapes: False)
    assert len(gcodec.encode(matrix, dtype=dtype)) == len(frame)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mantissa_bits", [None, 4])
def test_streams_send_arrays_of_scattered_zeros_as_sparse_frames(dtype, mantissa_bits):
    kind, rng = KINDS[dtype], np.random.default_rng(7)
    encoder, decoder, n = gcodec.Encoder(), gcodec.Decoder(), 40_000
    room = np.empty(gcodec.max_encoded_size(n, dtype), np.uint8)
    dense, sparse = [gaussian(kind, rng, n) for _ in range(3)], [few(kind, rng, n, 0.01) for _ in range(3)]
    arrays = [sparse[0], dense[0], sparse[1], dense[1], sparse[2], dense[2], np.zeros(n, kind.container)]
    frames = []
    options: dict[str, Any] = {"dtype": dtype, "mantissa_bits": mantissa_bits}
    for number, bits in enumerate(arrays):
        array = typed(dtype, bits)
        frames.append(bytes(encoder.encode(array, **options, out=room if number % 2 else None)))
        wanted = gcodec.decode(gcodec.encode(array, **options))
        laws.assert_same_bits(decoder.decode(frames[-1]), laws.bits_of(wanted))
    sizes = [len(frame) for frame in frames]
    alone = [len(gcodec.encode(typed(dtype, bits), **options)) for bits in sparse]
    assert sizes[0:6:2] == alone
    assert all(kinds_of(frames[k]) == {4} for k in (0, 2, 4))
    assert sizes[3] < sizes[1]  # the first dense array carries the codebook, later ones name it


@pytest.mark.parametrize("code", DTYPES)
def test_a_frame_without_values_is_refused_with_another_base_than_an_empty_one(code):
    for seed in range(6):
        built = build_frame(
            Random(seed), dtype=code, n_values=0, kinds=["sparse"], with_base=True, n_codebooks=0 if seed < 4 else 1
        )
        assert len(laws.outcome(built.frame, built.codebooks, built.base)) == 0
        for mutation in mutations(built.frame, Random(seed), built.codebooks, ["base that is not at hand"]):
            found = laws.outcome(mutation.frame, built.codebooks, built.base)
            assert found == laws.reference_outcome(mutation.frame, built.codebooks, built.base) == "unsupported"


@every_type
def test_a_wrong_base_is_refused(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(13)
    base = weights(kind, rng, 1000)
    frame = check(dtype, changed(kind, rng, base, 0.01), base)
    other = base.copy()
    other[-1] ^= 1
    laws.check_refused(gcodec.Unsupported, lambda: gcodec.decode(frame))
    laws.check_refused(gcodec.Unsupported, lambda: gcodec.decode(frame, base=typed(dtype, other)))
    laws.check_refused(gcodec.Unsupported, lambda: gcodec.decode_range(frame, 0, 1, base=typed(dtype, other)))
    laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.decode(frame, base=typed(dtype, base[:-1])))
    laws.check_refused(
        gcodec.InvalidArgument, lambda: gcodec.encode(typed(dtype, base), dtype=dtype, base=typed(dtype, base[:-1]))
    )


@every_type
def test_there_are_no_sparse_blocks_where_they_are_not_allowed(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(14)
    base = weights(kind, rng, 1000)
    for options in (WITHOUT, gcodec.LITERAL_GCOMP):
        for bits, earlier in ((changed(kind, rng, base, 0.01), base), (few(kind, rng, 1000, 0.01), None)):
            given = {} if earlier is None else {"base": typed(dtype, earlier)}
            assert 4 not in kinds_of(
                laws.check_round_trip(typed(dtype, bits), bits, dtype=dtype, options=options, **given)
            )


@pytest.mark.parametrize("dtype", BY_NAME.values(), ids=BY_NAME)
@pytest.mark.parametrize(
    ("n_blocks", "n_bytes", "planned"),
    [(1, 96, "coded"), (2, 120, "coded"), (3, 128, "sparse"), (16, 128, "sparse"), (64, 232, "sparse")],
)
def test_of_zeros_only_the_frame_that_is_smallest_is_made(dtype, n_blocks, n_bytes, planned, monkeypatch):
    other = {"coded": "make_sparse_plan", "sparse": "_coded_ways"}[planned]
    log2 = block_log2(dtype)
    if log2 == 15 and n_blocks > 3:
        n_blocks //= 2
    values = np.zeros(n_blocks << log2, dtype.uint)
    best = min(
        (gcodec.encode(values, dtype=dtype.name, options=EncoderOptions(sparse=sparse)) for sparse in (False, True)),
        key=len,
    )
    monkeypatch.setattr(smallest, other, None)
    frame = gcodec.encode(values, dtype=dtype.name)
    assert frame == best and len(frame) == n_bytes
    assert not gcodec.decode(frame, like="numpy").any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("n_in_a_row", [1, 50])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.34, 0.37, 0.39, 0.42])
def test_of_scattered_zeros_one_frame_is_made_which_is_about_the_smallest(dtype, n_in_a_row, share, monkeypatch):
    """Whether zeros are one by one, or so many in a row."""
    kind, rng, n, made = KINDS[dtype], np.random.default_rng(8), 1 << 17, []
    bits = gaussian(kind, rng, n)
    bits[np.repeat(rng.random(n // n_in_a_row + 1) >= share, n_in_a_row)[:n]] = 0
    encode_values = encode.encode_values

    def counted(*args: Any) -> Any:
        made.append(args)
        return encode_values(*args)

    monkeypatch.setattr(smallest, "encode_values", counted)
    frame = gcodec.encode(typed(dtype, bits), dtype=dtype)
    assert len(made) == 1
    check(dtype, bits)
    made.clear()
    monkeypatch.setattr(sparse_frames, "saves_little", lambda values, dtype: False)
    monkeypatch.setattr(smallest, "_may_be_sparse_alone", lambda values, sparse: False)
    assert len(frame) <= 1.005 * len(gcodec.encode(typed(dtype, bits), dtype=dtype))
    assert len(made) == (2 if share <= 0.4 else 1)


def test_what_is_stored_of_gaps_is_the_same_whether_they_are_short_or_long():
    """Gaps below 64 are written by a table, two at a time; those beyond are not."""
    kind, rng = KINDS["float32"], np.random.default_rng(9)
    for share in (0.001, 0.01, 0.05, 0.3):
        bits = few(kind, rng, 100_001, share)
        laws.check_agreement(check("float32", bits))
