"""The device that device code runs on finds what is wrong, and nothing else: small kernels with a fault each, and the
kernels themselves, with a barrier taken out or an index off by one."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gcodec import GcodecError
from tests.gpu import native_laws
from tests.gpu.ptx import library
from tests.gpu.ptx.syntax import UnknownPtxError, read
from tests.gpu.ptx.translate import translate

LAWS = {law.__name__: law for law in native_laws.LAWS}

NEVER_WRITTEN = "a read of what was never written, in shared memory"
#: What is said of a kernel in ``faulty.cu``; of a race in some orders, too, that nothing was written before.
FOUND = {
    "threads_wait": "",
    "lanes_wait": "",
    "all_clear_the_same": "",
    "all_add_and_wait": "",
    "blocks_add": "",
    "blocks_tell_each_other": "",
    "warps_do_not_wait": "a race in shared memory",
    "lanes_do_not_wait": "a race in shared memory",
    "a_shuffle_orders_no_memory": "a race in shared memory",
    "reads_are_not_waited_for": "a race in shared memory",
    "blocks_write_the_same_place": "a race in global memory",
    "blocks_read_what_others_write": "a race in global memory",
    "some_write_what_others_are_told": "a race in global memory",
    "some_add_and_some_read": "a race in shared memory",
    "an_index_of_shared_memory_is_one_too_high": "a read outside of shared memory",
    "an_index_of_an_array_is_one_too_high": "a write outside of the arrays",
    "an_index_of_an_array_is_one_too_low": "a write outside of the arrays",
    "a_vector_is_not_aligned": "a misaligned read",
    "shared_memory_is_not_written": NEVER_WRITTEN,
    "an_array_is_not_written": "a read of what was never written, in global memory",
    "a_lane_does_not_come": "a lane does not take part in what its warp does",
    "a_thread_does_not_come": "some threads have returned, others wait for them",
    "a_division_by_zero": "a division by zero",
}
FAULTY = Path(__file__).with_name("faulty.cu").read_text()


def newest() -> str:
    """Return the latest version of NVRTC; skip the test where there is none."""
    if not library.nvrtcs():
        pytest.skip("no NVRTC is in .cache/nvidia, which make check-gpu fills")
    return max(library.nvrtcs(), key=lambda version: [*map(int, version.split("."))])


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("kernel", FOUND)
def test_small_faults_are_found_and_nothing_else(kernel: str, order: int) -> None:
    program = library.Program(library.ptx_of(newest(), "faulty.cu", 90, FAULTY))
    room = np.zeros(520, np.uint32)[4:516]
    begin = room.__array_interface__["data"][0]
    if kernel == "an_array_is_not_written":
        library.device().mark(begin, room.nbytes, True)
    arguments = struct.pack("QIxxxx", begin, 0)
    faults = program.launch(kernel, 2, arguments, [(begin, begin + room.nbytes)], order)
    library.device().mark(begin, room.nbytes, False)
    kinds = {re.split(r"( at |: )", line)[0] for line in faults.splitlines()}
    assert kinds - {NEVER_WRITTEN} == {FOUND[kernel]} - {NEVER_WRITTEN, ""}, faults
    assert (NEVER_WRITTEN in kinds) <= (FOUND[kernel] == NEVER_WRITTEN or "race" in FOUND[kernel]), faults
    assert bool(kinds) == bool(FOUND[kernel])
    assert not faults or re.search(r"at faulty\.cu:\d+", faults), "the place is not named"


#: A change of a kernel is compiled and tried for each of them, which takes a minute in all.
MUTATED = pytest.mark.skipif(not os.environ.get("GCODEC_PTX"), reason="only make check-gpu changes kernels")
BARRIER = re.compile(r"^\s*(?:bar\.sync\s+0|bar\.warp\.sync\s+\S+);", re.MULTILINE)


def kernel_in(file: str, kernel: str) -> tuple[str, int, int]:
    """Return the PTX of a file, and between what places in it a kernel stands."""
    ptx = library.ptx_of(newest(), file, 90)
    begin = ptx.index(f".entry {kernel}(")
    return ptx, begin, ptx.index(".entry", begin + 10)


def held(file: str, ptx: str, laws: Sequence[str] = ("places_of_any_alignment", "lossless")) -> str:
    """Return what laws say of kernels of which one file's PTX is changed: an error's text."""
    code = library.DeviceCode(newest(), 90, lambda own, text: ptx if own == file else text)
    try:
        for name in laws:
            LAWS[name](library.WatchedMemory(code), 1)
    except (AssertionError, GcodecError) as error:
        return str(error) or "other bytes"
    return ""


@MUTATED
@pytest.mark.parametrize(("file", "kernel"), [("decode.cu", "decode_float32"), ("encode.cu", "encode_float32")])
def test_every_barrier_that_is_taken_out_is_missed(file: str, kernel: str) -> None:
    """So there is none too many, either."""
    ptx, begin, end = kernel_in(file, kernel)
    files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+".*?(\w+\.\w+)"', ptx, re.MULTILINE))
    n_missed = 0
    for found in BARRIER.finditer(ptx, begin, end):
        number, line = re.findall(r"\.loc\s+(\d+) (\d+)", ptx[: found.start()])[-1]
        assert held(file, ptx[: found.start()] + ptx[found.end() :]), f"{files[number]}:{line}"
        n_missed += 1
    assert n_missed >= 5


#: An access of shared memory, or a write of global memory; its bits; and behind the register what is added to it.
ACCESS = re.compile(
    r"^\s*(?:@!?%p\d+ )?(?:(?:ld|st)\.shared|st\.global)(?:\.v\d)?\.[a-z](\d+)\b[^;\[]*\[%rd?\d+()(?:\+(-?\d+))?\]",
    re.MULTILINE,
)


@MUTATED
@pytest.mark.parametrize(("file", "kernel"), [("decode.cu", "decode_float32"), ("encode.cu", "encode_float32")])
def test_an_index_that_is_off_by_one_is_missed(file: str, kernel: str) -> None:
    ptx, begin, end = kernel_in(file, kernel)
    accesses = [*ACCESS.finditer(ptx, begin, end)]
    assert len(accesses) >= 20
    for found in accesses[:: len(accesses) // 5]:
        wrong = int(found[3] or 0) + int(found[1]) // 8
        assert held(file, f"{ptx[: found.start(2)]}+{wrong}{ptx[found.end() - 1 :]}"), found[0]


#: What a block knows of those before it: its number, which a counter gives it, and what they have told by volatile
#: writes.
TOLD = (
    (r"atom\.global\.add\.u32\s+(%r\d+), \[%rd\d+\], 1;", r"mov.u32 \1, %ctaid.x;", "has not begun"),
    (r"(st|ld)\.volatile\.", r"\1.", "a race in global memory"),
)


@MUTATED
@pytest.mark.parametrize(("pattern", "change", "found"), TOLD, ids=["number", "volatile"])
def test_what_blocks_tell_each_other_is_missed(pattern: str, change: str, found: str) -> None:
    ptx, begin, end = kernel_in("encode.cu", "encode_float32")
    places = [*re.finditer(pattern, ptx[begin:end])]
    assert places
    for place in places:
        other = ptx[:begin] + ptx[begin:end][: place.start()] + place.expand(change) + ptx[begin + place.end() :]
        assert found in held("encode.cu", other, ["blocks_that_look_back"])


@pytest.mark.parametrize(
    "statement",
    [
        "fma.rn.f32 %r1, %r2, %r3, %r4;",
        "add.f32 %r1, %r2, %r3;",
        "add.sat.s32 %r1, %r2, %r3;",
        "ld.volatile.global.v2.u32 {%r1, %r2}, [%rd1];",
        "ld.global.nc.u32 %r1, [%rd1];",
        "ld.local.u32 %r1, [%rd1];",
        "atom.global.cas.b32 %r1, [%rd1], %r2, %r3;",
        "shfl.sync.down.b32 %r1|%p1, %r2, 1, 31, -1;",
        "membar.gl;",
        "bar.sync 1;",
        "bar.red.popc.u32 %r1, 0, %p1;",
        "mov.u32 %r1, %laneid;",
        "mov.u32 %r9, %r1;",
        "call.uni unknown, (param0);",
        ".local .align 4 .b8 stack[16];",
    ],
)
def test_what_is_not_known_is_refused(statement: str) -> None:
    """Whatever a later compiler may write: nothing is translated by half."""
    registers = ".reg .pred %p<2>; .reg .b32 %r<5>; .reg .b64 %rd<3>;"
    text = ".version 9.0\n.target sm_90\n.visible .entry f(.param .align 8 .b8 f_0[16])\n{{ {} {} ret; }}\n"
    translate(read(text.format(registers, "add.s32 %r1, %r2, %r3;")))
    with pytest.raises(UnknownPtxError):
        translate(read(text.format(registers, statement)))


def test_what_stands_beside_functions_is_known_or_refused() -> None:
    assert read(".version 9.0\n.target sm_90\n.global .align 4 .u32 SEED = -1;\n").functions == ()
    for text in (".extern .func f;", ".global .align 4 .b8 table[64];", ".tex .u32 t;"):
        with pytest.raises(UnknownPtxError):
            read(text)
