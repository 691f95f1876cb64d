"""Promises of ``encode`` beside the round trip: its bytes, headers, codebooks, levels and sizes."""

from __future__ import annotations

import numpy as np
import pytest

import gcodec
from gcodec import LITERAL_GCOMP, PAPER_LADDER, EncoderOptions, InvalidArgument
from gcodec.format import modes as bit_layouts
from gcodec.frame.encode import encode_values, plan_for
from gcodec.plan.plan import FramePlan
from gcodec.plan.request import EncodeRequest, FixedCodebooks
from gcodec.tensors import values_of
from tests.support import laws
from tests.support.bit_patterns import BITS_ONLY, KINDS, block_of, gaussian, typed
from tests.support.encode_modes import levels_at_random, promised


def planned(
    bits: np.ndarray, dtype: str, options: EncoderOptions | None = None, given: FixedCodebooks | None = None
) -> tuple[bytes, FramePlan]:
    """Return a lossless frame and the plan it was made by."""
    values = values_of(typed(dtype, bits), dtype)
    steps, no_levels = bit_layouts.lossless(values.dtype), np.zeros(0, np.uint8)
    request = EncodeRequest(values, steps, no_levels, options or EncoderOptions(), threads=1, fixed=given)
    plan = plan_for(request)
    return bytes(encode_values(request, plan)), plan


def test_a_codebook_without_escape_falls_back_to_raw_blocks():
    rng = np.random.default_rng(6)
    kind = KINDS["float32"]
    few = np.resize(np.array([1.0, 2.0, 4.0, 2.0], np.float32), 1 << 11).view(np.uint32) + rng.integers(
        0, 1 << 20, 1 << 11, np.uint32
    )
    _, plan = planned(few, "float32")
    assert plan.codebooks
    assert not any(codebook.has_escape for codebook in plan.codebooks)  # all values were seen
    given = FixedCodebooks(tuple(plan.codebooks), plan.records, plan.references)
    other = np.concatenate([few, gaussian(kind, rng, 100, scale=1e10)])
    frame, _ = planned(other, "float32", given=given)
    laws.assert_same_bits(gcodec.decode(frame), other)
    laws.check_agreement(frame)


def test_the_same_call_gives_the_same_bytes():
    x = gaussian(KINDS["float32"], np.random.default_rng(7), 70_000).view(np.float32)
    assert len({gcodec.encode(x.copy()) for _ in range(3)}) == 1
    blocks = [
        frame[int.from_bytes(frame[32:40], "little") :]
        for frame in (gcodec.encode(x), gcodec.encode(x.reshape(700, 100)))
    ]
    assert blocks[0] == blocks[1]


def test_frames_record_their_mode_and_container():
    x = np.linspace(-1, 1, 500, dtype=np.float32)
    levels = np.ones(500, np.uint8)
    assert [
        frame[6] for frame in (gcodec.encode(x), gcodec.encode(x, mantissa_bits=9), gcodec.encode(x, levels=levels))
    ] == [0, 1, 2]
    assert gcodec.encode(x)[7] == 0


@pytest.mark.parametrize("dtype", KINDS)
def test_frames_have_the_default_block_and_stream_sizes_of_the_page(dtype):
    kind = KINDS[dtype]
    frame = gcodec.encode(np.zeros(3, kind.container) if dtype in BITS_ONLY else np.zeros(3, dtype), dtype=dtype)
    assert 1 << frame[9] == block_of(kind)
    assert 1 << frame[10] == 256


def test_levels_of_non_finite_values_are_those_of_level_0():
    x = np.array([np.nan, np.inf, -np.inf, 1 + 2**-23, 0.0], np.float32)
    x.view(np.uint32)[0] = 0x7F800001
    rounded = EncoderOptions(exact_if_smaller=False)
    frame = gcodec.encode(x, levels=np.full(5, 3, np.uint8), ladder=PAPER_LADDER["float32"], options=rounded)
    decoded = gcodec.decode(frame)
    assert decoded.view(np.uint32).tolist() == [0x7F800001, 0x7F800000, 0xFF800000, 0x3F800000, 0]


def test_near_lossless_mode_prunes_denormals_and_other_modes_do_not():
    x = np.array([-0.0, 1e-45, -1e-39, 0.0, 1.0], np.float32)
    rounded = EncoderOptions(exact_if_smaller=False)
    kept = gcodec.decode(gcodec.encode(x, levels=np.zeros(5, np.uint8), options=rounded))
    assert kept.view(np.uint32).tolist() == [0, 0, 0, 0, 0x3F800000]
    for frame in (gcodec.encode(x), gcodec.encode(x, mantissa_bits=22)):
        assert np.signbit(gcodec.decode(frame)).tolist() == [True, False, True, False, False]


def test_encode_with_an_optimizer_uses_the_levels_of_its_rule():
    from gcodec.truncation.optimizers import levels_for, view_from_dump

    rng = np.random.default_rng(8)
    param, grad, buf = (rng.standard_normal((30, 50)).astype(np.float32) * scale for scale in (1, 1e-4, 1e-3))
    known = view_from_dump("SGD", {"lr": 0.1, "momentum": 0.9}, {"momentum_buffer": buf})
    for ladder in (None, PAPER_LADDER["float32"]):
        levels = levels_for(known, param, grad, ladder=ladder)
        assert len(np.unique(levels)) > 2
        frame = gcodec.encode(grad, optimizer=known, param=param, ladder=ladder)
        assert frame == gcodec.encode(grad, levels=levels, ladder=ladder)
        bits = grad.view(np.uint32)
        want = promised(KINDS["float32"], bits, {"levels": levels, "ladder": ladder})
        laws.assert_kept(gcodec.decode(frame), want, bits)


@pytest.mark.parametrize("name", ["float32", "float16", "float64"])
def test_levels_are_those_of_the_values_that_bits_and_swapped_bytes_stand_for(name):
    from gcodec.truncation.optimizers import view_from_dump

    rng = np.random.default_rng(9)
    param, grad = (rng.standard_normal((30, 50)) * scale for scale in (1, 1e-2))
    known, grad = view_from_dump("SGD", {"lr": 1e-3}, {}), grad.astype(name)
    want = gcodec.encode(grad, optimizer=known, param=param.astype(np.float32))
    for same in (grad.view(f"u{grad.itemsize}"), grad.astype(grad.dtype.newbyteorder())):
        assert gcodec.encode(same, optimizer=known, param=param.astype(np.float32), dtype=name) == want


def test_encode_with_a_live_optimizer_is_lossy_within_bounds_and_changes_no_state():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(40, 30))
    optimizer = torch.optim.AdamW([param], lr=1e-3)
    for _ in range(3):
        param.grad = torch.randn(40, 30) * 1e-3
        optimizer.step()
    grad = torch.randn(40, 30) * 1e-3
    before = [t.clone() for t in (param, grad, *optimizer.state[param].values())]
    decoded = gcodec.decode(gcodec.encode(grad, optimizer=optimizer, param=param))
    assert all(torch.equal(a, b) for a, b in zip(before, (param, grad, *optimizer.state[param].values()), strict=True))
    assert decoded.shape == grad.shape
    assert ((decoded - grad).abs() <= grad.abs() / 4 * 1.0001).all()
    assert len(gcodec.encode(grad, optimizer=optimizer, param=param)) < len(gcodec.encode(grad))


def test_max_encoded_size_is_hardly_more_than_the_values():
    for dtype, kind in KINDS.items():
        for shape in (0, 1, 1000, (), (3, 0), (5, 7), (2**40,), (2**20, 2**20)):
            n = int(np.prod(shape, dtype=np.int64))
            size = gcodec.max_encoded_size(shape, dtype)
            assert n * kind.W // 8 <= size <= 1.0015 * n * kind.W // 8 + 256
    assert gcodec.max_encoded_size(10, "float32") == gcodec.max_encoded_size((10,), "float32")
    laws.check_refused(InvalidArgument, lambda: gcodec.max_encoded_size(10, "int32"))


@pytest.mark.parametrize("n_values", [100, 20_000, 600_000])
def test_encode_writes_nothing_behind_the_room_for_a_frame(n_values):
    mantissas = np.random.default_rng(1).integers(0, 1 << 32, n_values, np.uint32)  # hardly anything to save
    values = (mantissas & np.uint32(0xF8FFFFFF)).view(np.float32)
    room = gcodec.max_encoded_size(n_values, "float32")
    out = np.full(room + (1 << 19), 0xAB, np.uint8)
    for threads in (1, 2):
        frame = gcodec.encode(values, out=out, threads=threads)
        assert np.array_equal(gcodec.decode(frame).view(np.uint32), values.view(np.uint32))
        assert (out[room:] == 0xAB).all()


def test_literal_gcomp_brings_its_ladder_and_truncates():
    x = gaussian(KINDS["float32"], np.random.default_rng(9), 5000).view(np.float32)
    levels = levels_at_random(x.view(np.uint32), 4)
    frame = gcodec.encode(x, levels=levels, options=LITERAL_GCOMP)
    assert frame == gcodec.encode(
        x, levels=levels, options=LITERAL_GCOMP, ladder=PAPER_LADDER["float32"], rounding="truncate"
    )
    assert gcodec.encode(x, mantissa_bits=5, options=LITERAL_GCOMP) == gcodec.encode(
        x, mantissa_bits=5, options=LITERAL_GCOMP, rounding="truncate"
    )
    assert frame != gcodec.encode(x, levels=levels, options=LITERAL_GCOMP, rounding="nearest")


def test_literal_gcomp_has_one_codebook_of_short_codes():
    x = np.concatenate([gaussian(KINDS["float32"], np.random.default_rng(n), 1 << 14, scale=10.0**n) for n in range(4)])
    frame = gcodec.encode(x.view(np.float32), options=LITERAL_GCOMP)
    _, plan = planned(x, "float32", LITERAL_GCOMP)
    assert frame[11] == len(plan.codebooks) == 1
    assert max(plan.codebooks[0].lengths) <= 11
    assert not plan.references
