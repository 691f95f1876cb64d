"""The laws of reading bytes from strangers: frames spoilt on purpose, all checksums right.

The second decoder says what is right: both must find the same values, or refuse for the same kind of reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from tests.codec.spoilt_frames import (
    altered,
    altered_prelude,
    drawn_mutations,
    frames_of_the_encoder,
    frames_with_a_base,
    small_frames,
    sparse_frame,
)
from tests.support import laws
from tests.support.bit_patterns import KINDS, Bits, gaussian
from tests.support.frame_builder import (
    SPOILERS,
    Built,
    Draft,
    base_template,
    build_frame,
    mutations,
    sealed_block,
)
from tests.support.reference import DTYPES, BlockKind


@pytest.mark.parametrize("part", range(4))
def test_valid_frames_that_no_encoder_writes_decode(part):
    for seed in range(part, 80, 4):
        built = build_frame(
            Random(f"valid {seed}"), named=seed % 3 == 0, spare_bits=seed % 2 == 0, n_values=None if seed % 5 else 3000
        )
        decoded = laws.decode_known(built.frame, built.codebooks, base=built.base)
        laws.assert_same_bits(decoded.reshape(-1), built.bits)
        laws.check_agreement(built.frame, built.codebooks, built.base)
        laws.check_decoding_in_place(built.frame, built.bits, built.base, built.codebooks)


@pytest.mark.slow
def test_thousands_of_valid_frames_that_no_encoder_writes_decode():
    for seed in range(3000):
        built = build_frame(Random(f"many {seed}"), named=seed % 3 == 0, spare_bits=seed % 2 == 0)
        decoded = laws.decode_known(built.frame, built.codebooks, base=built.base)
        laws.assert_same_bits(decoded.reshape(-1), built.bits)


def check_mutations(n_frames: int | None) -> None:
    """Check what comes of frames in which one thing is spoilt, each thing in ``n_frames`` of a type, or in all."""
    spoilt = set()
    for dtype in DTYPES:
        frames = [built for built in small_frames() if built.frame[5] == dtype]
        for built, mutation in drawn_mutations(frames, Random(f"mutations {dtype}"), n_frames):
            found = laws.outcome(mutation.frame, built.codebooks, built.base)
            assert isinstance(found, str) and found == mutation.expected, (
                f"{mutation.name}: {found} {built.frame.hex()}"
            )
            spoilt.add(mutation.name.partition(":")[0])
    assert spoilt == set(SPOILERS)


def test_mutations_are_refused_for_their_reason():
    """The second decoder confirms the reasons in tests/format/test_reference.py."""
    check_mutations(1)


@pytest.mark.slow
def test_every_mutation_is_refused_for_its_reason():
    check_mutations(None)


def test_mutations_of_the_encoders_frames_are_refused():
    frames = frames_of_the_encoder()
    for seed, frame in enumerate([*frames[::3], *(frame for frame in frames if frame[15])]):
        for mutation in mutations(frame, Random(seed), laws.SHIPPED):
            assert laws.outcome(mutation.frame) == mutation.expected, f"frame {seed}, {mutation.name}"
    for seed, built in enumerate(frames_with_a_base()[::4]):
        for mutation in mutations(built.frame, Random(seed), built.codebooks):
            found = laws.outcome(mutation.frame, built.codebooks, built.base)
            assert found == mutation.expected, f"frame {seed} with a base, {mutation.name}"


def test_a_base_hash_of_0_counts_as_a_hash():
    """Two hashes in one frame are one too many, and 0 is the hash of an empty base."""
    built = build_frame(Random(0), dtype=1, n_values=40, kinds=["raw"], with_base=True)
    assert built.base is not None
    draft = Draft.of(built.frame, built.codebooks)
    spoilt = replace(draft, templates=(base_template(0), *draft.templates)).seal()
    assert laws.reference_outcome(spoilt, built.codebooks, built.base) == "corruption"
    assert laws.outcome(spoilt, built.codebooks, built.base) == "corruption"


def check_altered(
    frame: bytes, codebooks: dict[tuple[int, int], bytes], rng: Random, times: int, base: Bits | None = None
) -> set[str]:
    """Check that both decoders make the same of altered frames; return what they made of them."""
    seen: set[str] = set()
    draft = Draft.of(frame, laws.SHIPPED | codebooks)
    for _ in range(times if draft.blocks else 0):
        spoilt = altered(draft, rng)
        found = laws.outcome(spoilt, codebooks, base)
        wanted = laws.reference_outcome(spoilt, codebooks, base)
        assert laws.same_outcome(found, wanted), f"{found} and not {wanted}: {spoilt.hex()}"
        seen.add(found if isinstance(found, str) else "decoded")
    return seen


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_both_decoders_treat_altered_blocks_alike(times):
    seen = set()
    for seed, built in enumerate(small_frames()):
        seen |= check_altered(built.frame, built.codebooks, Random(f"altered {seed}"), times, built.base)
    for seed, frame in enumerate(frames_of_the_encoder()):
        seen |= check_altered(frame, {}, Random(f"altered frame {seed}"), times)
    for seed, built in enumerate(frames_with_a_base()):
        seen |= check_altered(built.frame, built.codebooks, Random(f"altered base {seed}"), times, built.base)
    assert {"corruption", "decoded"} <= seen


def test_both_decoders_treat_altered_predicted_blocks_alike():
    seen = set()
    for seed in range(30):
        rng = Random(f"altered predicted {seed}")
        built = build_frame(
            rng, dtype=1 + seed % 3, n_values=rng.choice([40, 300, 1500]), kinds=["predicted"], with_base=seed % 2 == 0
        )
        seen |= check_altered(built.frame, built.codebooks, rng, 10, built.base)
    assert {"corruption", "decoded"} <= seen


def test_both_decoders_treat_altered_sparse_blocks_alike():
    seen = set()
    for seed in range(48):
        rng = Random(f"altered sparse {seed}")
        built = sparse_frame(f"to be altered {seed}", 1 + seed % 8, seed // 8)
        seen |= check_altered(built.frame, built.codebooks, rng, 6, built.base)
    assert {"corruption", "decoded"} <= seen


@pytest.mark.slow
def test_both_decoders_treat_thousands_of_altered_blocks_alike():
    for seed in range(2000):
        rng = Random(f"much altered {seed}")
        several: list[list[BlockKind] | None] = [["predicted"], None, ["sparse"], ["indexed"]]
        kinds = several[seed % 4]
        built = build_frame(rng, n_values=rng.choice([40, 300, 1500]), named=seed % 7 == 0, kinds=kinds)
        check_altered(built.frame, built.codebooks, rng, 20, built.base)


@pytest.mark.parametrize("times", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_both_decoders_treat_altered_preludes_alike(times):
    seen = set()
    frames = [(built.frame, built.codebooks, built.base) for built in (*small_frames(), *frames_with_a_base()[::5])]
    frames += [(frame, {}, None) for frame in frames_of_the_encoder()[::2]]
    for seed, (frame, codebooks, base) in enumerate(frames):
        rng = Random(f"altered prelude {seed}")
        for _ in range(times):
            spoilt = altered_prelude(frame, rng)
            found = laws.outcome(spoilt, codebooks, base)
            wanted = laws.reference_outcome(spoilt, codebooks, base)
            either = (
                {found, wanted} == {"corruption", "unsupported"}
                if isinstance(found, str) and isinstance(wanted, str)
                else False
            )  # where there are several faults of one step, either may be reported
            assert either or laws.same_outcome(found, wanted), f"{found} and not {wanted}: {spoilt.hex()}"
            seen.add(found if isinstance(found, str) else "decoded")
    assert {"corruption", "unsupported", "decoded"} <= seen


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_both_decoders_treat_any_bytes_behind_a_valid_header_alike(data, seed):
    built = build_frame(Random(seed), n_values=100, n_codebooks=1)
    for spoilt in (built.frame[:48] + data, built.frame[: len(built.frame) // 2] + data):
        assert laws.same_outcome(
            laws.outcome(spoilt, built.codebooks, built.base),
            laws.reference_outcome(spoilt, built.codebooks, built.base),
        )


def test_frames_with_several_faults_are_refused_in_the_order_of_the_page():
    """By docs/format.md, section 11, each step comes before the next."""
    draft = Draft.of(build_frame(Random(3), dtype=1, n_values=500, n_codebooks=1, kinds=["coded"]).frame, {})
    frame = draft.seal(dtype=99)
    assert laws.outcome(frame) == "unsupported"
    frame = frame[:40] + bytes(8) + frame[48:]
    assert laws.outcome(frame) == "corruption"
    frame = frame[:-1]
    assert laws.outcome(frame) == "insufficient"
    frame = frame[:4] + b"\2" + frame[5:]
    assert laws.outcome(frame) == "unsupported"
    frame = b"x" + frame[1:]
    assert laws.outcome(frame) == "corruption"
    assert laws.outcome(frame[:47]) == "insufficient"


def check_limits(frames: Sequence[Built], n_frames: int | None) -> None:
    """Check that both decoders hold to a limit: on whole frames, and on some in which one thing is spoilt, each thing
    in ``n_frames``, or in all."""
    seen, rng = set(), Random("limit")
    spoilt = [(built, built.frame) for built in frames]
    spoilt += [(built, altered_prelude(built.frame, rng)) for built in frames for _ in range(10)]
    spoilt += [(built, mutation.frame) for built, mutation in drawn_mutations(frames, rng, n_frames)]
    for built, frame in spoilt:
        size = built.bits.nbytes
        for limit in (size - 1, size, 0):
            base = built.base if rng.random() < 0.5 else None
            found = laws.outcome(frame, built.codebooks, base, limit)
            wanted = laws.reference_outcome(frame, built.codebooks, base, limit)
            either = {str(found), str(wanted)} == {"corruption", "unsupported"}  # faults of one step
            assert either or laws.same_outcome(found, wanted), f"{found} and not {wanted}: {frame.hex()}"
            seen.add(found if isinstance(found, str) else "decoded")
    assert seen == {"limit", "corruption", "unsupported", "insufficient", "decoded"}


def test_both_decoders_refuse_by_the_limit_after_step_5_and_before_step_6():
    """Frames that are spoilt in the prelude keep their kind of refusal; others that are too long are refused as such,
    before a base is asked for and before a block is read."""
    check_limits((*small_frames()[::15], *frames_with_a_base()[::8]), 1)


@pytest.mark.slow
def test_both_decoders_refuse_by_the_limit_whatever_is_spoilt():
    check_limits((*small_frames()[::30], *frames_with_a_base()[::20]), None)


@pytest.mark.parametrize("which", [0, 1])
def test_a_block_of_less_than_its_header_is_corruption(which):
    """Whoever looks at the block, ``inspect`` included, which reads no more of it than its kind."""
    draft = Draft.of(build_frame(Random(3), dtype=1, n_values=2000, block_log2=10, kinds=["raw"]).frame, {})
    for size in (0, 8):
        blocks = (*draft.blocks[:which], draft.blocks[0][:size], *draft.blocks[which + 1 :])
        frame = replace(draft, blocks=blocks).seal()
        for read in (gcodec.inspect, gcodec.decode, lambda data: gcodec.decode_range(data, 1000 * which, 2000)):
            laws.check_refused(gcodec.Corruption, lambda: read(frame))  # noqa: B023


def test_random_access_verifies_what_it_reads_and_no_more():
    x = gaussian(KINDS["float32"], np.random.default_rng(0), 3 << 14).view(np.float32)
    frame = bytearray(gcodec.encode(x))
    frame[-9] ^= 1
    assert np.array_equal(gcodec.decode_range(bytes(frame), 0, 2 << 14), x[: 2 << 14])
    laws.check_refused(gcodec.Corruption, lambda: gcodec.decode(bytes(frame)))
    laws.check_refused(gcodec.Corruption, lambda: gcodec.decode_range(bytes(frame), 2 << 14, (2 << 14) + 1))


def test_blocks_that_change_places_are_refused():
    """Each block is whole, but its checksum is seeded with its place."""
    draft = Draft.of(build_frame(Random(9), dtype=2, n_values=3 << 10, block_log2=10, kinds=["raw"]).frame, {})
    sealed = [sealed_block(block, b) for b, block in enumerate(draft.blocks)]
    swapped = replace(draft, blocks=(sealed[1], sealed[0], sealed[2])).seal(seal_blocks=False)
    assert laws.outcome(swapped) == "corruption"
