"""The laws of the CUDA path on a device: there all of it runs, of which :mod:`tests.gpu.native_laws` runs the kernels
on the host.

Run by ``make test-gpu``; skipped where there is no device.
"""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any

import numpy as np
import pytest
import xxhash

import gcodec
from gcodec import FINE_LADDER, PAPER_LADDER, gpu, sync
from gcodec.dtypes import BY_NAME
from gcodec.format import modes as bit_layouts
from gcodec.format.modes import BitLayout
from gcodec.frame.encode import encode_values
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import values_of
from gcodec.truncation.optimizers import OptimizerView, levels_for, view_from_dump
from tests.gpu.native_laws.decoding_laws import frames_to_decode
from tests.gpu.native_laws.law_table import CODING, UNEVEN
from tests.gpu.native_laws.level_laws import RULES, as_type, floats_of_all_kinds
from tests.gpu.native_laws.patch_laws import near
from tests.support import laws
from tests.support.bit_patterns import Bits
from tests.support.cases import CASES, LARGE, Case
from tests.support.encode_modes import levels_at_random
from tests.support.frame_builder import Draft
from tests.support.paths import GOLDEN
from tests.support.ranks import Ranks, agreed

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]
TYPES = ("float32", "bfloat16", "float16")
ON_DEVICE = [case for case in (*CASES, *LARGE) if case.dtype in TYPES]
every_case = pytest.mark.parametrize("case", ON_DEVICE, ids=str)


@pytest.fixture(scope="module", autouse=True)
def kernels_reach_the_device() -> None:
    """End the session at once if no kernel can be launched on the device; every test would only say so."""
    try:
        gcodec.decode(gcodec.encode(torch.ones(1, device="cuda")))
    except gcodec.Unsupported as error:
        pytest.exit(f"{error}; see docs/gpu.md, What it needs", returncode=1)


def tensor_of(case: Case) -> Any:
    """Return a case's array as a tensor on the host."""
    bits = np.array(case.bits, order="C")  # 0-d stays 0-d
    return torch.from_numpy(bits.view(f"i{bits.itemsize}")).view(getattr(torch, case.dtype))


def host_frame(x: Any, bit_layout: BitLayout, levels: Any, codebook: Any, nearest: bool = True) -> bytes:
    """Return what the host makes of a tensor by the plan of the device."""
    from gcodec.gpu.encoder import plan_of

    values = values_of(x)
    plan = plan_of(values.dtype, -(-len(values.bits) >> 14), codebook)
    graded = np.zeros(0, np.uint8) if levels is None else levels.reshape(-1)
    return bytes(encode_values(EncodeRequest(values, bit_layout, graded, CODING, nearest, 1), plan))


def check_case(x: Any, bit_layout: BitLayout, promised: Bits, levels: Any = None, **options: Any) -> None:
    """Check that bytes are the host's, with an earlier codebook too, and that either side decodes them."""
    there = x.cuda()
    graded = None if levels is None else [torch.from_numpy(levels).cuda()]
    book = (
        gpu.fresh_codebook(
            [there], levels=graded, mantissa_bits=options.get("mantissa_bits"), ladder=options.get("ladder")
        )
        if x.numel()
        else None
    )
    nearest = options.get("rounding") != "truncate"
    if book is not None or not x.numel():
        (frame,) = gpu.encode_batch([there], levels=graded, codebook=book, **options)
        assert bytes(frame.cpu().numpy()) == host_frame(x, bit_layout, levels, book, nearest)
    else:
        (frame,) = gpu.encode_batch([there], levels=graded, **options)
    laws.assert_same_bits(gcodec.decode(frame).cpu(), promised)
    laws.assert_same_bits(gcodec.decode(bytes(frame.cpu().numpy()), like="torch"), promised)


@every_case
def test_lossless_frames_of_the_device_have_the_hosts_bytes(case):
    check_case(tensor_of(case), bit_layouts.lossless(BY_NAME[case.dtype]), case.bits)


@every_case
@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
def test_frames_with_fixed_bits_of_the_device_have_the_hosts_bytes(case, rounding):
    x = tensor_of(case)
    promised = laws.bits_of(gcodec.decode(gcodec.encode(x, mantissa_bits=4, rounding=rounding, options=CODING)))
    check_case(
        x,
        bit_layouts.fixed(BY_NAME[case.dtype], 4),
        promised.reshape(case.bits.shape),
        mantissa_bits=4,
        rounding=rounding,
    )


@every_case
@pytest.mark.parametrize("ladders", [FINE_LADDER, PAPER_LADDER, UNEVEN], ids=["fine", "paper", "uneven"])
def test_frames_with_ladders_of_the_device_have_the_hosts_bytes(case, ladders):
    x, ladder = tensor_of(case), ladders[case.dtype]
    levels = levels_at_random(case.bits, len(ladder.drops)).reshape(case.bits.shape)
    promised = laws.bits_of(gcodec.decode(gcodec.encode(x, levels=levels, ladder=ladder, options=CODING)))
    bit_layout = bit_layouts.ladder(BY_NAME[case.dtype], ladder)
    check_case(x, bit_layout, promised.reshape(case.bits.shape), levels, ladder=ladder)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_operators_of_torch_encode_and_decode_on_the_device(backend):
    from gcodec.integrations.torch_ops import decode_out, encode_out, frame_room

    def there_and_back(x: Any, room: Any, back: Any) -> Any:
        size = encode_out(x, room)
        decode_out(room, back)
        return size

    x = torch.randn(100, 300, device="cuda")
    room, back = torch.zeros(frame_room(x), dtype=torch.uint8, device="cuda"), torch.zeros_like(x)
    size = int(torch.compile(there_and_back, backend=backend, fullgraph=True)(x, room, back))
    assert torch.equal(back, x) and torch.equal(gcodec.decode(room[:size]), x)


@every_case
def test_frames_of_the_host_are_decoded_on_the_device(case):
    frame = gcodec.encode(tensor_of(case))
    laws.assert_same_bits(gcodec.decode(frame, device="cuda").cpu(), case.bits)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_type_is_warmed_up_in_all_modes(dtype):
    gcodec.warmup([dtype], device="cuda")


def test_golden_frames_are_decoded_on_the_device():
    for name, described in json.loads((GOLDEN / "manifest.json").read_text()).items():
        if not {"base", "codebooks"} & described.keys():
            result = gcodec.decode((GOLDEN / f"{name}.frame").read_bytes(), device="cuda")
            assert sha256(laws.bits_of(result.cpu()).tobytes()).hexdigest() == described["sha256"], name


def test_any_frames_are_decoded_on_the_device():
    """Frames of all layouts that no encoder writes."""
    for built in frames_to_decode(Random(6), 96, named=False):
        result = gcodec.decode(built.frame, device="cuda")
        assert np.array_equal(laws.bits_of(result.cpu()).reshape(-1), built.bits)


@pytest.mark.parametrize("dtype", TYPES)
def test_codebooks_without_references_give_the_hosts_bytes(dtype):
    for case in ON_DEVICE:
        if case.dtype == dtype and case.bits.size:
            x = tensor_of(case)
            book = gpu.fresh_codebook([x.cuda()])
            book = None if book is None else book._replace(references=False)
            (frame,) = gpu.encode_batch([x.cuda()], codebook=book)
            if book is not None:
                assert bytes(frame.cpu().numpy()) == host_frame(x, bit_layouts.lossless(BY_NAME[dtype]), None, book)
            laws.assert_same_bits(gcodec.decode(frame).cpu(), case.bits)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_batch_is_the_frames_of_its_tensors(dtype):
    selected = [tensor_of(case).cuda() for case in ON_DEVICE if case.dtype == dtype]
    book = gpu.fresh_codebook(selected)
    frames = gpu.encode_batch(selected, codebook=book)
    for x, frame, result in zip(selected, frames, gpu.decode_batch(frames), strict=True):
        assert bytes(frame.cpu().numpy()) == host_frame(x.cpu(), bit_layouts.lossless(BY_NAME[dtype]), None, book)
        laws.assert_same_bits(result.cpu(), laws.bits_of(x.cpu()).reshape(tuple(x.shape)))


def on_device(array: Any) -> Any:
    """Return floats, bfloat16 as bits, as a tensor on the device."""
    tensor = torch.from_numpy(array.view(f"i{array.itemsize}"))
    kinds = {"uint16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    return tensor.view(kinds[array.dtype.name]).cuda()


@pytest.mark.parametrize(
    "types", [("float32",) * 3, ("bfloat16", "bfloat16", "float32"), ("float16", "float32", "float16")], ids=str
)
@pytest.mark.parametrize("title", RULES)
def test_levels_of_the_device_are_the_hosts(title, types):
    name, hyper, state = RULES[title]
    rng, views, params, grads, expected = np.random.default_rng(9), [], [], [], []
    for n in (100_000, 1, 16_385, 700):
        kept = {
            key: value
            if key == "step"
            else as_type(
                abs(floats_of_all_kinds(rng, n)) if value == "square" else floats_of_all_kinds(rng, n), types[2]
            )
            for key, value in state.items()
        }
        grad = as_type(floats_of_all_kinds(rng, n) / 64, types[0])
        param = as_type(floats_of_all_kinds(rng, n), types[1])
        known = view_from_dump(name, hyper, kept)
        expected.append(levels_for(known, param, grad, in_group=False))
        there: Any = {key: value if key == "step" else on_device(value) for key, value in kept.items()}
        views.append(OptimizerView(name, known.hyper, there))
        params.append(on_device(param))
        grads.append(on_device(grad))
    for result, wanted in zip(gpu.levels_batch(views, params, grads, in_group=False), expected, strict=True):
        assert np.array_equal(result.cpu().numpy(), wanted)


@pytest.mark.parametrize("fused", [False, True])
def test_levels_of_a_live_optimizer_on_the_device_are_the_hosts(fused):
    params = [torch.nn.Parameter(torch.randn(shape, device="cuda")) for shape in ((300, 70), (5000,))]
    optimizer = torch.optim.AdamW(params, lr=1e-3, fused=fused)
    for _ in range(3):
        for param in params:
            param.grad = torch.randn_like(param) * 1e-3
        optimizer.step()
    grads = [param.grad for param in params]
    for param, grad, result in zip(params, grads, gpu.levels_batch(optimizer, params, grads), strict=True):
        state = {key: value.cpu() for key, value in optimizer.state[param].items()}
        known = view_from_dump("AdamW", optimizer.param_groups[0], state)
        assert np.array_equal(result.cpu().numpy(), levels_for(known, param.detach().cpu(), grad.cpu()))
        frame = gcodec.encode(grad, optimizer=optimizer, param=param)
        wanted = gcodec.decode(gcodec.encode(grad.cpu(), levels=result.cpu().numpy(), options=CODING))
        laws.assert_same_bits(gcodec.decode(frame).cpu(), laws.bits_of(wanted).reshape(tuple(grad.shape)))


@pytest.mark.parametrize("size", [2, 3])
def test_allreduces_of_the_device_have_the_hosts_bits(size):
    """Ranks share the device, which NCCL does not do: frames go through the host."""
    pytest.importorskip("xxhash")
    from tests.distributed import gpu_allreduce_cases

    ranks = Ranks(size)
    try:
        agreed(ranks.run(gpu_allreduce_cases.on_cuda))
    finally:
        ranks.close()


def bits_to_tensor(bits: Bits, dtype: str) -> Any:
    """Return bits as a tensor of a type on the device."""
    return torch.from_numpy(bits.view(f"i{bits.itemsize}").copy()).view(getattr(torch, dtype)).cuda()


SPARSE_TYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn")


def base_and_near(dtype: str, n: int, share: float) -> tuple[Bits, Bits]:
    """Return bits of values, and of which this share is changed."""
    base = np.resize(Case(dtype, "gaussian").bits.reshape(-1), n)
    return base, near(base, share, n)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("n", [300, 65_536, 600_001])
@pytest.mark.parametrize("dtype", SPARSE_TYPES)
def test_patches_are_applied_on_the_device(dtype, n, share):
    base, wanted = base_and_near(dtype, n, share)
    data = gcodec.encode(wanted, base=base, dtype=dtype)
    weights = bits_to_tensor(base, dtype)
    frame = torch.frombuffer(bytearray(data), dtype=torch.uint8).cuda()
    laws.assert_same_bits(gcodec.decode(data, base=weights).cpu(), wanted)
    laws.assert_same_bits(gcodec.decode(frame, base=weights, out=torch.empty_like(weights)).cpu(), wanted)
    laws.assert_same_bits(weights.cpu(), base)
    assert gcodec.decode(frame, base=weights, out=weights) is weights
    laws.assert_same_bits(weights.cpu(), wanted)
    if share:
        with pytest.raises(gcodec.Unsupported):
            gcodec.decode(frame, base=weights)


@pytest.mark.parametrize("share", [0.0, 0.002, 0.02, 0.3])
@pytest.mark.parametrize("n", [300, 65_536, 600_001])
@pytest.mark.parametrize("dtype", SPARSE_TYPES)
def test_patches_of_the_device_have_the_hosts_bytes(dtype, n, share):
    base, wanted = base_and_near(dtype, n, share)
    weights, earlier = bits_to_tensor(wanted, dtype), bits_to_tensor(base, dtype)
    expected = gcodec.encode(weights.cpu(), base=earlier.cpu())
    assert gcodec.encode(weights, base=earlier, device="cpu") == expected
    assert gcodec.decode(gcodec.encode(weights, base=earlier), base=earlier, out=earlier) is earlier
    laws.assert_same_bits(earlier.cpu(), wanted)


@pytest.mark.parametrize("n", [0, 1, 240, 241, 1023, 1024, 1025, 65_537, 1 << 20])
def test_xxh3_of_the_device_is_the_librarys(n):
    data = torch.from_numpy(np.random.default_rng(n).integers(0, 256, n + 3, dtype=np.uint8))
    there = data.cuda()
    for part in (slice(0, n), slice(3, n + 3)):
        assert gpu.device_hashes([there[part]]) == [xxhash.xxh3_64_hexdigest(data[part].numpy().tobytes())]


def test_weights_are_published_and_applied_on_the_device():
    random = torch.Generator().manual_seed(4)
    kinds = (torch.bfloat16, torch.float32, torch.float16)
    state = {
        f"{n} {kind}": (torch.randn(n, generator=random) / 8).to(kind) for n in (1, 700, 300_001) for kind in kinds
    }
    weights = {name: tensor.cuda() for name, tensor in state.items()}
    ours = sync.Publisher(start={name: tensor.cuda() for name, tensor in state.items()}, on_device=True)
    theirs, subscriber = sync.Publisher(start=state), sync.Subscriber(weights, on_device=True)
    for share in (0.01, 0.2, 0.0, 0.9):
        for name, tensor in state.items():
            factors = torch.where(torch.rand(tensor.shape, generator=random) < share, 1.3, 1.0)
            state[name] = tensor * factors.to(tensor.dtype)
        versions = [ours.publish({name: tensor.cuda() for name, tensor in state.items()}), theirs.publish(state)]
        assert versions[0].state == versions[1].state
        damaged = bytearray(versions[0].data)
        damaged[len(damaged) // 3] ^= 4
        with pytest.raises(gcodec.GcodecError):
            subscriber.apply(bytes(damaged))
        subscriber.apply(versions[share < 0.1].data)
        subscriber.verify()
        assert all(torch.equal(weights[name].cpu(), tensor) for name, tensor in state.items())


def test_spoilt_patches_leave_the_weights_as_they_were():
    base, wanted = base_and_near("bfloat16", 600_001, 0.02)
    data, weights, rng = gcodec.encode(wanted, base=base, dtype="bfloat16"), bits_to_tensor(base, "bfloat16"), Random(0)
    for _ in range(25):
        draft = Draft.of(data, {})
        blocks = [bytearray(block) for block in draft.blocks]
        block = rng.choice(blocks)
        block[rng.randrange(16, len(block))] ^= 1 << rng.randrange(8)
        spoilt = replace(draft, blocks=tuple(map(bytes, blocks))).seal()
        expected = laws.outcome(spoilt, base=base)
        try:
            result: Any = laws.bits_of(gcodec.decode(spoilt, base=weights.clone()).cpu())
            gcodec.decode(spoilt, base=weights.clone(), out=weights)
        except gcodec.GcodecError as error:
            result = laws.kind_of(error)
            laws.assert_same_bits(weights.cpu(), base)
        assert laws.same_outcome(result, expected)
        weights = bits_to_tensor(base, "bfloat16")


def test_spoilt_frames_are_refused_on_the_device():
    x = tensor_of(Case("float32", "three blocks and a bit")).cuda()
    frame = gcodec.encode(x)
    data = bytearray(frame.cpu().numpy())
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(data), 60):
        spoilt = bytearray(data)
        spoilt[at] ^= 1 << int(rng.integers(8))
        tensor = torch.frombuffer(spoilt, dtype=torch.uint8).cuda()
        try:
            gcodec.decode(tensor)
        except gcodec.GcodecError:
            continue
        raise AssertionError(f"byte {at}: not noticed")


def test_streams_of_the_device_keep_their_order():
    side, x = torch.cuda.Stream(), torch.zeros(1 << 20, device="cuda")
    book = gpu.fresh_codebook([torch.randn(1 << 20, device="cuda")])
    out = torch.empty(gpu.max_frame_bytes(x), dtype=torch.uint8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(50):
            x.add_(0.125)
        gpu.start_batch([x], codebook=book, out=out)
        x.zero_()
        result = gcodec.decode(out)
    side.synchronize()
    assert bool((result == 6.25).all())
