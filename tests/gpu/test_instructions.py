"""Limits on the machine code of the kernels in CUDA C++, which :mod:`bench.gpu_instructions` counts."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from bench import gpu_instructions as counting
from gcodec import Unsupported
from gcodec.benchmark.csv_tables import read_table
from gcodec.kernels.cuda.native import PATCH_KERNELS

EACH_ARCHITECTURE = pytest.mark.parametrize("capability", counting.ARCHITECTURES, ids="sm_{0[0]}{0[1]}".format)


def assert_within_limits(row: dict[str, Any]) -> None:
    kind = row["kernel"].rpartition("_")[0]
    assert 0 < float(row["per_32_values"]) <= counting.MOST_INSTRUCTIONS[kind], row
    assert int(row["local_accesses"]) == 0, row
    assert int(row["occupancy_percent"]) >= counting.LEAST_OCCUPANCY, row
    assert int(row["shared_bytes"]) <= 48 << 10, row


@EACH_ARCHITECTURE
def test_kernels_keep_to_the_limits(capability: tuple[int, int]) -> None:
    try:
        rows = list(counting.measure(counting.COUNTED, capability))
    except Unsupported as error:
        pytest.skip(str(error))
    assert [row["kernel"] for row in rows] == [kernel.name for kernel in counting.COUNTED]
    for row in rows:
        assert_within_limits(row)


@EACH_ARCHITECTURE
def test_kernels_of_patches_and_hashes_spill_nothing(capability: tuple[int, int]) -> None:
    try:
        found = list(counting.machine_code(PATCH_KERNELS, capability))
    except Unsupported as error:
        pytest.skip(str(error))
    assert [own.kernel for own in found] == list(PATCH_KERNELS)
    for own in found:
        occupancy = counting.occupancy(capability, own.registers, own.shared)
        assert (own.local, own.shared <= 48 << 10, occupancy >= 50) == (0, True, True), own._replace(code=[])


def test_the_committed_table_has_every_kernel_and_keeps_to_the_limits() -> None:
    _, rows = read_table(counting.RESULTS / "gpu-instructions.csv")
    names = {f"sm_{major}{minor}" for major, minor in counting.ARCHITECTURES}
    pairs = {(row["kernel"], row["architecture"]) for row in rows}
    assert pairs == {(kernel.name, name) for kernel in counting.COUNTED for name in names}
    for row in rows:
        assert_within_limits(row)


def instruction(text: str, target: int = -1, function: str = "f") -> counting.Instruction:
    return counting.Instruction(text, (function,), target)


def test_turns_of_loops_are_counted_by_what_marks_a_step() -> None:
    """Two steps of the outer loop, each with four of an inner one, two of which are unrolled into a turn."""
    code = [
        instruction("MOV"),
        instruction("LDS.U8"),
        instruction("SHFL"),
        instruction("SHFL"),
        instruction("@P0 BRA", 2),
        instruction("@P1 BRA", 1),
        instruction("EXIT"),
        instruction("BRA", 5),
    ]
    facts = counting.Facts(1, 1, 1, (1,))
    steps = (counting.Step("f", "LDS", 1, lambda _: 2), counting.Step("f", "SHFL", 1, lambda _: 8))
    assert list(counting.loops(code)) == [range(2, 5), range(1, 6)]
    assert counting.issued(code, steps, facts) == 3 * counting.WARPS + 2 * 2 + 3 * 4
    with pytest.raises(ValueError, match="no loop of g"):
        counting.issued(code, (counting.Step("g", "SHFL", 1, lambda _: 8),), facts)


def test_what_is_no_part_of_a_kernel_has_the_name_of_its_function() -> None:
    """Whatever the disassembler says of its place in the source."""
    body = """
        //## File "/x/unknown.cu", line 1
        /*0000*/ MOV R1, R2 ;
$decode_planes_float16$_ZNK13PlanesDecoder12write_at_endItEEv5BlockIT_E:
        /*0010*/ RET ;
$decode_float32$_Z8put_someIjEvPT_jj5uint4:
        /*0020*/ RET ;
"""
    found = [one.functions[1:] for one in counting._instructions(body)]
    assert found == [(), ("PlanesDecoder", "write_at_end"), ("put_some",)]


@pytest.mark.parametrize(("registers", "shared", "percent"), [(32, 1 << 10, 100), (56, 37248, 50), (65, 0, 37)])
def test_occupancy_is_of_whole_blocks(registers: int, shared: int, percent: int) -> None:
    assert counting.occupancy((9, 0), registers, shared) == percent
