"""What the host asks of a device for each call, counted on a device that does nothing (:mod:`bench.gpu_stub`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import gcodec  # noqa: E402
from bench import gpu as bench_gpu  # noqa: E402
from bench import gpu_host, gpu_stub  # noqa: E402
from gcodec import Unsupported, gpu  # noqa: E402
from gcodec.dtypes import BY_NAME  # noqa: E402
from gcodec.format.modes import lossless  # noqa: E402
from gcodec.gpu import encoder  # noqa: E402
from gcodec.kernels.cuda import nvrtc  # noqa: E402
from gcodec.kernels.cuda.native import ALL_KERNELS, NativeKernel  # noqa: E402
from gcodec.plan import codebooks  # noqa: E402

#: Launches, uploads, allocations and waits of each call, once tables are kept on the device.
EXPECTED = {
    "encode one tensor, reused codebook, out=": (3, 1, 1, 0),
    "encode one tensor, reused codebook": (3, 1, 2, 0),
    "decode one frame": (1, 1, 0, 2),
    "decode one frame, out=": (1, 1, 0, 2),
    "encode 9 tensors, reused codebook": (3, 1, 2, 0),
    "decode 9 frames": (1, 1, 0, 2),
}


@pytest.fixture
def device() -> Iterator[Any]:
    with gpu_stub.stub_device() as stub:
        yield stub


def test_a_call_asks_for_one_upload_and_no_wait_that_is_not_needed(device):
    asked = {}
    for what, call in gpu_host.calls(9, 1 << 15):
        row: Any = gpu_host.measure(call, device, 1)
        asked[what] = tuple(row[name] for name in ("launches", "uploads", "allocations", "waits"))
        assert row["upload_bytes"] < 1 << 13, "tables were sent again"
    assert asked == EXPECTED


def test_frames_that_share_a_codebook_share_its_tables(device):
    calls = dict(gpu_host.calls(64, 1 << 14))
    calls["decode one frame"]()
    sent = device.counts["upload_bytes"]
    calls["decode 64 frames"]()  # the same tables: a codebook occurs once, however often it is named
    assert device.counts["upload_bytes"] - sent < 64 * 256


def test_decoding_that_is_started_waits_for_preludes_and_then_for_statuses(device):
    frame = gcodec.encode(torch.linspace(1.0, 2.0, 1 << 15))
    there = gpu_stub.stub_tensor(torch.frombuffer(bytearray(frame), dtype=torch.uint8))
    batch = gpu.start_decode([there] * 3)
    assert device.counts["waits"] == 1
    assert batch.check() is batch.tensors
    assert device.counts["waits"] == 2
    assert len(batch.tensors) == 3
    gpu.start_decode([frame] * 3, device="cuda")  # whose preludes are on the host
    assert device.counts["waits"] == 2
    gpu.start_decode([frame, there], device="cuda")
    assert device.counts["waits"] == 3
    assert gpu.start_decode([], device="cuda").check() == gpu.decode_batch([]) == []


@pytest.mark.parametrize("sizes", [[1 << 32], [1, (1 << 33) + 5, 0], [3 << 31]])
def test_a_bin_of_a_histogram_does_not_overflow(sizes, device, monkeypatch):
    """All values of tensors, of which nothing but their sizes is there, fall into one bin of 32 bits."""
    seen: list[np.ndarray] = []

    def count(memory: Any, kernel: Any, n_blocks: int, tensors: Any, *args: Any) -> None:
        *_, counts = args
        rows, owner, found = (
            memory.part(own, 0, own.nbytes).numpy().view(own.dtype).reshape(own.shape)
            for own in (tensors.rows, tensors.owner, counts)
        )
        assert np.array_equal(np.bincount(owner, minlength=len(rows)), -(-rows[:, 2] >> 14))
        found[:, 2] = rows[:, 2].astype(np.uint32)  # as additions to it do, without what exceeds it

    def from_histogram(histogram: np.ndarray, *args: Any, **options: Any) -> Any:
        seen.append(histogram)
        return codebooks.from_histogram(histogram, *args, **options)

    monkeypatch.setattr(device, "launch", count)
    monkeypatch.setattr(encoder, "from_histogram", from_histogram)
    dtype, one = BY_NAME["bfloat16"], gpu_stub.stub_tensor(torch.zeros(1, dtype=torch.bfloat16))
    sources = [encoder.GpuSource(one, n, (n,)) for n in sizes]
    assert encoder.fit_codebook(device(None), sources, dtype, lossless(dtype), gcodec.EncoderOptions()) is not None
    assert [own.sum() for own in seen] == [sum(sizes)]


def test_tables_of_codebooks_that_are_no_longer_used_are_dropped(device, monkeypatch):
    from gcodec.gpu import gpu_memory

    monkeypatch.setattr(gpu_memory, "_N_KEPT", 3)
    memory, made = device(None), []

    def make(key: int) -> Any:
        made.append(key)
        return tuple(memory.rooms((1, "uint8")))

    for key in (1, 2, 3, 1, 4, 1, 2):
        memory.kept(key, lambda key=key: make(key))
    assert made == [1, 2, 3, 4, 2]


#: Calls that wait for the device, or read from the host's memory, before they send anything.
CAPTURED = {
    "encoding": lambda x, data, batch, optimizer: gpu.start_batch([x]),
    "encoding a difference": lambda x, data, batch, optimizer: gcodec.encode(x, base=x),
    "reading sizes": lambda x, data, batch, optimizer: batch.frames,
    "choosing levels": lambda x, data, batch, optimizer: gpu.levels_batch(optimizer, list(optimizer.state), [x]),
    "decoding": lambda x, data, batch, optimizer: gcodec.decode(gpu_stub.stub_tensor(data)),
    "decoding bytes": lambda x, data, batch, optimizer: gcodec.decode(bytes(data.numpy()), device="cuda"),
    "hashing": lambda x, data, batch, optimizer: gpu.device_hashes([gpu_stub.stub_tensor(data[:200])]),
}


@pytest.mark.parametrize("what", CAPTURED)
def test_capture_in_a_graph_is_refused(what, device, monkeypatch):
    values = torch.linspace(1.0, 2.0, 1 << 15)
    data, x = torch.frombuffer(bytearray(gcodec.encode(values)), dtype=torch.uint8), gpu_stub.stub_tensor(values)
    batch, param = gpu.start_batch([x]), torch.nn.Parameter(values)
    optimizer = torch.optim.AdamW([param], capturable=True)
    optimizer.state[param] = {"step": gpu_stub.stub_tensor(torch.ones(()))}

    def waits(*args: Any) -> Any:
        raise AssertionError("the host waits for a stream that is captured")

    for name in ("_staging", "check_capture"):
        monkeypatch.delattr(gpu_stub.StubMemory, name)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for name in ("cpu", "to", "tolist"):
        monkeypatch.setattr(torch.Tensor, name, waits)
    with pytest.raises(Unsupported, match="CUDA graph"):
        CAPTURED[what](x, data, batch, optimizer)


def test_one_tensor_or_frame_is_not_taken_for_several(device):
    x = gpu_stub.stub_tensor(torch.ones(3, 4))
    frame = gcodec.encode(torch.ones(3, 4))
    calls: Any = (gpu.encode_batch, "tensors"), (gpu.fresh_codebook, "tensors"), (gpu.decode_batch, "frames")
    for call, name in calls:
        with pytest.raises(gcodec.InvalidArgument, match=f"{name} must be a list or tuple, not a _StubTensor"):
            call(x)
        with pytest.raises(gcodec.InvalidArgument, match=f"{name} must be a list or tuple, not a generator"):
            call(item for item in [x])
    with pytest.raises(gcodec.InvalidArgument, match="frames must be a list or tuple, not a bytes"):
        gpu.decode_batch(frame, device="cuda")


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_output_bytes": "9"},
        {"max_output_bytes": float("nan")},
        {"codebooks": [3]},
        {"codebooks": 3},
        {"codebooks": "x"},
        {"codebook": "x"},
        {"codebook": gcodec.Encoder()},
    ],
    ids=lambda arguments: "-".join(f"{name}-{type(value).__name__}" for name, value in arguments.items()),
)
def test_arguments_of_other_types_are_refused_by_name(arguments, device):
    frame, (name,) = gcodec.encode(torch.ones(300)), arguments
    with pytest.raises(gcodec.InvalidArgument, match=f"{name} must be"):
        if name == "codebook":
            gpu.start_batch([gpu_stub.stub_tensor(torch.ones(300))], **arguments)
        else:
            gpu.start_decode([frame], device="cuda", **arguments)
    if name == "max_output_bytes":
        for out in (None, gpu_stub.stub_tensor(torch.empty(300))):
            with pytest.raises(gcodec.InvalidArgument, match=f"{name} must be"):
                gcodec.decode(frame, device="cuda", out=out, **arguments)


@pytest.mark.parametrize(
    "data", [[1, 2], None, "frame.bin", np.zeros(96, np.uint8)[::2]], ids=["list", "None", "name", "strided"]
)
def test_what_is_no_frame_is_refused_in_the_hosts_words(data, device):
    with pytest.raises(gcodec.InvalidArgument) as on_host:
        gcodec.decode(data)
    with pytest.raises(gcodec.InvalidArgument) as there:
        gcodec.decode(data, device="cuda")
    assert str(there.value) == str(on_host.value)


def test_memory_to_send_from_is_the_hosts_whatever_the_default_device(device, monkeypatch):
    """The default is that of ``torch.set_default_device("cuda")``; nothing is pinned here, where there is no device."""
    made = torch.empty
    monkeypatch.delattr(gpu_stub.StubMemory, "_staging")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **how: made(*size, **how))
    with torch.device("meta"):
        (sent,) = device(None).send_all(np.arange(9))
    assert sent.tensor.device.type == "cpu"


def test_warming_up_compiles_and_loads_every_kernel(device, monkeypatch):
    compiled: set[str] = set()
    fitted = mock.Mock(wraps=codebooks.from_histogram)
    monkeypatch.setattr(NativeKernel, "cubin", lambda kernel, capability, version: compiled.add(kernel.file))
    monkeypatch.setattr(gpu, "_indexed", lambda device: torch.device("cuda", 0))
    monkeypatch.setattr(encoder, "from_histogram", fitted)
    gcodec.warmup(["float64"], device="cuda")
    assert not compiled and not device.driver.loads and not fitted.called
    for _ in range(2):
        gcodec.warmup(["bfloat16", "float64", "float32"], device="cuda")
        assert compiled == {name for name in nvrtc.sources() if name.endswith(".cu")}
        assert sorted(device.driver.kernels) == sorted(kernel.name for kernel in ALL_KERNELS)  # once, and for good
        assert len(device.driver.loads) == len(compiled)
    assert fitted.called  # on the host, for codebooks
    for _, call in gpu_host.calls(9, 1 << 15):
        call()
    assert len(device.driver.kernels) == len(ALL_KERNELS)  # calls load nothing more
    with pytest.raises(gcodec.InvalidArgument, match="dtype"):
        gcodec.warmup(["float31"], device="cuda")


def test_the_benchmark_writes_each_row_at_once_goes_on_after_failures_and_ends_in_time(tmp_path, capsys):
    from gcodec.benchmark.csv_tables import read_table, write_named

    table, problems, seen = tmp_path / "gpu.csv", list[str](), list[list[str]]()

    def rows(number: int) -> Iterator[Any]:
        seen.append([row["n"] for row in read_table(table)[1]] if table.exists() else [])
        yield {"n": number}
        if number == 1:
            raise RuntimeError("a peer fails")

    wanted = (bench_gpu.Job(f"job {number}", partial(rows, number)) for number in range(4))
    write_named(table, bench_gpu.rows_within(wanted, 60.0, problems))
    assert seen == [[], ["0"], ["0", "1"], ["0", "1", "2"]] and problems == ["job 1: RuntimeError: a peer fails"]
    assert not list(bench_gpu.rows_within(iter([bench_gpu.Job("late", lambda: rows(9))]), -1.0, problems))
    assert "left out: late" in capsys.readouterr().out and len(seen) == 4


def test_the_benchmark_begins_with_what_matters_most():
    titles = [job.title for job in bench_gpu.jobs((1 << 28, 1 << 20), 1)]
    assert titles[:2] == [f"float32 lossless {1 << 28}", f"bfloat16 lossless {1 << 28}"]
    assert len(set(titles)) == len(titles) == 2 * len(bench_gpu.TYPES) * 7
