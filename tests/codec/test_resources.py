"""The laws of threads and memory: callers on any thread get the same bytes, and no more memory is taken than needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec import threads as pool_module
from gcodec.format import tables
from gcodec.frame import coded_blocks, predicted_blocks
from gcodec.memory import BytesBuilder
from gcodec.threads import OrderedWriter, threads_per_rank
from tests.support import laws
from tests.support.bit_patterns import KINDS, gaussian, noise
from tests.support.frame_builder import Draft, Inline, Predicted, Residual, plain_block
from tests.support.paths import ROOT

LARGE = 1 << 20  # values: 64 blocks


def large(seed: int = 0) -> np.ndarray:
    """Return an array whose blocks are coded, raw, constant and zero, and not a whole number of them."""
    rng, kind = np.random.default_rng(seed), KINDS["float32"]
    bits = np.concatenate(
        [
            gaussian(kind, rng, LARGE // 2),
            noise(kind, rng, LARGE // 4),
            np.zeros(LARGE // 8, np.uint32),
            gaussian(kind, rng, LARGE // 8 + 77, zeros=0.5),
        ]
    )
    return bits.view(np.float32)


def run_python(program: str) -> str:
    """Return what ``program`` prints in a process of its own; one that hangs is ended."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# Threads


@pytest.mark.parametrize("seed", range(40))
def test_the_ordered_writer_puts_parts_down_one_after_another(seed):
    """Parts are made in any order with no more buffers than there are; the part whose place is known is made there."""
    rng = Random(seed)
    n_parts, free = rng.randrange(1, 30), rng.randrange(1, 6)
    ordered = OrderedWriter(n_parts, list(range(free)), 100, rng.randrange(1, 5))
    sizes = [rng.randrange(100) for _ in range(n_parts)]
    places = [100 + sum(sizes[:part]) for part in range(n_parts)]
    found: dict[int, int] = {}
    making: list[Any] = []
    taken: set[int] = set()
    made: set[int] = set()
    while len(made) < n_parts:
        due = next(part for part in range(n_parts) if part not in made)
        if len(taken) < n_parts and (free or due not in taken) and (not making or rng.random() < 0.6):
            part, buffer, place = ordered.next_part() or pytest.fail("none left")
            assert part not in taken
            assert (buffer is None) == (due not in taken)
            if buffer is None:
                assert (part, place) == (due, places[due])
                found[part] = place
            taken.add(part)
            making.append((part, buffer))
            free -= buffer is not None
        else:
            part, buffer = making.pop(rng.randrange(len(making)))
            made.add(part)
            for full, size, place in ordered.complete(part, buffer, sizes[part]):
                put_down = next(one for one in range(n_parts) if one in made and one not in found)
                assert size == sizes[put_down]
                found[put_down] = place
                ordered.release(full)
                free += 1
    assert ordered.next_part() is None
    assert [found[part] for part in range(n_parts)] == places
    assert ordered.end == 100 + sum(sizes)


def test_callers_on_many_threads_do_not_interfere():
    arrays = [large(seed) for seed in range(3)]
    frames = [gcodec.encode(x, threads=1) for x in arrays]
    room = gcodec.max_encoded_size(arrays[0].size, "float32")

    def one(k: int) -> bool:
        x, frame = arrays[k % 3], frames[k % 3]
        if k % 2:
            return bool(gcodec.encode(x, threads=2, out=bytearray(room)) == frame)
        return gcodec.encode(x, threads=3) == frame and bool(
            np.array_equal(gcodec.decode(frame, threads=2).view(np.uint32), x.view(np.uint32))
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(one, range(18)))


@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_error_on_any_thread_reaches_the_caller(at, monkeypatch):
    x, calls = large(), iter(range(1000))
    frame, kernel = gcodec.encode(x), coded_blocks.encode_coded_blocks

    def failing(*args: Any) -> Any:
        if next(calls) == at:
            raise ZeroDivisionError
        return kernel(*args)

    monkeypatch.setattr(coded_blocks, "encode_coded_blocks", failing)
    for threads in (1, 2, 4):
        calls = iter(range(at if threads == 1 else 0, 1000))
        with pytest.raises(ZeroDivisionError):
            gcodec.encode(x, threads=threads)
    monkeypatch.undo()
    assert gcodec.encode(x, threads=2) == frame
    spoilt = bytearray(frame)
    spoilt[len(frame) * (at + 1) // 5] ^= 1
    for threads in (1, 2, 4):
        laws.check_refused(gcodec.Corruption, lambda: gcodec.decode(spoilt, threads=threads))  # noqa: B023
    assert np.array_equal(gcodec.decode(frame, threads=2).view(np.uint32), x.view(np.uint32))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_buffer_that_is_too_small_is_refused_at_any_size(threads):
    x = large()
    frame = gcodec.encode(x)
    assert gcodec.encode(x, threads=threads, out=bytearray(len(frame))) == frame
    for size in (0, 100, len(frame) // 2, len(frame) - 1):
        laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.encode(x, threads=threads, out=bytearray(size)))  # noqa: B023
    incompressible = noise(KINDS["float32"], np.random.default_rng(3), LARGE).view(np.float32)
    most = gcodec.max_encoded_size(LARGE, "float32")
    assert gcodec.encode(incompressible, threads=threads, out=bytearray(most)) == gcodec.encode(incompressible)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_a_signal_handler_may_encode_while_its_thread_encodes():
    """The handler runs in the middle of the encoding that it interrupts."""
    x = large()
    frame, small, seen = gcodec.encode(x), gcodec.encode(x[:1000]), []

    def handler(*_: Any) -> None:
        seen.append(gcodec.encode(x, threads=2) == frame and gcodec.encode(x[:1000]) == small)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for threads in (1, 2):
            while len(seen) < 4 * threads:
                signal.setitimer(signal.ITIMER_REAL, 1e-4)
                assert gcodec.encode(x, threads=threads) == frame
                assert gcodec.encode(x[:1000]) == small
                assert gcodec.decode(frame, threads=threads).tobytes() == x.tobytes()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(seen)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own():
    run_python("""
import os
import numpy as np, gcodec
x = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
frame = gcodec.encode(x, threads=2)
child = os.fork()
if child == 0:
    same = gcodec.encode(x, threads=2) == frame and np.array_equal(gcodec.decode(frame, threads=2), x)
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
assert gcodec.encode(x, threads=2) == frame
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_while_another_thread_loads_kernels_can_load_its_own():
    run_python("""
import faulthandler, os, sys, threading
import numpy as np, gcodec
from numba.core.compiler_lock import global_compiler_lock

gcodec.encode  # is imported; no kernel has been loaded yet
loading, forking = threading.Event(), threading.Event()

def load():
    with global_compiler_lock:
        loading.set()
        forking.wait()

threading.Thread(target=load).start()
loading.wait()
sys.setswitchinterval(1000)  # or the thread might be done before the fork
os.register_at_fork(before=forking.set)
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    os._exit(0 if np.array_equal(gcodec.decode(gcodec.encode(x)), x) else 1)
assert os.waitpid(child, 0)[1] == 0
""")


def test_encode_and_decode_work_where_no_thread_can_be_started(monkeypatch):
    def start(*_: Any) -> Any:
        raise RuntimeError("can't start new thread")

    x = large()
    frame = gcodec.encode(x, threads=1)
    monkeypatch.setattr(pool_module, "start_new_thread", start)
    monkeypatch.setattr(pool_module, "_pool", pool_module.WorkPool(4))
    assert gcodec.encode(x, threads=3) == frame
    assert gcodec.decode(frame, threads=3).tobytes() == x.tobytes()


# Work


def changing_frame(n_blocks: int) -> bytes:
    """Return a frame of zeros whose blocks are constant and predicted in turns, with as many codebooks, residual
    codebooks and templates as a frame may have."""
    block = 1 << 10
    residual, codebook = Residual((1, 1, *[0] * 119)).record(), Inline(((1, 0),), (1, 1)).record()
    predicted = Predicted(0, 0, block, b"", (b"",) * (block >> 6), bytes(3 * (block >> 4)), 0, 0, 0, 0).block()
    blocks = (plain_block(0, block, bytes(4)), predicted) * (n_blocks // 2)
    template = (16).to_bytes(4, "little") + bytes(4 * 16)
    n_values = block * len(blocks)
    return Draft(
        1,
        0,
        0,
        10,
        6,
        n_values,
        (n_values,),
        (24,),
        ((0, 1),),
        (codebook,) * 255,
        blocks,
        (residual,) * 255,
        (template,) * 255,
    ).seal()


@pytest.mark.parametrize("threads", [1, 3])
def test_tables_are_made_once_however_often_the_kind_of_block_changes(threads, monkeypatch):
    """Otherwise the time to decode a small frame would be the product of its blocks and its codebooks."""
    made: list[str] = []

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            made.append(name)
            time.sleep(0)  # lets another thread begin the same
            return function(*args)

        return call

    monkeypatch.setattr(tables, "_stack", counted("tables", tables._stack))
    monkeypatch.setattr(predicted_blocks, "_sources_of", counted("templates", predicted_blocks._sources_of))
    frame = changing_frame(400)
    for decode in (lambda: gcodec.decode(frame, threads=threads), lambda: gcodec.decode_range(frame, 1, 400_000)):
        made.clear()
        assert not decode().any()
        assert sorted(made) == ["tables", "tables", "templates"]


# Memory


def test_bytes_built_in_place_have_the_length_that_was_used():
    for size in (0, 1, 100, 10_000, 1 << 22):
        for used in {0, size // 2, size}:
            builder = BytesBuilder(size)
            builder.array[:used] = 7
            made = builder.finish(used)
            assert type(made) is bytes
            assert made == b"\7" * used
            assert hash(made) == hash(b"\7" * used)
    BytesBuilder(1 << 20).array[5] = 1  # never finished


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

MEASURE = """
import sys
import numpy as np, gcodec
def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name):
            return int(line.split()[1]) * 1024
def growth(call):
    call()      # compiled, and what is kept is there
    before = status("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")       # the high-water mark is now what is in use
    result = call()
    return status("VmHWM") - before, result
"""


@linux_only
@pytest.mark.parametrize("threads", [1, 2])
def test_large_arrays_take_little_more_memory_than_their_results(threads):
    """Encoding takes the frame, decoding the array, and both a tenth more and a few MiB."""
    lines = run_python(
        MEASURE
        + f"""
n = 1 << 24
x = np.random.default_rng(0).standard_normal(n, np.float32)
levels = np.full(n, 2, np.uint8)
buffer = np.ones(gcodec.max_encoded_size(n, "float32"), np.uint8)
array = np.ones(n, np.float32)
for more in ({{}}, {{"mantissa_bits": 7}}, {{"levels": levels}}):
    more["threads"] = {threads}
    grown, frame = growth(lambda: gcodec.encode(x, **more))
    print("encode", grown, len(frame))
    grown, _ = growth(lambda: gcodec.encode(x, out=buffer, **more))
    print("encode into", grown, 0)
    grown, _ = growth(lambda: gcodec.decode(frame, threads={threads}))
    print("decode", grown, x.nbytes)
    grown, _ = growth(lambda: gcodec.decode(frame, out=array, threads={threads}))
    print("decode into", grown, 0)
    del frame, _
"""
    ).splitlines()
    assert len(lines) == 12
    for line in lines:
        what, grown, result = line.rsplit(" ", 2)
        assert int(grown) <= 1.1 * int(result) + (8 << 20), (what, grown, result)


@linux_only
def test_memory_does_not_grow_from_call_to_call():
    lines = run_python(
        MEASURE
        + """
rng = np.random.default_rng(0)
def round_trips(times):
    for k in range(times):
        dtype = ("float32", "float64", "float16")[k % 3]
        x = (rng.standard_normal(rng.integers(0, 3000)) * np.exp(k % 10)).astype(dtype)
        more = {"mantissa_bits": 4} if k % 2 else {}
        gcodec.decode(gcodec.encode(x, **more))
round_trips(1200)  # what is kept for each shape is kept for some hundred of them
before = status("VmRSS")
round_trips(1000)
print(status("VmRSS") - before)
"""
    )
    assert int(lines) <= 3 << 20


@pytest.mark.parametrize(("value", "share"), [(None, 8), ("", 8), (" ", 8), ("1", 8), ("3", 2), ("100", 1)])
def test_ranks_of_a_host_share_its_cores(value, share, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if value is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
    assert threads_per_rank() == share


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_a_wrong_number_of_ranks_names_its_variable(value, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
    with pytest.raises(gcodec.InvalidArgument, match="LOCAL_WORLD_SIZE must be"):
        threads_per_rank()
