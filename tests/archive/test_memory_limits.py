"""The law of limits of memory: whatever the limit, a call ends, with its result or an error that says so, and the next
call without the limit works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytest.importorskip("torch")

PROGRAM = """
import io, os, resource, signal, sys
import numpy as np
import gcodec

class Hang(BaseException):
    pass

def hang(*_):
    raise Hang

def same(found, expected):
    return all(np.array_equal(found[name], expected[name]) for name in expected)

def run(work):
    # Returns what a call gave, or "no memory".
    try:
        return work()
    except MemoryError:
        return "no memory"

def compress():
    gcodec.compress_file("x.safetensors", "y.gc", force=True, threads=2)
    return os.path.getsize("y.gc")

def decompress():
    gcodec.decompress_file("x.gc", "z.safetensors", force=True, threads=2)
    return os.path.getsize("z.safetensors")


state = {f"w{i}": np.random.default_rng(i).standard_normal((700, 1000)).astype(np.float32) for i in range(3)}
array, frame = state["w0"], gcodec.encode(state["w0"])
gcodec.save(state, "x.gc")
gcodec.load_file("x.gc")
from safetensors.numpy import save_file
save_file(state, "x.safetensors")
CALLS = {
    "encode": lambda: gcodec.encode(array, threads=2) == frame,
    "decode": lambda: np.array_equal(gcodec.decode(frame, threads=2), array),
    "save": lambda: gcodec.save(state, "s.gc", threads=2) or True,
    "save_file": lambda: gcodec.save_file(state, "t.gc", threads=2) or True,
    "load": lambda: same(gcodec.load("x.gc", threads=2), state),
    "load_file": lambda: same(gcodec.load_file("x.gc", threads=2), state),
    "compress_file": compress,
    "decompress_file": decompress,
}
signal.signal(signal.SIGALRM, hang)
sys.unraisablehook = lambda _: None  # threads that had no memory for their first step
for name, work in CALLS.items():
    expected, outcomes = work(), set()
    work()
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    for extra in range(0, 1 << 24, STEP):
        resource.setrlimit(resource.RLIMIT_AS, (size + extra, resource.RLIM_INFINITY))
        signal.alarm(30)
        found = run(work)
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert found in (expected, "no memory"), (name, extra, found)
        outcomes.add(found)
    assert work() == expected, name
    print(name, sorted(map(str, outcomes)), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of memory, and /proc")
@pytest.mark.parametrize("step", [(1 << 20) + 4096, pytest.param(1 << 14, marks=pytest.mark.slow)])
def test_at_any_limit_of_memory_a_call_ends_with_its_result_or_an_error_of_memory(tmp_path, step):
    program = PROGRAM.replace("STEP", str(step))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=tmp_path, check=False,
                          capture_output=True, text=True, timeout=3000, env={"PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
