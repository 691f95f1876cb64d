"""Streams, and codebooks that have become stale: an escape covers what a codebook does not know."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import gcodec
from gcodec import FINE_LADDER, LimitExceeded, stream
from gcodec.frame.decode import FrameReader
from tests.support import laws, reference
from tests.support.bit_patterns import KINDS, gaussian, noise, specials, typed
from tests.support.encode_modes import levels_at_random, promised
from tests.support.frame_builder import Draft


def named_in(frame, carried):
    """Return the codebooks that a frame names by id, out of the records that earlier ones carried."""
    kind = reference.DTYPES[frame[5]]
    hashes = {reference.checksum(record, kind.H): record for record in carried}
    names = [frame[at + 4 : at + 16] for at in range(48, len(frame) - 16) if frame[at : at + 4] == b"\x01\0\0\0"]
    found = ((int.from_bytes(name[:4], "little"), int.from_bytes(name[4:], "little")) for name in names)
    return {name: hashes[name[1]] for name in found if name[1] in hashes}


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("ladder", [False, True], ids=["lossless", "near-lossless"])
def test_stale_codebooks_of_a_stream_code_every_value(dtype, ladder):
    kind, rng = KINDS[dtype], np.random.default_rng(5)
    if ladder and not kind.T:
        return
    encoder, decoder = gcodec.Encoder(interval=10**9, trigger=1e9), gcodec.Decoder()
    typical = gaussian(kind, rng, 5000, zeros=0.1)
    mixed = np.concatenate([typical[:3000], gaussian(kind, rng, 200, scale=30.0), specials(kind)])
    arrays = [
        typical,
        gaussian(kind, rng, 3000, zeros=0.3, scale=0.02),
        mixed,
        noise(kind, rng, 700),
        np.zeros(300, kind.container),
        specials(kind),
        typical,
    ]
    carried: list[bytes] = []
    frames = []
    for bits in arrays:
        arguments = {"dtype": dtype}
        if ladder:
            levels = np.where(np.arange(len(bits)) % 20, 5, levels_at_random(bits, 8)).astype(np.uint8)
            arguments |= {"levels": levels, "ladder": FINE_LADDER[dtype]}
        frame = encoder.encode(typed(dtype, bits), **arguments)
        frames.append(frame)
        known = named_in(frame, carried)
        laws.check_agreement(frame, known)
        carried += [record for record in Draft.of(frame, laws.SHIPPED | known).records if record[0] == 0]
        want = promised(kind, bits, arguments)
        laws.assert_kept(decoder.decode(frame), want, bits)
        laws.check_no_expansion(bits.shape, dtype, frame)
    assert len(carried) == 1  # the first frame's, for all
    assert named_in(frames[-1], carried)
    assert len(frames[-1]) <= len(frames[0])
    laws.check_refused(gcodec.Unsupported, lambda: gcodec.decode(frames[-1]))
    laws.check_refused(gcodec.Unsupported, lambda: gcodec.Decoder().decode(frames[-1]))
    with pytest.raises(gcodec.Unsupported, match="decoded by a Decoder that has decoded the frames before it"):
        gcodec.decode(frames[-1])


@pytest.mark.parametrize("dtype", KINDS)
def test_a_streams_codebook_suits_more_arrays_of_its_distribution(dtype):
    kind, rng, encoder = KINDS[dtype], np.random.default_rng(6), gcodec.Encoder()
    sizes = [len(encoder.encode(typed(dtype, gaussian(kind, rng, 6000, zeros=0.1)), dtype=dtype)) for _ in range(6)]
    assert max(sizes[1:]) <= 1.03 * sizes[0]


def steps_that_carry(encoder, scales):
    """Return the steps of a stream whose frames carry a codebook; all frames must decode."""
    kind, rng, decoder = KINDS["float32"], np.random.default_rng(1), gcodec.Decoder()
    found: list[int] = []
    carried: list[bytes] = []
    for step, scale in enumerate(scales):
        bits = np.concatenate([gaussian(kind, rng, 3000, scale=scale), gaussian(kind, rng, 3000, scale=0.01)])
        frame = encoder.encode(bits.view(np.float32))
        laws.assert_same_bits(decoder.decode(frame), bits)
        (record,) = Draft.of(frame, laws.SHIPPED | named_in(frame, carried)).records
        if record[0] == 0:
            found.append(step)
            carried.append(record)
    return found


def test_streams_refresh_their_codebook():
    assert steps_that_carry(gcodec.Encoder(interval=3, trigger=1e9), [0.01] * 8) == [0, 3, 6]
    carrying = steps_that_carry(gcodec.Encoder(interval=1000, trigger=0.2), [0.01] * 3 + [1e-4] * 4)
    assert carrying[0] == 0
    assert 3 <= carrying[1] <= 4
    assert len(carrying) == 2


@pytest.mark.parametrize("types", [("float32", "bfloat16", "float32"), ("float64", "float32")], ids=", ".join)
def test_streams_may_change_type_and_mode(types):
    encoder, decoder = gcodec.Encoder(), gcodec.Decoder()
    rng = np.random.default_rng(2)
    for dtype in types:
        kind = KINDS[dtype]
        bits = gaussian(kind, rng, 2000)
        for arguments in ({}, {"mantissa_bits": 3}, {"levels": levels_at_random(bits, 8)}, {}):
            frame = encoder.encode(typed(dtype, bits), dtype=dtype, **arguments)
            laws.assert_kept(decoder.decode(frame), promised(kind, bits, arguments), bits)


def test_streams_may_hold_empty_arrays_and_zeros():
    encoder, decoder = gcodec.Encoder(), gcodec.Decoder()
    for x in (
        np.zeros(0, np.float32),
        np.zeros(100, np.float32),
        np.zeros((), np.float32),
        np.linspace(0, 1, 4000, dtype=np.float32),
        np.zeros(100, np.float32),
        np.zeros((3, 0), np.float32),
    ):
        laws.assert_same_bits(decoder.decode(encoder.encode(x)), x.view(np.uint32))


def test_streams_take_output_buffers_threads_rounding_and_limits():
    encoder = gcodec.Encoder(threads=1, rounding="truncate")
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    buffer = bytearray(gcodec.max_encoded_size(1000, "float32"))
    written = encoder.encode(x, mantissa_bits=5, out=buffer)
    out = np.empty(1000, np.float32)
    assert gcodec.Decoder().decode(written, out=out) is out
    assert (np.abs(out) <= np.abs(x)).all()
    laws.check_refused(LimitExceeded, lambda: gcodec.Decoder(max_output_bytes=3999).decode(bytes(written)))
    assert gcodec.Decoder(max_output_bytes=4000, like="numpy").decode(bytes(written)).size == 1000


def test_a_decoder_remembers_a_bounded_number_of_codebooks(monkeypatch):
    """A long stream must not fill the memory with codebooks of its frames."""
    monkeypatch.setattr(stream, "MAX_CODEBOOKS", 3)
    decoder, rng = gcodec.Decoder(), np.random.default_rng(8)
    streams = [gcodec.Encoder(interval=10**9, trigger=1e9) for _ in range(4)]
    arrays = [rng.standard_normal(2000).astype(np.float32) * np.float32(10.0 ** (3 * n)) for n in range(4)]
    first, second = ([encoder.encode(x) for encoder, x in zip(streams, arrays, strict=True)] for _ in range(2))
    for number in (0, 1, 2):
        laws.assert_same_bits(decoder.decode(first[number]), arrays[number].view(np.uint32))
    for frame, number in ((second[0], 0), (first[3], 3), (second[0], 0), (second[2], 2)):
        laws.assert_same_bits(decoder.decode(frame), arrays[number].view(np.uint32))
    laws.check_refused(gcodec.Unsupported, lambda: decoder.decode(second[1]))


def test_a_streams_codebook_is_remembered_over_any_number_of_sparse_frames(monkeypatch):
    """Sparse frames have codebooks of their own, which no later frame names."""
    monkeypatch.setattr(stream, "MAX_CODEBOOKS", 1)
    encoder, decoder, rng = gcodec.Encoder(interval=10**9, trigger=1e9), gcodec.Decoder(), np.random.default_rng(9)
    dense, n_sparse = rng.standard_normal(20_000).astype(np.float32), 0
    for number in range(8):
        sparse = np.where(rng.random(20_000) < 0.02, dense, np.float32(0))
        x = dense if number in (0, 4, 7) else sparse
        frame = encoder.encode(x)
        n_sparse += bool(FrameReader(frame, decoder._find).prelude.changes)
        laws.assert_same_bits(decoder.decode(frame), x.view(np.uint32))
    assert n_sparse == 5


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
@pytest.mark.parametrize("dtype", KINDS)
def test_a_copied_stream_goes_on_as_the_one_that_it_is_of(dtype, copied):
    """Codebooks that have been sent are named, and refreshes come at the same steps."""
    kind, rng = KINDS[dtype], np.random.default_rng(3)
    encoder, decoder = gcodec.Encoder(interval=3), gcodec.Decoder()
    arrays = [gaussian(kind, rng, 3000) for _ in range(12)]
    for bits in arrays[:5]:
        decoder.decode(encoder.encode(typed(dtype, bits), dtype=dtype))
    others = copied((encoder, decoder))
    for bits in arrays[5:]:
        frame = encoder.encode(typed(dtype, bits), dtype=dtype)
        assert others[0].encode(typed(dtype, bits), dtype=dtype) == frame
        laws.assert_same_bits(others[1].decode(frame), bits)


def test_a_copied_type_is_the_same_object():
    from gcodec.dtypes import BY_CODE

    assert all(
        copy.copy(kind) is copy.deepcopy(kind) is pickle.loads(pickle.dumps(kind)) is kind for kind in BY_CODE.values()
    )
