"""What stands on the CUDA kernels, on a host that pretends to be a device: public functions, weight sync, all-reduces,
the benchmark, and the tests of a device."""

from __future__ import annotations

import subprocess
import sys
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any
from unittest.mock import patch

import numpy as np

import gcodec
from gcodec import FINE_LADDER, PAPER_LADDER, Ladder
from gcodec.dtypes import BY_NAME
from gcodec.truncation.optimizers import levels_for
from tests.gpu.native_laws.law_table import TYPES
from tests.support import laws
from tests.support.paths import ROOT


def test_public_functions_take_tensors_on_a_device() -> None:
    """Check ``gcodec.encode`` and ``gcodec.decode`` of tensors that say they are on a CUDA device, and the package."""
    import torch

    from gcodec import gpu
    from tests.gpu.cuda_torch import on_host, pretending

    def same(a: Any, b: Any) -> None:
        laws.assert_same_bits(a.as_subclass(torch.Tensor), laws.bits_of(b.as_subclass(torch.Tensor)).reshape(b.shape))

    rng = np.random.default_rng(1)
    with on_host():
        for kind in (torch.float32, torch.bfloat16, torch.float16):
            plain = torch.from_numpy(rng.standard_normal((40, 90)).astype(np.float32)).to(kind)
            x = pretending(plain)
            frame = gcodec.encode(x)
            data = bytes(frame.numpy())
            assert gcodec.encode(x, device="cpu") == data
            same(gcodec.decode(data), plain)
            same(gcodec.decode(pretending(frame)), plain)
            same(gcodec.decode(pretending(frame), device="cpu"), plain)
            same(gcodec.decode(data, device="cuda"), plain)
            turned = pretending(plain.t())
            same(gcodec.decode(bytes(gcodec.encode(turned).numpy())), plain.t())
            out = torch.zeros(gpu.max_frame_bytes(x) + 16, dtype=torch.uint8)
            assert gcodec.encode(x, out=out) is out
            assert bytes(out[: len(data)].numpy()) == data
            laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.encode(x, out=out[: len(data)]))  # noqa: B023
            rounded = gcodec.encode(x, mantissa_bits=4, device="cpu")
            same(gcodec.decode(rounded), gcodec.decode(gcodec.encode(plain, mantissa_bits=4)))
            ladder = FINE_LADDER[str(kind)[6:]]
            levels = torch.from_numpy(rng.integers(0, len(ladder.drops), plain.shape).astype(np.uint8))
            near = gcodec.encode(x, levels=levels, device="cpu")
            same(gcodec.decode(near), gcodec.decode(gcodec.encode(plain, levels=levels.numpy())))
            book = gpu.fresh_codebook([x])
            parts = [pretending(part) for part in (plain, plain[3:5], plain[:0], plain[7])]
            frames = gpu.encode_batch(parts, codebook=book)
            for result, part in zip(gpu.decode_batch([pretending(one) for one in frames]), parts, strict=True):
                same(result, part)
            odd = torch.cat([torch.zeros(3, dtype=torch.uint8), frame])[3:]
            same(gcodec.decode(pretending(odd)), plain)
        for make in (torch.optim.SGD, torch.optim.AdamW):
            params = [pretending(torch.randn(shape)) for shape in ((40, 90), (7,), (0, 3))]
            optimizer = make(params, lr=0.01, foreach=False)
            for param in params:
                param.grad = pretending(torch.randn(param.shape) * 1e-3)
            optimizer.step()
            grads = [pretending(param.grad) for param in params]
            found = gpu.levels_batch(optimizer, params, grads, scale=2.0)
            for param, grad, own in zip(params, grads, found, strict=True):
                expected = levels_for(optimizer, param, grad, scale=2.0)
                assert np.array_equal(own.numpy(), expected)
            near = gcodec.encode(grads[0], optimizer=optimizer, param=params[0], device="cpu")
            wanted = levels_for(optimizer, params[0], grads[0])
            same(gcodec.decode(near), gcodec.decode(gcodec.encode(grads[0].as_subclass(torch.Tensor), levels=wanted)))
            check_base_of_public_functions(plain)
        x = pretending(torch.ones(5, dtype=torch.float64))
        laws.check_refused(gcodec.Unsupported, lambda: gcodec.encode(x))
        wide = gcodec.encode(torch.arange(5000, dtype=torch.float64))
        same(gcodec.decode(wide, device="cuda"), torch.arange(5000, dtype=torch.float64))
        y = pretending(torch.ones(500))
        laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.encode(y, base=y.numpy))
        laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.encode(y, base=y[1:]))
        laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.encode(y, base=y, mantissa_bits=3))
        laws.check_refused(gcodec.Unsupported, lambda: gcodec.encode(y, dtype="float32"))
        laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.encode(y, optimizer=object()))
        laws.check_refused(gcodec.Unsupported, lambda: gcodec.encode(y, optimizer=torch.optim.Rprop([y]), param=y))
        laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.encode(y, levels=torch.zeros(3, dtype=torch.uint8)))
        laws.check_refused(
            gcodec.LimitExceeded,
            lambda: gcodec.decode(gcodec.encode(torch.ones(500)), device="cuda", max_output_bytes=100),
        )
    for device in ("cuda:x", "meta"):
        laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.decode(wide, device=device))  # noqa: B023
    if not torch.cuda.is_available():
        laws.check_refused(gcodec.Unsupported, lambda: gcodec.decode(wide, device="cuda"))


def check_base_of_public_functions(base: Any) -> None:
    """Check ``gcodec.decode`` with ``base`` and ``out`` that say they are on a CUDA device."""
    import torch

    from tests.gpu.cuda_torch import pretending

    wanted = base.clone()
    wanted.view(-1)[::70] *= 1.01
    data = gcodec.encode(wanted, base=base)
    frame = torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def check(result: Any, expected: Any = wanted) -> None:
        laws.assert_same_bits(result.as_subclass(torch.Tensor), laws.bits_of(expected).reshape(expected.shape))

    for given in (data, pretending(frame)):
        own, apart = pretending(base.clone()), pretending(torch.zeros_like(base))
        check(gcodec.decode(given, base=own))
        check(own, base)
        assert gcodec.decode(given, base=own, out=apart) is apart
        check(apart)
        assert gcodec.decode(given, base=own, out=own) is own
        check(own)
        laws.check_refused(gcodec.Unsupported, lambda: gcodec.decode(given, base=own, out=own))  # noqa: B023
        laws.check_refused(gcodec.Unsupported, lambda: gcodec.decode(given, out=own))  # noqa: B023
        laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.decode(given, base=base.numpy, out=own))  # noqa: B023
        check(own)
    for wrong in (base[1:], base.view(-1)[1:], base.to(torch.float64), base.t()):
        into = pretending(wrong)
        laws.check_refused(gcodec.InvalidArgument, partial(gcodec.decode, data, base=pretending(base), out=into))
    longer = torch.cat([base.view(-1), base.view(-1)[:1]])
    first, second = pretending(longer[:-1]), pretending(longer[1:])
    laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.decode(data, base=first, out=second))
    other = pretending(torch.zeros_like(base))
    assert gcodec.decode(gcodec.encode(wanted), out=other) is other
    check(other)
    plain = gcodec.encode(wanted)
    assert gcodec.decode(plain, base=other, out=other) is other
    check(other)
    laws.check_refused(gcodec.Unsupported, lambda: gcodec.decode(data, base=other, like="numpy"))
    x, earlier = pretending(wanted), pretending(base)
    assert bytes(gcodec.encode(x, base=earlier).numpy()) == data == gcodec.encode(x, base=earlier, device="cpu")
    turned = gcodec.encode(x.t(), base=earlier.t(), device="cpu")
    assert turned == gcodec.encode(wanted.t(), base=base.t())
    room = torch.zeros(len(data) + 8, dtype=torch.uint8)
    assert gcodec.encode(x, base=earlier, out=room) is room and bytes(room[: len(data)].numpy()) == data
    laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.encode(x, base=earlier, out=room[:-16]))


def test_weights_are_published_and_applied_on_a_device_as_on_the_host() -> None:
    """Check versions of weights that are published and applied by the device's kernels, beside those of the host's."""
    import torch

    from gcodec.sync import Publisher, Subscriber, device_segments, weight_changes
    from tests.gpu.cuda_torch import on_host, pretending

    random = torch.Generator().manual_seed(4)
    shapes = {"big": (300, 201), "rows": (170, 100), "small": (90,), "one": (), "none": (0, 3)}
    kinds = (torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int32)
    state = {
        f"{name} {kind}": (torch.randn(shape, generator=random) * 9).to(kind)
        for name, shape in shapes.items()
        for kind in kinds
    }

    def there(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {name: pretending(tensor.clone()) for name, tensor in tensors.items()}

    def same(ours: dict[str, Any], theirs: dict[str, torch.Tensor]) -> bool:
        return all(
            torch.equal(
                ours[name].as_subclass(torch.Tensor).reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)
            )
            for name, tensor in theirs.items()
        )

    in_parts = patch.object(device_segments, "PART_BYTES", 1 << 16), patch.object(weight_changes, "DEVICE_PART", 50_000)
    with on_host(), in_parts[0], in_parts[1]:
        ours, theirs = Publisher(start=there(state), on_device=True), Publisher(start=state)
        weights = [there(state), there(state)]
        subscribers = [Subscriber(own, on_device=True) for own in weights]
        for share in (0.01, 0.2, 0.0, 0.9):
            moved = {
                name: tensor.double() * torch.where(torch.rand(tensor.shape, generator=random) < share, 1.3, 1.0)
                for name, tensor in state.items()
            }
            state = {name: own.to(state[name].dtype) for name, own in moved.items()}
            versions = ours.publish(there(state)), theirs.publish(state)
            assert versions[0].state == versions[1].state
            assert versions[0].stats.n_changed_values == versions[1].stats.n_changed_values
            for version, subscriber, own in zip(versions, subscribers, weights, strict=True):
                before = {name: tensor.clone() for name, tensor in own.items()}
                damaged = bytearray(version.data)
                damaged[len(damaged) // 3] ^= 4
                laws.check_refused(gcodec.GcodecError, lambda: subscriber.apply(bytes(damaged)))  # noqa: B023
                assert same(own, before)
                subscriber.apply(version.data)
                assert same(own, state)
                subscriber.verify()


def test_parts_of_buffers_are_encoded_as_their_values_are_rounded() -> None:
    """An all-reduce encodes and decodes parts of a buffer: every value is rounded at the level that the host's rule has
    for it, whatever part it lies in."""
    import torch

    import gcodec.distributed as gd
    from gcodec.distributed.gradients import Gradients, GradientSegment
    from gcodec.distributed.reduction.gpu_coder import GpuCodebooks, GpuCoder
    from gcodec.distributed.reduction.gpu_levels import GpuLevelChooser
    from gcodec.distributed.reduction.level_chooser import LevelChooser
    from gcodec.distributed.stats import Counters
    from gcodec.truncation.reference import round_to_levels
    from tests.gpu.cuda_torch import on_host, pretending

    dtype, random = BY_NAME["float32"], torch.Generator().manual_seed(3)
    shapes = ((33, 3, 5, 5), (700,), (40, 90), (9,))
    params = [torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in shapes]
    params[0] = torch.nn.Parameter(params[0].detach().to(memory_format=torch.channels_last))
    optimizer = torch.optim.AdamW(params[:-1], lr=1e-3)  # none holds the last
    for param in params:
        param.grad = torch.randn(param.shape, generator=random) * 1e-2
    optimizer.step()
    for param in params[:2]:  # as with fused=True
        optimizer.state[param]["step"] = pretending(optimizer.state[param]["step"])
    ends = np.cumsum([param.numel() for param in params])
    segments = [
        GradientSegment(int(end) - param.numel(), int(end), param, param.stride())
        for end, param in zip(ends, params, strict=True)
    ]
    values = torch.randn(int(ends[-1]), generator=random) * 1e-2
    parts = [(begin, values[begin:end]) for begin, end in ((0, 1000), (1000, 4096), (4096, len(values)))]
    modes: list[gd.Lossless | gd.FixedBits | gd.NearLossless] = [
        gd.Lossless(),
        gd.FixedBits(5),
        gd.NearLossless(optimizer),
        gd.NearLossless(optimizer, PAPER_LADDER["float32"]),
    ]
    for mode in modes:
        near = mode if isinstance(mode, gd.NearLossless) else None
        arguments: Any = near, Gradients(segments), dtype, 2.0
        for kind in (0, 1, 1):
            books, tally = GpuCodebooks(gd.Refresh()), Counters()
            coder = GpuCoder(dtype, mode, GpuLevelChooser(*arguments) if near else None, books, tally)
            with on_host():
                frames = coder.encode([(begin, pretending(part)) for begin, part in parts], kind).frames()
                started = coder.decode(frames, [len(part) for _, part in parts])
                assert started.ended() and not started.errors()
            for (begin, part), own in zip(parts, started.values, strict=True):
                wanted = part.numpy()
                if near:
                    levels = np.empty(len(part), np.uint8)
                    LevelChooser(*arguments).levels(begin, wanted, kind, levels)
                    assert len(np.unique(levels)) > 1
                    wanted = round_to_levels(wanted, levels, near.ladder_of(dtype))
                elif isinstance(mode, gd.FixedBits):
                    wanted = round_to_levels(wanted, 0, Ladder((23 - 5,)))
                assert np.array_equal(own.numpy().view(np.uint32), wanted.view(np.uint32)), (mode, kind, begin)
            assert tally.encoded_bytes == tally.decoded_bytes == values.nbytes


def test_the_benchmark_of_a_device_runs_to_its_end() -> None:
    """Check that ``bench.gpu`` runs to its end and finds what it verifies; its figures are then the host's."""
    from bench import gpu as bench
    from bench.gpu_device import reason_not_to
    from tests.gpu.cuda_torch import pretending_device

    with pretending_device(), patch.object(bench, "PART", 1 << 13), redirect_stdout(StringIO()):
        assert not reason_not_to()
        wanted = list(bench.jobs([1 << 15], 1))
        rows = [row for job in wanted for row in job.rows()]
    assert len({job.title for job in wanted}) == len(wanted) == len(bench.TYPES) * 7
    numbers = [name for name in rows[0] if name.endswith(("_us", "GBps", "roofline", "per_value"))]
    assert len(numbers) == 7 and all(float(str(row[name])) >= 0 for row in rows for name in numbers)
    assert {row["dtype"] for row in rows} == set(TYPES)
    assert {row["mode"] for row in rows} == {*bench.MODES, *bench.RULES}
    what = {row["what"] for row in rows}
    assert {
        "encode, reused codebook",
        "decode",
        "levels",
        "encode, 4 tensors of 0 MiB",
        "cast to bfloat16",
        "host: decode",
        "publish, on the device",
        "apply, on the device",
        "apply, on the host",
    } <= what


DEVICE_TESTS = """
import sys, pytest
from tests.gpu.cuda_torch import pretending_device

with pretending_device():
    sys.exit(pytest.main(["-q", "-m", "gpu", "-k", sys.argv[1], "-p", "no:cacheprovider", "-p", "no:xdist",
                          "tests/gpu/test_gpu.py"]))
"""


def test_the_tests_of_a_device_hold_where_it_does_what_it_should() -> None:
    """Some of each kind of the many in ``make test-gpu`` run, in a process of their own, which begins with a device."""
    selected = (
        "0-d or golden or any_frames or (without_references and float16) or a_batch or live or spoilt "
        "or (patches and 65536) or xxh3 or weights or (hosts and AdamW)"
    )
    done = subprocess.run(
        [sys.executable, "-c", DEVICE_TESTS, selected],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 0 and " passed" in done.stdout and " skipped" not in done.stdout, done.stdout
