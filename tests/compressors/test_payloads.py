"""The laws of payloads: what is packed is unpacked, in as many bytes as was said; what is damaged is refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from gcodec.averaging.simulate import run_conversations
from gcodec.compressors import DGC, QSGD, AllGather, AllReduce, AllToAll, Blockwise, Frames, RedSync, SparCML, TopK
from gcodec.compressors.batching import batch_conversations, join_payloads, split_payloads
from gcodec.compressors.bit_packing import pack_bits, packed_size, unpack_bits
from gcodec.compressors.contract import Place
from gcodec.compressors.draws import below, draw64
from gcodec.compressors.indices import bits_per_index, decode_indices, encode_indices
from gcodec.compressors.payload import ENVELOPE, SPARSE, seal, unseal
from gcodec.compressors.quantization import dequantize, norms_of, quantize
from gcodec.compressors.sparse import pack_sparse, unpack_sparse
from gcodec.errors import Corruption, GcodecError, InsufficientData
from gcodec.kernels.core.jit import kernel


@st.composite
def index_sets(draw):
    n = draw(st.integers(1, 5000))
    chosen = draw(st.sets(st.integers(0, n - 1), max_size=600))
    return n, np.array(sorted(chosen), np.int64)


# Indices


@given(index_sets(), st.binary(max_size=5))
def test_encoded_indices_are_decoded(case, after):
    n, indices = case
    data = encode_indices(indices, n)
    result, used = decode_indices(data + after, n)
    assert np.array_equal(result, indices)
    assert used == len(data)


@pytest.mark.parametrize("case", ["all", "none", "first", "last", "far", "clustered", "even"])
def test_dense_empty_far_and_clustered_indices_are_decoded_and_small(case):
    n = 1 << 22
    indices = {
        "all": np.arange(n),
        "none": np.arange(0),
        "first": np.array([0]),
        "last": np.array([n - 1]),
        "far": np.array([0, n - 1]),
        "even": np.arange(0, n, 2),
        "clustered": np.concatenate([np.arange(3000), n // 2 + np.arange(0, 9000, 3), np.arange(n - 700, n)]),
    }[case].astype(np.int64)
    data = encode_indices(indices, n)
    result, used = decode_indices(data, n)
    assert np.array_equal(result, indices)
    assert used == len(data) <= 8 + len(indices) * 26 / 8 + 4


@pytest.mark.parametrize("density", [0.5, 0.1, 0.01, 0.001])
def test_random_indices_take_hardly_more_than_their_entropy(density):
    n = 1_000_000
    indices = np.flatnonzero(np.random.default_rng(0).random(n) < density)
    bits = 8 * len(encode_indices(indices, n))
    entropy = -n * (density * np.log2(density) + (1 - density) * np.log2(1 - density))
    assert bits < 1.06 * entropy
    assert bits == pytest.approx(bits_per_index(density) * len(indices), rel=0.03)


@given(index_sets(), st.data())
def test_damaged_indices_are_refused_or_are_other_indices(case, data):
    """Indices have no checksum of their own (the envelope has one), but nothing is read or written out of bounds."""
    n, indices = case
    good = encode_indices(indices, n)
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(good)))
    for bad in (bytes(damaged), good[:cut]):
        try:
            result, used = decode_indices(bad, n)
        except Corruption:
            continue
        assert used <= len(bad)
        assert bool((np.diff(result) > 0).all())
        assert not len(result) or (result[0] >= 0 and result[-1] < n)


def test_indices_beyond_the_values_are_refused():
    data = encode_indices(np.array([5, 900]), 1000)
    with pytest.raises(Corruption):
        decode_indices(data, 900)
    with pytest.raises(Corruption):
        decode_indices((50).to_bytes(4, "little"), 49)


# Packed numbers


@given(st.integers(1, 8), st.integers(0, 300), st.integers(0, 9))
def test_packed_numbers_are_unpacked(width, n, seed):
    numbers = np.random.default_rng(seed).integers(0, 1 << width, n).astype(np.uint8)
    packed = pack_bits(numbers, width)
    assert len(packed) == packed_size(n, width)
    assert np.array_equal(unpack_bits(packed, n, width), numbers)
    with pytest.raises(Corruption):
        unpack_bits(packed + b"x", n, width)


def test_stray_bits_behind_packed_numbers_are_refused():
    assert list(unpack_bits(b"\x07", 1, 3)) == [7]
    with pytest.raises(Corruption):
        unpack_bits(b"\x0f", 1, 3)


# Levels


@given(st.integers(0, 9000), st.integers(1, 700), st.integers(2, 8), st.booleans(), st.integers(0, 2**64 - 1))
def test_quantized_levels_are_next_to_the_values_they_stand_for(n, bucket, bits, by_max, key):
    """Each value becomes one of the two levels around it, the nearer one without draws; what is a level stays."""
    values = np.random.default_rng(n).normal(size=n).astype(np.float32)
    values[::7] = 0
    norms = norms_of(values, bucket, by_max)
    rows = [values[at : at + bucket] for at in range(0, n, bucket)]
    wanted = [np.abs(row).max() if by_max else np.sqrt((row.astype(np.float64) ** 2).sum()) for row in rows]
    assert np.allclose(norms, wanted, rtol=0 if by_max else 1e-6)
    level = np.repeat(norms, bucket)[:n] / (2 ** (bits - 1) - 1)
    for chosen, apart in ((None, 0.5), (key, 1.0)):
        packed = quantize(values, norms, bucket, bits, chosen)
        assert len(packed) == packed_size(n, bits)
        result = dequantize(packed, norms, bucket, bits, n)
        assert bool((np.abs(result - values) <= apart * level * (1 + 1e-5)).all())
        assert bool((result * values >= 0).all())
        assert not result[values == 0].any()
        if by_max:
            assert np.array_equal(norms_of(result, bucket, by_max), norms)
            again = quantize(result, norms, bucket, bits, None)
            assert np.array_equal(dequantize(again, norms, bucket, bits, n), result)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_quantized_bucket_with_a_non_finite_value_is_not_finite(bad):
    values = np.ones(30, np.float32)
    values[13] = bad
    norms = norms_of(values, 10, True)
    result = dequantize(quantize(values, norms, 10, 4, 5), norms, 10, 4, 30)
    assert bool(np.isfinite(result[:10]).all())
    assert not np.isfinite(result[10:20]).any()


def test_draws_are_uniform_and_differ_by_key():
    """Each of 16 classes has 3750 of 60,000 draws, standard deviation 59.3. All lie within 5 of these with probability
    1 - 16 * 5.7e-7: a false alarm in 100,000 keys, and the keys are fixed."""

    @kernel
    def many(key, drawn):
        for i in range(len(drawn)):
            drawn[i] = below(draw64(np.uint64(i), np.uint64(key)), np.uint64(16))

    sets = []
    for key in (0, 1, 2**63 + 5):
        drawn = np.empty(60_000, np.int64)
        many(np.uint64(key), drawn)
        assert bool((np.abs(np.bincount(drawn, minlength=16) - 3750) < 5 * 59.3).all())
        sets.append(drawn)
    assert all(abs(float((a == b).mean()) - 1 / 16) < 5 * 0.001 for i, a in enumerate(sets) for b in sets[:i])


# Whole payloads


@given(
    st.integers(0, 400),
    st.floats(0.0, 1.0),
    st.sampled_from([None, 3]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.float16]),
)
def test_packed_sparse_values_are_unpacked(n, share, mantissa_bits, dtype):
    flat = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    indices = torch.randperm(n, generator=torch.Generator().manual_seed(1))[: round(n * share)].sort().values
    result, values = unpack_sparse(pack_sparse(flat, indices, mantissa_bits), flat)
    assert torch.equal(result, indices)
    assert values.dtype == dtype
    bound = (0 if mantissa_bits is None else 2.0**-4) * flat[indices].abs()
    assert bool(((values - flat[indices]).abs() <= bound).all())


@pytest.mark.parametrize(
    "setting",
    [
        TopK(0.1),
        DGC(0.1, mantissa_bits=3),
        RedSync(0.1, same_sign=True),
        QSGD(4),
        Blockwise(4, block=32),
        Blockwise(2, block=16),
        SparCML(TopK(0.1)),
        Frames(),
        Frames(4),
    ],
    ids=repr,
)
def test_every_damaged_bit_of_a_message_is_noticed(setting):
    """Whatever byte is damaged or cut off, the receiver raises Corruption that names the rank."""
    flat = torch.randn(20, 15, generator=torch.Generator().manual_seed(3))

    def payload_of(request):
        return request.payload if isinstance(request, AllGather) else request.payloads[0]

    good = payload_of(next(setting.compress(flat, {}, Place(1, 2))))
    places = range(0, len(good), 7)
    bad = [good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :] for at in places]
    bad += [good[:at] for at in (0, 3, ENVELOPE, len(good) // 2, len(good) - 1)]
    for item in bad:
        receiver = setting.compress(flat, {}, Place(0, 2))
        first = next(receiver)
        with pytest.raises(Corruption, match="rank 1: "):
            receiver.send([payload_of(first), item])


def test_a_payload_for_another_tensor_is_refused():
    payload = seal(SPARSE, torch.float32, 10, b"abc")
    assert bytes(unseal(payload, SPARSE, torch.float32, 10)) == b"abc"
    for kind, dtype, n in ((2, torch.float32, 10), (SPARSE, torch.float64, 10), (SPARSE, torch.float32, 11)):
        with pytest.raises(Corruption):
            unseal(payload, kind, dtype, n)
    with pytest.raises(InsufficientData):
        unseal(payload[:10], SPARSE, torch.float32, 10)


# Batches


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=6))
def test_joined_payloads_are_split(parts):
    joined = join_payloads(parts)
    assert split_payloads(joined, len(parts)) == parts
    if len(parts) > 1:
        with pytest.raises(Corruption):
            split_payloads(joined + b"x", len(parts))
        with pytest.raises(Corruption):
            split_payloads(joined[:3], len(parts))


def test_rounds_are_batched_by_kind_and_type():
    """Seven conversations of up to three rounds take one request of each kind and type per round."""

    def conversation(requests):
        answers = []
        for request in requests:
            answer = yield request
            answers.append(answer)
        return answers

    def requests_of(rank):
        narrow, wide = torch.full((3,), rank + 1.0), torch.full((2, 2), rank + 1.0, dtype=torch.float64)
        return [
            [AllReduce(narrow.clone()), AllGather(bytes([rank]))],
            [AllReduce(wide.clone())],
            [AllReduce(narrow.clone() * 10)],
            [AllGather(b"a" * rank), AllToAll([b"to0", b"to1"]), AllReduce(wide.clone())],
            [],
            [AllToAll([bytes([rank, 0]), bytes([rank, 1])])],
            [AllGather(b"")],
        ]

    seen = []

    def watched(rank):
        batch = batch_conversations([conversation(requests) for requests in requests_of(rank)], rank)
        answer = None
        while True:
            try:
                request = batch.send(answer)
            except StopIteration as end:
                return end.value
            if rank == 0:
                seen.append(type(request).__name__)
            answer = yield request

    result = run_conversations([watched(0), watched(1)])
    assert seen == ["AllGather", "AllToAll", "AllReduce", "AllReduce", "AllGather", "AllToAll", "AllReduce"]
    for rank in (0, 1):
        answers = [sent.outcome for sent in result[rank]]
        assert torch.equal(answers[0][0], torch.full((3,), 3.0))
        assert answers[0][1] == [b"\0", b"\1"]
        assert torch.equal(answers[1][0], torch.full((2, 2), 3.0, dtype=torch.float64))
        assert torch.equal(answers[2][0], torch.full((3,), 30.0))
        assert answers[3][:2] == [[b"", b"a"], [b"to0", b"to0"] if rank == 0 else [b"to1", b"to1"]]
        assert answers[5] == [[bytes([0, rank]), bytes([1, rank])]]
        assert answers[6] == [[b"", b""]]
        assert [sent.payload_bytes for sent in result[rank]] == [13, 32, 12, rank + 3 + 32, 0, 2, 0]


def test_joined_payloads_that_are_cut_off_are_refused():
    with pytest.raises(GcodecError):
        split_payloads(b"\x05\x00\x00\x00\x00\x00\x00\x00abc", 2)
