"""Arguments and bytes that the functions on arrays refuse, and the errors that they raise."""

from __future__ import annotations

from functools import cache
from linecache import getline
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import PAPER_LADDER, EncoderOptions, InvalidArgument, Ladder, LimitExceeded
from tests.support import laws

X = np.linspace(1, 2, 6, dtype=np.float32).reshape(2, 3)
LEVELS = np.zeros((2, 3), np.uint8)
BYTES = np.zeros(3, np.uint8)
READ_ONLY = np.zeros(1000, np.uint8)
READ_ONLY.setflags(write=False)


@cache
def frame_of_x():
    """Return the frame of ``X``."""
    return gcodec.encode(X)


def _view():
    from gcodec.truncation.optimizers import view_from_dump

    return view_from_dump("SGD", {"lr": 0.1}, {})


@pytest.mark.parametrize(
    "call",
    [
        # types
        lambda: gcodec.encode(np.zeros(3, np.int32)),
        lambda: gcodec.encode(np.zeros(3, np.uint16)),
        lambda: gcodec.encode(np.zeros(3, bool)),
        lambda: gcodec.encode(np.zeros(3, np.complex64)),
        lambda: gcodec.encode(np.zeros(3, np.longdouble)),
        lambda: gcodec.encode(np.array(["a"])),
        lambda: gcodec.encode(np.array([None])),
        lambda: gcodec.encode(np.zeros(3, "f4,f4")),
        lambda: gcodec.encode("text"),
        lambda: gcodec.encode(b"bytes"),
        lambda: gcodec.encode(None),
        lambda: gcodec.encode([[1.0], [1.0, 2.0]]),
        lambda: gcodec.encode(np.zeros((1,) * 33, np.float32)),
        lambda: gcodec.encode(np.zeros((0, 2**47, 2), np.float32)),  # a header that no reader takes
        lambda: gcodec.encode(X, dtype="float64"),
        lambda: gcodec.encode(X, dtype="bfloat16"),
        lambda: gcodec.encode(X, dtype="int8"),
        lambda: gcodec.encode(X, dtype=""),
        lambda: gcodec.encode(np.zeros(3, np.uint32), dtype="bfloat16"),
        lambda: gcodec.encode(np.zeros(3, np.int16), dtype="bfloat16"),
        lambda: gcodec.encode(np.zeros(3, np.float16), dtype="bfloat16"),
        # modes
        lambda: gcodec.encode(X, mantissa_bits=0),
        lambda: gcodec.encode(X, mantissa_bits=-1),
        lambda: gcodec.encode(X, mantissa_bits=24),
        lambda: gcodec.encode(X, mantissa_bits=3.5),  # type: ignore[arg-type]
        lambda: gcodec.encode(X, mantissa_bits=True),
        lambda: gcodec.Encoder().encode(X, mantissa_bits=False),
        lambda: gcodec.encode(X.astype(np.float16), mantissa_bits=11),
        lambda: gcodec.encode(X.astype(np.float64), mantissa_bits=53),
        lambda: gcodec.encode(np.zeros(3, np.uint16), dtype="bfloat16", mantissa_bits=8),
        lambda: gcodec.encode(np.zeros(3, np.uint8), dtype="float8_e5m2", mantissa_bits=1),
        lambda: gcodec.encode(np.zeros(3, np.uint8), dtype="float8_e5m2", levels=np.zeros(3, np.uint8)),
        lambda: gcodec.encode(BYTES, dtype="float8_e4m3fn", levels=BYTES, ladder=Ladder((0, 1))),
        lambda: gcodec.encode(X, rounding="up"),
        lambda: gcodec.encode(X, rounding=""),
        lambda: gcodec.encode(X, rounding="truncate"),
        lambda: gcodec.encode(X, mantissa_bits=5, levels=LEVELS),
        lambda: gcodec.encode(X, mantissa_bits=5, optimizer=_view(), param=X),
        lambda: gcodec.encode(X, mantissa_bits=5, ladder=Ladder((0, 5))),
        lambda: gcodec.encode(X, ladder=Ladder((0, 5))),
        lambda: gcodec.encode(X, param=X),
        lambda: gcodec.encode(X, optimizer=_view()),
        lambda: gcodec.encode(X, optimizer=_view(), param=X, levels=LEVELS),
        lambda: gcodec.encode(X, optimizer=_view(), param=X[:1]),
        lambda: gcodec.encode(X, optimizer=_view(), param=X.T),
        # levels
        lambda: gcodec.encode(X, levels=LEVELS[:1]),
        lambda: gcodec.encode(X, levels=LEVELS.T),
        lambda: gcodec.encode(X, levels=np.zeros(7, np.uint8)),
        lambda: gcodec.encode(X, levels=LEVELS.astype(np.int64)),
        lambda: gcodec.encode(X, levels=LEVELS.astype(np.int8)),
        lambda: gcodec.encode(X, levels=LEVELS.astype(np.float32)),
        lambda: gcodec.encode(X, levels=LEVELS + 8),
        lambda: gcodec.encode(X, levels=LEVELS + 4, ladder=PAPER_LADDER["float32"]),
        lambda: gcodec.encode(X, levels=LEVELS + 1, ladder=Ladder((3,))),
        lambda: gcodec.encode(X, levels=LEVELS, ladder=Ladder((0, 24))),
        lambda: gcodec.encode(X, levels=LEVELS, ladder=Ladder((23,))),
        lambda: gcodec.encode(X, levels=LEVELS, ladder=Ladder(tuple(range(9)))),  # needs more planes than there are
        # options, threads, out
        lambda: gcodec.encode(X, shapes=[]),
        lambda: gcodec.encode(X, shapes=[(2, 2)]),
        lambda: gcodec.encode(X, shapes=[(2, 3), (1,)]),
        lambda: gcodec.encode(X, shapes=[(-2, -3)]),
        lambda: gcodec.encode(X, shapes=[(8,), (-2, 1)]),
        lambda: gcodec.encode(X, shapes=[(2**32, 2**32), (6,)]),
        lambda: EncoderOptions(max_length=1),
        lambda: EncoderOptions(max_length=13),
        lambda: EncoderOptions(max_codebooks=0),
        lambda: EncoderOptions(max_codebooks=256),
        lambda: EncoderOptions(escape_threshold=0),
        lambda: EncoderOptions(ladder="steep"),
        lambda: EncoderOptions(rounding="up"),
        lambda: gcodec.encode(X, threads=0),
        lambda: gcodec.encode(X, threads=-1),
        lambda: gcodec.encode(X, out=bytearray(10)),
        lambda: gcodec.encode(X, out=np.empty(0, np.uint8)),
        lambda: gcodec.encode(X, out=bytes(1000)),
        lambda: gcodec.encode(X, out=READ_ONLY),
        lambda: gcodec.encode(X, out=np.empty(2000, np.uint8)[::2]),
        lambda: gcodec.encode(X, out=[0] * 1000),
        lambda: gcodec.encode(X, out=1000),
        # decode
        lambda: gcodec.decode(frame_of_x(), threads=0),
        lambda: gcodec.decode(frame_of_x(), like="x"),
        lambda: gcodec.decode(frame_of_x(), like=""),
        lambda: gcodec.decode(frame_of_x(), out=np.empty(5, np.float32)),
        lambda: gcodec.decode(frame_of_x(), out=np.empty(7, np.float32)),
        lambda: gcodec.decode(frame_of_x(), out=np.empty(6, np.float64)),
        lambda: gcodec.decode(frame_of_x(), out=np.empty(6, np.int32)),
        lambda: gcodec.decode(frame_of_x(), out=np.empty(6, np.uint32)),
        lambda: gcodec.decode(frame_of_x(), out=np.empty(6, ">f4")),
        lambda: gcodec.decode(frame_of_x(), out=np.empty(12, np.float32)[::2]),
        lambda: gcodec.decode(frame_of_x(), out=np.empty((2, 3), np.float32, order="F")),
        lambda: gcodec.decode(frame_of_x(), out=READ_ONLY[:24].view(np.float32)),
        lambda: gcodec.decode(frame_of_x(), out=bytearray(24)),
        lambda: gcodec.decode(frame_of_x(), out=[0.0] * 6),
        lambda: gcodec.decode("text"),
        lambda: gcodec.decode(None),
        lambda: gcodec.decode(17),
        lambda: gcodec.decode([0] * 100),
        lambda: gcodec.decode(np.frombuffer(frame_of_x(), np.uint8)[::2]),
        lambda: gcodec.decode_range(frame_of_x(), -1, 2),
        lambda: gcodec.decode_range(frame_of_x(), 0, 7),
        lambda: gcodec.decode_range(frame_of_x(), 3, 2),
        lambda: gcodec.decode_range(frame_of_x(), 0, 2, like="x"),
        lambda: gcodec.decode_range(frame_of_x(), 0, 2, threads=0),
        lambda: gcodec.max_encoded_size(-1, "float32"),
        lambda: gcodec.max_encoded_size((2, -3), "float32"),
        lambda: gcodec.max_encoded_size((1,) * 33, "float32"),
        lambda: gcodec.max_encoded_size((0, 2**48), "float32"),
        # streams
        lambda: gcodec.Encoder(rounding="up"),
        lambda: gcodec.Encoder(interval=0),
        lambda: gcodec.Encoder(interval=1.5),  # type: ignore[arg-type]
        lambda: gcodec.Encoder(trigger=0.0),
        lambda: gcodec.Encoder(trigger=float("nan")),
        lambda: gcodec.Encoder(trigger="0.1"),  # type: ignore[arg-type]
        lambda: gcodec.CodebookCycle(8, 1, interval="50"),  # type: ignore[arg-type]
        lambda: gcodec.CodebookCycle(8, 1).advance(float("nan")),  # type: ignore[arg-type]
        lambda: gcodec.CodebookCycle(8, 1).advance("3"),  # type: ignore[arg-type]
        lambda: gcodec.CodebookCycle(8, 1).count(3),  # type: ignore[arg-type]
        lambda: gcodec.CodebookCycle(8, 1).count(np.ones(3, np.uint64)),
        lambda: gcodec.CodebookCycle(8, 1).schedule(np.ones(3, np.uint64), 0),
        lambda: gcodec.CodebookCycle(8, 1).schedule(np.ones_like(gcodec.CodebookCycle(8, 1).take(), float), 0),
        lambda: gcodec.CodebookCycle(8, 1).schedule(gcodec.CodebookCycle(8, 1).take(), 1.5),  # type: ignore[arg-type]
        lambda: gcodec.CodebookCycle(8, 1).schedule("abc", 1),  # type: ignore[arg-type]
        lambda: gcodec.Encoder(threads=0).encode(X),
        lambda: gcodec.Encoder().encode(X, levels=LEVELS, mantissa_bits=3),
        lambda: gcodec.Encoder().encode(np.zeros(3, np.int32)),
        lambda: gcodec.Encoder().encode(X, out=bytearray(3)),
        lambda: gcodec.Decoder(like="x"),
        lambda: gcodec.Decoder(threads=0),
        lambda: gcodec.Decoder(max_output_bytes="1 MB"),  # type: ignore[arg-type]
        lambda: gcodec.decode(frame_of_x(), max_output_bytes=float("nan")),  # type: ignore[arg-type]
        lambda: gcodec.Decoder().decode(frame_of_x(), out=bytearray(24)),
        lambda: gcodec.inspect("text"),
    ],
    ids=lambda call: getline(__file__, call.__code__.co_firstlineno).split("lambda: ")[1].split("  #")[0].strip(" ,\n"),
)
def test_senseless_arguments_raise_InvalidArgument(call):
    with pytest.raises(InvalidArgument):
        call()


def test_devices_that_torch_cannot_name_raise_InvalidArgument():
    pytest.importorskip("torch")
    with pytest.raises(InvalidArgument, match="device must be a CUDA device or 'cpu', not 9223372036854775808"):
        gcodec.decode(frame_of_x(), device=1 << 63)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_level_beyond_the_ladder_is_refused_wherever_it_stands(dtype):
    bits = {"float64": np.uint64, "float32": np.uint32}.get(dtype, np.uint16)
    n = (1 << 18) + 77
    x, levels = np.random.default_rng(3).integers(0, 1 << 14, n).astype(bits), np.ones(n, np.uint8)
    ladder = Ladder((0, 3, 6))
    for place in (0, 16384, n // 2, n - 1):
        for level in (3, 64, 255):
            levels[place] = level
            for threads in (1, 2):
                with pytest.raises(InvalidArgument, match=f"levels must be at most 2 in a ladder of 3, not {level}"):
                    gcodec.encode(x, dtype=dtype, levels=levels, ladder=ladder, threads=threads)
            levels[place] = 1
    some = gcodec.encode(x[:5], dtype=dtype, levels=levels[:5], ladder=ladder)
    assert gcodec.decode(some).size == 5
    with pytest.raises(InvalidArgument, match="levels must be at most 2 in a ladder of 3, not 3"):
        gcodec.encode(x[:5], dtype=dtype, levels=levels[:5] + 2, ladder=ladder)


@pytest.mark.parametrize("x", [None, {"w": X}, np.array([X, None], object)], ids=["None", "dictionary", "objects"])
def test_what_is_no_array_of_numbers_is_refused_with_what_takes_it(x):
    with pytest.raises(InvalidArgument, match=r"x must be one array or tensor of numbers.*gcodec.save takes nested"):
        gcodec.encode(x)


def test_invalid_arguments_are_value_errors_and_all_errors_are_of_one_family():
    assert issubclass(InvalidArgument, ValueError)
    for kind in (InvalidArgument, gcodec.Corruption, gcodec.InsufficientData, gcodec.Unsupported, LimitExceeded):
        assert issubclass(kind, gcodec.GcodecError)


def test_an_error_leaves_the_output_of_encode_alone():
    out = bytearray(b"\xa5" * 1000)
    laws.check_refused(InvalidArgument, lambda: gcodec.encode(X, mantissa_bits=99, out=out))
    assert out == b"\xa5" * 1000


@pytest.mark.parametrize("integer", [np.uint8, np.int16, np.int64])
def test_a_codebook_cycle_takes_integers_of_numpy(integer):
    cycle, other = gcodec.CodebookCycle(integer(8), integer(3)), gcodec.CodebookCycle(8, 3)
    assert cycle.histogram.shape == other.histogram.shape and cycle.center == other.center
    cycle.count(np.ones(len(cycle.histogram), np.int32))
    assert cycle.schedule(cycle.take(), integer(2)).step == 2 and cycle.advance(integer(2)) is not None


@pytest.mark.parametrize("limit", [0, 23])
def test_output_above_the_callers_limit_is_refused(limit):
    with pytest.raises(LimitExceeded):
        gcodec.decode(frame_of_x(), max_output_bytes=limit)
    with pytest.raises(LimitExceeded):
        gcodec.decode(frame_of_x(), max_output_bytes=limit, out=np.empty(6, np.float32))
    with pytest.raises(LimitExceeded):
        gcodec.decode_range(frame_of_x(), 0, 6, max_output_bytes=limit)
    assert np.array_equal(gcodec.decode(frame_of_x(), max_output_bytes=24), X)
    assert np.array_equal(gcodec.decode_range(frame_of_x(), 1, 3, max_output_bytes=8), X.reshape(-1)[1:3])


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    for start in (b"", b"\x89GCF", b"\x89GCF\x01\x01"):
        assert laws.outcome(start + data) in ("insufficient", "corruption", "unsupported")


def test_warmup_takes_names_of_types_only():
    gcodec.warmup(["float32"])
    gcodec.warmup("float32")
    gcodec.warmup([])
    laws.check_refused(InvalidArgument, lambda: gcodec.warmup(["int8"]))
    with pytest.raises(InvalidArgument, match="not 'int8'"):
        gcodec.warmup("int8")


@pytest.mark.parametrize("n", [500, 50_000])
@pytest.mark.parametrize(
    "encode", [gcodec.encode, lambda x, **keywords: gcodec.Encoder().encode(x, **keywords)], ids=["encode", "Encoder"]
)
@pytest.mark.parametrize("name", ["x", "levels", "base"])
def test_a_frame_is_not_written_over_what_it_is_made_of(encode, name, n):
    """Such a frame would hold other values, with checksums that are right."""
    values = np.random.default_rng(n).integers(0, 1 << 32, n, np.uint32).view(np.float32)
    room = np.zeros(gcodec.max_encoded_size(n, "float32") + 4 * n, np.uint8)
    arrays = {"x": values, "levels": np.zeros(n, np.uint8), "base": values[::-1].copy()}
    if name == "base" and encode is not gcodec.encode:
        return
    shared = room[64 : 64 + arrays[name].nbytes].view(arrays[name].dtype)
    shared[:] = arrays[name]
    before = room.copy()
    arguments = {"x": values, name: shared}
    with pytest.raises(InvalidArgument, match=f"out must not share memory with {name}"):
        encode(**arguments, out=room)
    assert np.array_equal(room, before)
    apart = encode(**arguments, out=np.zeros(len(room), np.uint8))
    if name != "levels":
        laws.assert_same_bits(gcodec.decode(apart, base=arguments.get("base")), values.view(np.uint32))


@pytest.mark.parametrize("n", [500, 50_000])
@pytest.mark.parametrize(
    "decode", [gcodec.decode, lambda data, out: gcodec.Decoder().decode(data, out=out)], ids=["decode", "Decoder"]
)
def test_values_are_not_written_over_their_frame(decode, n):
    values = np.random.default_rng(n).normal(size=n).astype(np.float32)
    frame = np.frombuffer(gcodec.encode(values), np.uint8)
    for at in (0, 64, len(frame) - 8):
        room = np.zeros(len(frame) + values.nbytes, np.uint8)
        room[: len(frame)] = frame
        with pytest.raises(InvalidArgument, match="out must not share memory with data"):
            decode(room[: len(frame)], out=room[at : at + values.nbytes].view(np.float32))
        assert np.array_equal(room[: len(frame)], frame) and not room[len(frame) :].any()
        out = room[len(frame) :].view(np.float32)
        assert np.array_equal(decode(room[: len(frame)], out=out), values)


@pytest.mark.parametrize(
    "shapes",
    [
        [np.array([500, 100])],
        [np.array([250, 200], np.uint8)],
        (shape for shape in [(200, 100), (30_000,)]),
        [[np.int16(25_000)], (np.int64(25_000),)],
    ],
    ids=["int64", "uint8", "generator", "both"],
)
def test_shapes_may_be_of_any_integers(shapes):
    x = np.outer(np.arange(1, 501), np.linspace(1, 2, 100)).astype(np.float32)
    frame = gcodec.encode(x, shapes=shapes)
    assert np.array_equal(gcodec.decode(frame), x)


def test_products_of_shapes_do_not_overflow():
    large: Any = np.array([65536, 65536], np.int32)
    with pytest.raises(InvalidArgument, match="shapes must have the array's 6 values"):
        gcodec.encode(X, shapes=[large, (6,)])
