"""How many instructions the kernels in CUDA C++ take for a value, by their machine code; no device is needed.

    python -m bench.gpu_instructions [--out DIR]

writes ``bench/results/gpu-instructions.csv``. The kernels are compiled for each architecture, by NVRTC or by ``nvcc``,
and disassembled by ``nvdisasm``, which comes with a CUDA toolkit, with Triton, and as the package
``nvidia-cuda-nvdisasm``.

An instruction is counted each time that a warp issues it, over a block of 16,384 values, and the sum is divided by
512. How often that is comes from the source, for a lossless frame of normally distributed values: ``STEPS`` says for
each loop that such a block enters how many steps the warps take together. Where the compiler has put several steps
into one turn of a loop, the turns are fewer: a step is known by instructions that it has a certain number of.
Everything inside of such a loop counts at each turn, also what a branch mostly skips, and everything outside of all
loops counts once for each of the eight warps, also what other kinds of blocks need. So the count is an upper bound,
but for two things. Loops that are not in ``STEPS`` count as if entered once: those for raw and constant blocks, for
runs, for escaped symbols, for clearing shared memory, and for what is left over from unrolled loops. And calls of
functions that a branch leads around do not count: what is not put where it is called is for escaped symbols, and for
values at the ends of arrays.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np

import gcodec
from gcodec import FINE_LADDER
from gcodec.benchmark.csv_tables import write_named
from gcodec.errors import Unsupported
from gcodec.frame.decode import FrameReader
from gcodec.kernels.block.header import CODED, SYMBOL_BYTES
from gcodec.kernels.cuda import nvrtc
from gcodec.kernels.cuda.native import ALL_KERNELS, THREADS, NativeKernel

RESULTS = Path(__file__).resolve().parent / "results"
ARCHITECTURES = ((8, 0), (9, 0), (10, 0))
BLOCK, WARPS = 1 << 14, THREADS // 32
#: Of a multiprocessor: bytes of shared memory by compute capability; and for all of these registers, warps, and bytes
#: of shared memory that each block takes for the system (CUDA C++ programming guide, "Compute Capabilities").
SHARED_BYTES = {(8, 0): 164 << 10, (9, 0): 228 << 10, (10, 0): 228 << 10}
REGISTERS, MAX_WARPS, SYSTEM_BYTES = 1 << 16, 64, 1 << 10
#: What kernels shall keep to.
MOST_INSTRUCTIONS = {
    "decode": 60.0,
    "encode": 95.0,
    "decode_planes": 145.0,
    "encode_planes": 250.0,
    "decode_general": 200.0,
    "encode_general": 270.0,
}
LEAST_OCCUPANCY = 37


#: Functions for sub-streams with zeros, of which the frames here have none, for escaped symbols, and for blocks that
#: end with their planes.
NOT_CALLED = {"measure_others", "write_others", "put_escapes", "write_at_end"}
#: What one warp of a block does alone: it looks back at others, of which the nearest 32 are enough here.
OF_ONE_WARP = {"bytes_before"}
#: So many instructions at most call a function.
MOST_CALLING = 40


class Facts(NamedTuple):
    """What a block of 16,384 values takes, on average over a frame.

    Attributes:
        words: Words of four bytes.
        code_words: Words of its sub-streams.
        n_planes: Planes that its values have items of.
        item_words: Of each plane, words of the items of a sub-stream.
    """

    words: float
    code_words: float
    n_planes: int
    item_words: tuple[float, ...]


class Step(NamedTuple):
    """A loop of the source, and how often its steps are taken.

    Attributes:
        function: Function of the source that the loop stands in.
        marker: Pattern of instructions by which a step is known in machine code.
        per_step: How many of them a step has.
        turns: Returns the steps that all warps together take for a block.
        number: Which of several loops it is that have as many of these instructions, in the order of the code.
        innermost: Whether it is a loop inside of which none has such instructions, even if the one around it has more.
    """

    function: str
    marker: str
    per_step: int
    turns: Callable[[Facts], float]
    number: int = 0
    innermost: bool = False


_TO_SYMBOLS = (
    # A thread loads two words at a time.
    Step("check_checksum", r"LDG\.E\.64", 1, lambda facts: facts.words / 64),
    Step("bring", r"STS\.128", 1, lambda facts: 4096 * 2 / (16 * 32)),
    Step("bring", r"STS ", 1, lambda facts: facts.code_words / 32),
    # Each of two warps does four symbols of 32 sub-streams of 256 values at a time.
    Step("decode_stream", r"LDS", 8, lambda facts: 2 * 64),
)
STEPS = {
    "decode": (
        *_TO_SYMBOLS,
        # A warp does a sub-stream, 128 values at a time.
        Step("write_values", r"LDS\.U8", 2, lambda facts: 64),
        Step("write_dense", r"LDS", 1, lambda facts: 128),
    ),
    "decode_planes": (
        *_TO_SYMBOLS,
        # A warp does a sub-stream, 128 values at a time; then plane by plane.
        Step("count_items", r"REDUX", 4, lambda facts: 64),
        Step("count_items", r"LDS", 5, lambda facts: 128),
        Step("write_values", r"LDS\.U8", 1, lambda facts: 64),
        Step("write_values", r"SHFL", 13, lambda facts: 128),
        Step("write_values", r"LDG", 2, lambda facts: 128 * facts.n_planes),
    ),
    "decode_general": (
        *_TO_SYMBOLS,
        # The same, but every value's head and items by themselves.
        Step("count_items", r"REDUX", 4, lambda facts: 64),
        Step("count_items", r"LDS", 5, lambda facts: 128),
        Step("write_values", r"LDG", 14, lambda facts: 64),
        Step("write_values", r"SHFL", 13, lambda facts: 128),
        Step("write_values", r"LDG", 8, lambda facts: 128 * facts.n_planes, innermost=True),
    ),
    "encode": (
        # A warp does a sub-stream; a lane takes a word of codes.
        Step("measure", r"REDUX", 4, lambda facts: 64),
        Step("write", r"SHFL", 11, lambda facts: 64),
        Step("bring_out", r"STS", 1, lambda facts: 64 * ceil((facts.code_words / 64 + 1) / 32)),
    ),
    "encode_planes": (
        # A warp does a sub-stream, then plane by plane; what it brings out is codes first.
        Step("measure", r"REDUX", 6, lambda facts: 64),
        Step("write", r"SHFL", 18, lambda facts: 64),
        Step("write", r"ATOMS", 4, lambda facts: 64 * facts.n_planes, innermost=True),
        Step("bring_out", r"STS", 1, lambda facts: 64 * ceil((facts.code_words / 64 + 1) / 32)),
        Step("bring_out", r"STS", 1, lambda facts: 64 * sum(ceil((words + 1) / 32) for words in facts.item_words), 1),
    ),
}
STEPS["encode_general"] = tuple(
    step._replace(per_step=8) if step.innermost else step for step in STEPS["encode_planes"]
)


#: The kernels whose instructions are counted: all but those that put frames together, which move bytes.
COUNTED = tuple(kernel for kernel in ALL_KERNELS if kernel.name.rpartition("_")[0] in STEPS)


class Instruction(NamedTuple):
    """An instruction of a kernel.

    Attributes:
        text: As the disassembler writes it, with its predicate.
        functions: Functions of the source that it comes from, one inlined into the next.
        target: Number of the instruction that it branches to, or -1.
    """

    text: str
    functions: tuple[str, ...]
    target: int


@cache
def tool(name: str) -> str:
    """Return the path of one of NVIDIA's tools. Raises Unsupported if it is not here."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    for package, pattern in (("nvidia", f"*/bin/{name}"), ("triton", f"backends/nvidia/bin/{name}")):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec and not found else ():
            found = next(map(str, Path(folder).glob(pattern)), None)
    if not found:
        raise Unsupported(f"{name} is not here, of a CUDA toolkit or of the package nvidia-cuda-{name}")
    return found


def compiled(file: str, capability: tuple[int, int], folder: Path) -> tuple[Path, str]:
    """Return a file with the machine code of one of ``kernels/cuda/source``, and the compiler.

    Raises:
        Unsupported: There is no compiler.
    """
    path = folder / f"{Path(file).stem}-{capability[0]}{capability[1]}.cubin"
    try:
        library, version = nvrtc.newest_library(13)
        path.write_bytes(nvrtc.compile_cubin(library, file, capability, nvrtc.sources(), "-lineinfo"))
        return path, f"NVRTC {version[0]}.{version[1]}"
    except Unsupported:
        compiler = tool("nvcc")
    target = f"-arch=sm_{capability[0]}{capability[1]}"
    command = [compiler, "-std=c++17", target, "-lineinfo", "-cubin", "-o", str(path), str(nvrtc.SOURCE / file)]
    subprocess.run(command, check=True, capture_output=True)
    text = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
    version_of = re.search(r"release ([\d.]+)", text)
    return path, f"nvcc {version_of[1] if version_of else ''}".strip()


@cache
def function_at(file: str) -> tuple[str, ...]:
    """Return for each line of a source file the function that it stands in, or an empty name."""
    names, name = [], ""
    for line in nvrtc.sources().get(file, "").splitlines():
        begins = re.match(r"\s*(?:__device__|extern|template.*__device__)[^;=]*?(\w+)\((?!THREADS)", line)
        name = begins[1] if begins else name
        names.append(name)
    return tuple(names)


def disassembled(path: Path) -> dict[str, list[Instruction]]:
    """Return the instructions of each kernel of a cubin. Raises Unsupported if the disassembler is too old for it."""
    command = [tool("nvdisasm"), "-c", "-gi", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Unsupported(f"nvdisasm cannot read what was compiled: {done.stderr.strip()}")
    text = done.stdout
    kernels = re.split(r"^\s*\.section\s+\.text\.(\w+).*$", text, flags=re.MULTILINE)
    return {name: list(_instructions(body)) for name, body in zip(kernels[1::2], kernels[2::2], strict=True)}


def _instructions(body: str) -> Iterator[Instruction]:
    """Yield the instructions of a kernel."""
    labels: dict[str, int] = {}
    rows: list[tuple[str, tuple[str, ...]]] = []
    functions: list[str] = []
    complete = True
    own: tuple[str, ...] = ()
    for line in body.splitlines():
        if function := re.match(r"\$\w+\$_ZN?K?(\w+):", line):  # its place in the source may be told wrongly
            own = tuple(_names_in(function[1]))
        elif label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = len(rows)
        elif place := re.search(r'//## File "([^"]+)", line (\d+)', line):
            functions = [] if complete else functions
            complete = False
            names = function_at(Path(place[1]).name)
            number = int(place[2])
            functions.append(names[number - 1] if number <= len(names) else "")
        elif code := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            rows.append((code[1], (*functions, *own)))
            complete = True
    for text, found in rows:
        branch = re.search(r"\bBRA\b.*\((\.L_x_\d+)\)", text)
        yield Instruction(text, found, labels.get(branch[1], -1) if branch else -1)


def _names_in(mangled: str) -> Iterator[str]:
    """Yield the names that a mangled one begins with, each behind its length: of a class, and of its function."""
    while size := re.match(r"\d+", mangled):
        end = size.end() + int(size[0])
        yield mangled[size.end() : end]
        mangled = mangled[end:]


def loops(code: Sequence[Instruction]) -> Iterator[range]:
    """Yield the instructions of each loop: those from where a branch goes back to, to the branch.

    Behind the kernel's end lies what was moved out of a loop's way, such as rare cases, which jump back as well.
    """
    for end, instruction in enumerate(code):
        body = range(instruction.target, end + 1) if 0 <= instruction.target <= end else range(0)
        if body and not any(code[i].text == "EXIT" for i in body) and (len(body) > 1 or code[end].text.startswith("@")):
            yield body


def issued(code: Sequence[Instruction], steps: Sequence[Step], facts: Facts) -> float:
    """Return how many instructions warps issue for a block, at most.

    Raises:
        ValueError: A loop is not found in the code.
    """
    bodies, weights = list(loops(code)), np.full(len(code), float(WARPS))
    turns: list[tuple[range, float]] = []
    for step in steps:
        own = [body for body in bodies if step.function in code[body[-1]].functions and is_called(code[body[-1]])]
        if step.innermost:
            own = [body for body in own if any(re.search(step.marker, code[i].text) for i in body)]
            own = [body for body in own if not any(other != body and other[0] in body for other in own)]
        counts = [sum(bool(re.search(step.marker, code[i].text)) for i in body) for body in own]
        if not any(counts):
            raise ValueError(f"no loop of {step.function} has {step.marker}")
        most = max(counts)
        alike = [body for body, count in zip(own, counts, strict=True) if count == most]
        inner = [body for body in alike if not any(other != body and other[0] in body for other in alike)]
        body = inner[step.number]
        turns.append((body, step.turns(facts) / max(1, round(most / step.per_step))))
    for body, count in sorted(turns, key=lambda turn: -len(turn[0])):  # inner loops after those around them
        weights[body.start : body.stop] = count
    weights[[not OF_ONE_WARP.isdisjoint(instruction.functions) for instruction in code]] = 1
    for body in rare(code):
        weights[body.start : body.stop] = 0
    weights[[not is_called(instruction) for instruction in code]] = 0
    return float(weights.sum())


def is_called(instruction: Instruction) -> bool:
    """Return whether a frame as those here reaches an instruction, as far as functions tell."""
    return NOT_CALLED.isdisjoint(instruction.functions)


def rare(code: Sequence[Instruction]) -> Iterator[range]:
    """Yield the instructions of calls that a branch leads around: what is a function is a rare case."""
    for start, instruction in enumerate(code):
        body = range(start + 1, min(instruction.target, start + MOST_CALLING))
        if body and any(code[i].text.startswith("CALL") for i in body) and instruction.target <= body.stop:
            yield body


def resources(cubin: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """Return the registers of a thread of each kernel of a cubin, and its bytes of shared memory.

    A cubin is an ELF file of 64 bits. Its section ``.nv.info`` is made of records: format 4, an attribute, two bytes of
    size, data. Attribute 0x2F is the registers of a function, after the number of its symbol.
    """
    (table,), (size, count, names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + size * k) for k in range(count)]

    def text(section: int, at: int) -> str:
        begin = headers[section][4] + at
        return cubin[begin : cubin.index(b"\0", begin)].decode()

    found = {text(names, header[0]): header for header in headers}
    symbols, info = found[".symtab"], found[".nv.info"]
    registers, at = {}, info[4]
    while at < info[4] + info[5]:
        kind, attribute, length = struct.unpack_from("<BBH", cubin, at)
        if (kind, attribute) == (4, 0x2F):
            symbol, number = struct.unpack_from("<II", cubin, at + 4)
            (name,) = struct.unpack_from("<I", cubin, symbols[4] + 24 * symbol)
            registers[text(symbols[6], name)] = number
        at += 4 + (length if kind == 4 else 0)
    prefix = ".nv.shared."
    shared = {name.removeprefix(prefix): header[5] for name, header in found.items() if name.startswith(prefix)}
    return registers, shared


def occupancy(capability: tuple[int, int], registers: int, shared: int) -> int:
    """Return the share of a multiprocessor's warps that fit it together, in percent, by registers and shared memory."""
    by_registers = REGISTERS // (-(-registers // 8) * 8 * THREADS)
    by_shared = SHARED_BYTES[capability] // (shared + SYSTEM_BYTES)
    return 100 * WARPS * min(by_registers, by_shared, MAX_WARPS // WARPS) // MAX_WARPS


@cache
def facts_of(dtype: str, planes: bool) -> Facts:
    """Return what 16,384 normally distributed values take, in a lossless frame, or in one of the fine ladder, all of
    whose levels are as frequent."""
    import torch

    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.standard_normal(8 * BLOCK).astype(np.float32)).to(getattr(torch, dtype))
    steps = FINE_LADDER[dtype]
    levels = torch.from_numpy(rng.integers(0, len(steps.drops), len(values)).astype(np.uint8))
    frame = bytes(gcodec.encode(values, levels=levels, ladder=steps) if planes else gcodec.encode(values))
    reader = FrameReader(frame)
    assert all(frame[at] == CODED for at in reader.offsets)
    code_bytes = [int.from_bytes(frame[at + SYMBOL_BYTES :][:4], "little") for at in reader.offsets]
    prelude, graded = reader.prelude, levels.numpy() if planes else np.zeros(len(values), np.uint8)
    masks = np.array([level.mask for level in prelude.levels])[graded]
    item_words = tuple(float(np.mean(masks >> p & 1)) * 256 * width / 32 for p, width in enumerate(prelude.widths))
    return Facts(float(sum(reader.sizes)) / 32, sum(code_bytes) / 32, len(prelude.widths), item_words)


class MachineCode(NamedTuple):
    """A kernel, compiled.

    Attributes:
        kernel: The kernel.
        code: Its instructions.
        registers: Of a thread.
        shared: Bytes of shared memory.
        local: How many instructions reach local memory: spilt registers, or arrays.
        compiler: What compiled it.
    """

    kernel: NativeKernel
    code: list[Instruction]
    registers: int
    shared: int
    local: int
    compiler: str


def machine_code(kernels: Sequence[NativeKernel], capability: tuple[int, int]) -> Iterator[MachineCode]:
    """Yield kernels, compiled. Raises Unsupported if one of NVIDIA's tools is not here."""
    with tempfile.TemporaryDirectory() as folder:
        for file in dict.fromkeys(kernel.file for kernel in kernels):
            path, compiler = compiled(file, capability, Path(folder))
            code, (registers, shared) = disassembled(path), resources(path.read_bytes())
            for kernel in kernels:
                if kernel.file == file:
                    name, own = kernel.name, code[kernel.name]
                    local = sum(bool(re.search(r"\b(LDL|STL)\b", instruction.text)) for instruction in own)
                    yield MachineCode(kernel, own, registers[name], shared.get(name, 0), local, compiler)


def measure(kernels: Sequence[NativeKernel], capability: tuple[int, int]) -> Iterator[dict[str, object]]:
    """Yield a row of the table for each kernel. Raises Unsupported if one of NVIDIA's tools is not here."""
    for found in machine_code(kernels, capability):
        kind, _, dtype = found.kernel.name.rpartition("_")
        facts = facts_of("float32" if dtype == "float32" else "bfloat16", "_" in kind)
        per_32 = issued(found.code, STEPS[kind], facts) / (BLOCK / 32)
        barriers = sum("BAR.SYNC" in instruction.text for instruction in found.code)
        yield {
            "kernel": found.kernel.name,
            "architecture": f"sm_{capability[0]}{capability[1]}",
            "per_32_values": f"{per_32:.1f}",
            "instructions": len(found.code),
            "registers": found.registers,
            "shared_bytes": found.shared,
            "local_accesses": found.local,
            "occupancy_percent": occupancy(capability, found.registers, found.shared),
            "barriers": barriers,
            "compiler": found.compiler,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, and write the table; where one of NVIDIA's tools is missing, say so and return 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_instructions", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for gpu-instructions.csv")
    options = parser.parse_args(arguments)
    try:
        rows = [row for capability in ARCHITECTURES for row in measure(COUNTED, capability)]
    except Unsupported as error:
        print(error)
        return 1
    for row in rows:
        print(*row.values(), sep=", ")
    write_named(options.out / "gpu-instructions.csv", sorted(rows, key=lambda row: str(row["kernel"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
