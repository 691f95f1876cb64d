"""The laws of the CUDA path, for a process of their own: ``python -m tests.gpu.cuda_cases one-thread`` or
``simulator``.

Either has the kernels run on the host. Compiled, with one thread to a block (:mod:`tests.gpu.cuda_one_thread`), they
take whole law tables, indexes are checked, and integers are those of compiled code. In numba's simulator they have as
many threads as ``THREADS`` says, which really do wait for each other.

Prints a line for each law: its name, and what went wrong, in JSON.
"""

from __future__ import annotations

import json
import mmap
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from io import StringIO
from itertools import product
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import xxhash

import gcodec
from gcodec import FINE_LADDER, PAPER_LADDER, EncoderOptions, Ladder
from gcodec.dtypes import BY_CODE, BY_NAME, DType
from gcodec.format import modes as bit_layouts
from gcodec.format import shipped
from gcodec.format.change_codebook import ChangeCodebook
from gcodec.format.codebook import Codebook
from gcodec.format.modes import BitLayout
from gcodec.frame.encode import encode_values
from gcodec.kernels.block.sparse_types import SparseSizes
from gcodec.plan import sparse_frames
from gcodec.plan.request import EncodeRequest
from gcodec.plan.sampling import SampleSource, take_sample
from gcodec.tensors import Values, kernel_view
from gcodec.truncation.evaluate import Policy
from gcodec.truncation.optimizers import levels_for, view_from_dump
from tests.gpu.cuda_memory import HostMemory
from tests.support import laws
from tests.support.cases import CASES, Bits, Case, levels_at_random
from tests.support.frame_builder import Draft, build_frame, mutations

THREADS = 16
TYPES = ("float32", "bfloat16", "float16")
Law = Callable[[HostMemory, bool], None]
LAWS: dict[str, Law] = {}
CODING = EncoderOptions(exact_if_smaller=False)  # as devices encode


def law(function: Law) -> Law:
    """Register a law that either process runs; its second argument says whether it is quick, and there is time for all
    cases."""
    LAWS[function.__name__] = function
    return function


def cases(quick: bool, slow: tuple[str, ...], most: int) -> Iterator[Case]:
    """Yield all arrays of the types that devices code, or where that takes long the named ones, cut short."""
    types = TYPES if quick else TYPES[:2]
    for case in CASES:
        if case.dtype in types and (quick or case.name in slow):
            if not quick:
                case = Case(case.dtype, case.name)
                case.__dict__["bits"] = case.bits.reshape(-1)[:most].copy()
            yield case


def check_same_bytes(
    memory: HostMemory,
    arrays: list[Bits],
    dtype: DType,
    bit_layout: BitLayout,
    levels: list[Any] | None = None,
    nearest: bool = True,
    codebook: Any = None,
) -> list[bytes]:
    """Check that frames of a batch are those that the host's kernels make by the same plan, byte for byte."""
    from gcodec.gpu import encoder

    graded = levels or [None] * len(arrays)
    sources = [encoder.GpuSource(a.reshape(-1), a.size, a.shape, own) for a, own in zip(arrays, graded, strict=True)]
    if codebook is None:
        codebook = encoder.fit_codebook(memory, sources, dtype, bit_layout, CODING)
    waited = memory.waited
    batch = encoder.encode(memory, sources, dtype, bit_layout, nearest, codebook, 0)
    assert memory.waited == waited, "encoding with a codebook waited for the device"
    frames = [bytes(frame) for frame in batch.frames]
    for array, own, frame in zip(arrays, graded, frames, strict=True):
        bits = kernel_view(array.reshape(-1))
        plan = encoder.plan_of(dtype, -(-array.size >> 14), codebook)
        empty = np.zeros(0, np.uint8)
        values = Values(bits, dtype, array.shape, 0)
        request = EncodeRequest(values, bit_layout, empty if own is None else own, CODING, nearest, 1)
        expected = encode_values(request, plan)
        assert frame == expected, f"{dtype.name}: {len(frame)} bytes, {len(expected)} expected, {bit_layout}"
    return frames


def outcome(memory: HostMemory, frame: bytes, known: Any = None, books: Any = None) -> Any:
    """Return what the device makes of a frame: its values' bits, or the kind of refusal."""
    from gcodec.gpu import batches

    try:
        (result,) = batches.decode(memory, [frame], books or [])
    except gcodec.GcodecError as error:
        return laws.kind_of(error)
    return result.reshape(-1)


def books_of(known: Any) -> list[Codebook | ChangeCodebook]:
    """Return codebooks from the records that a frame names."""
    books = [laws.book_of(record, digest) for (_, digest), record in known.items()]
    return [book for book in books if book is not None]


#: Arrays for the simulator, which shows that threads wait for each other. Others differ in their values only, which the
#: kernels of one thread code.
SLOW_CASES = ("every corner of the type", "one value", "runs of equal sub-streams")


@law
def lossless(memory: HostMemory, quick: bool) -> None:
    """Check that bytes are the host's, and that both decode them."""
    for case in cases(quick, SLOW_CASES, 320):
        dtype, bits = BY_NAME[case.dtype], case.bits.copy()
        (frame,) = check_same_bytes(memory, [bits], dtype, bit_layouts.lossless(dtype))
        assert np.array_equal(outcome(memory, frame), bits.reshape(-1)), case
        assert np.array_equal(laws.outcome(frame), bits.reshape(-1)), case


@law
def fixed_bits(memory: HostMemory, quick: bool) -> None:
    """Check frames with mantissa bits rounded away, in both ways to round."""
    for case in cases(quick, SLOW_CASES[:1], 300):
        dtype, bits = BY_NAME[case.dtype], case.bits.copy()
        for kept, nearest in ((3, True), (5, False)):
            (frame,) = check_same_bytes(memory, [bits], dtype, bit_layouts.fixed(dtype, kept), nearest=nearest)
            rounding = "nearest" if nearest else "truncate"
            whole = gcodec.encode(case.array(), mantissa_bits=kept, rounding=rounding, options=CODING, **case.options)
            assert np.array_equal(outcome(memory, frame), laws.outcome(whole)), case


@law
def ladders(memory: HostMemory, quick: bool) -> None:
    """Check frames with a level for each value."""
    uneven = {"float32": Ladder((1, 4, 11)), "bfloat16": Ladder((2, 7)), "float16": Ladder((0, 5, 10))}
    for case in cases(quick, SLOW_CASES, 270):
        dtype, bits = BY_NAME[case.dtype], case.bits.copy()
        for ladder in (FINE_LADDER[case.dtype], PAPER_LADDER[case.dtype], uneven[case.dtype])[: 3 if quick else 1]:
            levels = levels_at_random(bits, len(ladder.drops))
            bit_layout = bit_layouts.ladder(dtype, ladder)
            (frame,) = check_same_bytes(memory, [bits], dtype, bit_layout, [levels.reshape(-1).copy()])
            whole = gcodec.encode(case.array(), levels=levels, ladder=ladder, options=CODING, **case.options)
            assert np.array_equal(outcome(memory, frame), laws.outcome(whole)), case


@law
def foreign_codebooks(memory: HostMemory, quick: bool) -> None:
    """Check codebooks that do not suit: symbols without a code, no escape, no zero, nothing that shrinks."""
    from gcodec.gpu.encoder import SharedCodebook

    rng = np.random.default_rng(5)
    lengths = np.zeros((4, 256), np.uint8)
    lengths[0, [0, 255]] = 1                            # zero and the escape
    lengths[1, [1, 2]] = 1                              # two symbols, no escape
    lengths[2, [3, 5, 255]] = 1, 2, 2                   # gaps, and no zero
    lengths[3, [0, 4, 9, 255]] = 1, 2, 3, 3
    for name in TYPES if quick else TYPES[:1]:
        dtype = BY_NAME[name]
        books = [Codebook(8, ((120, 12),), own.tobytes()) for own in lengths]
        books += [book for _, book in shipped.fitting(name, 1)]
        selected = [Case(name, case).bits.reshape(-1)[:900] for case in
                ("gaussian, three in ten zero", "every corner of the type", "runs of equal sub-streams", "noise")]
        few = (rng.integers(118, 126, 700) << dtype.head_shift).astype(dtype.uint)
        for book in books if quick else books[2:3]:
            for references in (True, False):
                for record in (book.record, book.reference(300)):
                    shared = SharedCodebook(book, record, references)
                    frames = check_same_bytes(memory, [few, *selected] if quick else [few[:300]], dtype,
                                              bit_layouts.lossless(dtype), codebook=shared)
                    for frame, bits in zip(frames, [few, *selected], strict=False):
                        assert np.array_equal(outcome(memory, frame, books=[book]), bits if quick else few[:300])


@law
def batches_of_many(memory: HostMemory, quick: bool) -> None:
    """Check tensors of all sizes in one launch; those that shrink by nothing go without the codebook."""
    for name in TYPES if quick else TYPES[1:2]:
        dtype = BY_NAME[name]
        cases_of = ("empty", "one value", "gaussian", "0-d", "noise", "all zero", "two values", "a block and one",
                    "257 values", "recorded transformer-step-000400/norm.weight", "a block and more of noise")
        arrays = [Case(name, case).bits.copy() for case in cases_of]
        if not quick:
            arrays = [array.reshape(-1)[:200].copy() for array in arrays[:6]]
        frames = check_same_bytes(memory, arrays, dtype, bit_layouts.lossless(dtype))
        from gcodec.gpu import batches

        for array, result in zip(arrays, batches.decode(memory, frames), strict=True):
            laws.assert_same_bits(result, array)


@law
def histograms(memory: HostMemory, quick: bool) -> None:
    """Check that the device counts what the host's sample counts of the same sub-streams."""
    from gcodec.gpu import encoder
    from gcodec.gpu import kernel_tables as forms
    from gcodec.kernels.cuda.histogram import count_symbols
    from gcodec.kernels.cuda.launch_tables import Tensors
    from gcodec.plan.codebooks import window_of

    for case in cases(quick, SLOW_CASES[:1], 300):
        dtype, bits = BY_NAME[case.dtype], case.bits.reshape(-1).copy()
        ladder = FINE_LADDER[case.dtype]
        for bit_layout, n in ((bit_layouts.lossless(dtype), 1), (bit_layouts.ladder(dtype, ladder), len(ladder.drops))):
            levels = levels_at_random(bits, n) if n > 1 else None
            source = encoder.GpuSource(bits, bits.size, bits.shape, levels)
            span = encoder.span_of(memory, [source], dtype)
            table = encoder.table_of([source.n], span.places, dtype, None)
            tensors = Tensors(span.values, span.levels, table.rows, table.owner)
            window, center = window_of(n)
            counts = np.zeros((1, 2 + n * window), np.uint32)
            form = forms.value_coding_of(dtype, n, len(bit_layout.widths), None, False)
            memory.launch(count_symbols, table.n_blocks, tensors, form, forms.drops_of(bit_layout),
                          np.uint32(window), np.uint32(center), counts)
            if bits.size:
                graded = np.zeros(0, np.uint8) if levels is None else levels
                sample = take_sample(SampleSource(kernel_view(bits), graded, n, 1 << 14), dtype, 256, every=1)
                assert np.array_equal(counts[0], sample.by_stream.sum(axis=0)), case


@law
def levels_that_do_not_exist(memory: HostMemory, quick: bool) -> None:
    """Check that levels beyond the ladder are noticed, and that the frame is none."""
    from gcodec.gpu import encoder

    dtype, ladder = BY_NAME["float32"], PAPER_LADDER["float32"]
    bits, levels = Case("float32", "gaussian").bits.reshape(-1)[:300].copy(), np.zeros(300, np.uint8)
    levels[77] = 4
    bit_layout = bit_layouts.ladder(dtype, ladder)
    source = encoder.GpuSource(bits, 300, (300,), levels)
    shared = encoder.fit_codebook(memory, [source], dtype, bit_layout, CODING)
    batch = encoder.encode(memory, [source], dtype, bit_layout, True, shared, 0)
    laws.check_refused(gcodec.InvalidArgument, lambda: batch.sizes)
    assert laws.outcome(bytes(batch.target.view(np.uint8))) == "corruption"


#: Rules by name: optimizer, hyperparameters, which state there is.
RULES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.1, "weight_decay": 1e-3}, {}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, {"momentum_buffer": "any"}),
    "momentum, first step": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, {}),
    "Nesterov": ("SGD", {"lr": 0.3, "momentum": 0.9, "nesterov": True}, {"momentum_buffer": "any"}),
    "no step": ("SGD", {"lr": 0.0, "momentum": 0.9}, {"momentum_buffer": "any"}),
    "Adagrad": ("Adagrad", {"lr": 0.01, "lr_decay": 0.1, "weight_decay": 1e-2}, {"step": 7.0, "sum": "square"}),
    "Adagrad, first step": ("Adagrad", {"lr": 0.01, "initial_accumulator_value": 0.1}, {}),
    "RMSprop": ("RMSprop", {"lr": 0.01, "weight_decay": 1e-3, "maximize": True}, {"square_avg": "square"}),
    "RMSprop, momentum": ("RMSprop", {"lr": 0.01, "momentum": 0.8}, {"square_avg": "square", "momentum_buffer": "any"}),
    "Adam": ("Adam", {"lr": 1e-3, "weight_decay": 1e-2}, {"step": 3.0, "exp_avg": "any", "exp_avg_sq": "square"}),
    "AMSGrad": ("Adam", {"lr": 1e-2, "amsgrad": True},
                {"step": 3.0, "exp_avg": "any", "exp_avg_sq": "square", "max_exp_avg_sq": "square"}),
    "AdamW": ("AdamW", {"lr": 1e-3}, {"step": 40.0, "exp_avg": "any", "exp_avg_sq": "square"}),
    "AdamW, first step": ("AdamW", {"lr": 1e-3}, {}),
}


def as_type(x: np.ndarray, name: str) -> np.ndarray:
    """Return float32 values in another type, bfloat16 as bits."""
    with np.errstate(over="ignore"):
        return (x.view(np.uint32) >> 16).astype(np.uint16) if name == "bfloat16" else x.astype(name)


def floats_of_all_kinds(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return float32 values of many sizes, zeros, denormals, infinities and NaN."""
    x = rng.choice([-1.0, 1.0], n) * np.exp2(rng.uniform(-30, 4, n)) * (rng.random(n) > 0.1)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 2.0**-126, 6e-5, 3e-8, 1.0, -1.0], np.float32)
    x[: n // 6] = rng.choice(odd, n // 6)
    return rng.permutation(x).astype(np.float32)


@law
def levels_by_the_rules(memory: HostMemory, quick: bool) -> None:
    """Of every optimizer, before and after its first step, in every type: those of the host, bit for bit; tensors of
    any sizes in one call."""
    from gcodec.gpu import level_choice as levels

    rng = np.random.default_rng(8)
    sizes = (16500, 1, 0, 300) if quick else (70, 1, 0)
    plain, mixed = [("float32",) * 3], [("bfloat16", "bfloat16", "float32"), ("float16", "float32", "float16")]
    every = ("momentum", "RMSprop, momentum", "AMSGrad")        # one for each kernel: types are compiled one by one
    ladders: dict[str, tuple[Ladder | None, ...]] = {
        name: (None, PAPER_LADDER[name], Ladder((0, 2, 7)), Ladder((3,))) for name in TYPES}
    ladders["float32"] += (Ladder(tuple(range(16))),)
    for number, (title, (name, hyper, state)) in enumerate(RULES.items()):
        for grad_type, param_type, state_type in plain + (mixed if quick and title in every else []):
            asked = []
            for n in sizes:
                kept = {key: value if key == "step" else as_type(abs(floats_of_all_kinds(rng, n)) if value == "square"
                                                                 else floats_of_all_kinds(rng, n), state_type)
                        for key, value in state.items()}
                grad, param = floats_of_all_kinds(rng, n) / 64, floats_of_all_kinds(rng, n)
                asked.append(levels.LevelRequest(as_type(grad, grad_type), as_type(param, param_type),
                                                 view_from_dump(name, hyper, kept)))
            for ladder in ladders[grad_type][number % 2 :: 2] if quick else (None,):
                policy = Policy(ladder, number % 3 > 0, 1.5, 4.0)
                waited = memory.waited
                result = levels.choose(memory, asked, policy)
                assert memory.waited == waited
                for one, own in zip(asked, result, strict=True):
                    expected = levels_for(one.known, one.param, one.grad, ladder=ladder, in_group=policy.in_group,
                                          scale=1.5, loss_scale=4.0)
                    assert np.array_equal(own, expected), (title, grad_type, param_type, ladder)
    far = view_from_dump("SGD", {"lr": 1e-40}, {})
    x = np.ones(3, np.float32)
    laws.check_refused(gcodec.Unsupported, lambda: levels.choose(memory, [levels.LevelRequest(x, x, far)], Policy()))
    known = view_from_dump("SGD", {"lr": 0.1}, {})
    for wrong in (x[:2], x.astype(np.float64)):
        kind = gcodec.InvalidArgument if wrong.size == 2 else gcodec.Unsupported
        laws.check_refused(kind, lambda: levels.choose(memory, [levels.LevelRequest(x, wrong, known)], Policy()))  # noqa: B023


@law
def frames_of_the_host(memory: HostMemory, quick: bool) -> None:
    """Check frames that ``gcodec.encode`` makes of arrays on the host: wide heads, column references, predictions."""
    for case in cases(quick, SLOW_CASES[2:3], 300):
        levels = levels_at_random(case.bits, len(FINE_LADDER[case.dtype].drops))
        for options in ({}, {"options": EncoderOptions(prediction=False)}, {"levels": levels}, {"mantissa_bits": 4}):
            frame = gcodec.encode(case.array(), **case.options, **options)
            assert np.array_equal(outcome(memory, frame), laws.outcome(frame)), case


@law
def golden_frames(memory: HostMemory, quick: bool) -> None:
    """Those of ``tests/golden`` decode to what they did when they were made, and of ``tests/golden-invalid`` all are
    refused alike; but for those against a base, which a device does not take."""
    if not quick:
        return
    from tests.support.make_golden import as_known, read_manifest
    from tests.support.paths import GOLDEN, GOLDEN_INVALID

    for folder in (GOLDEN, GOLDEN_INVALID):
        for name, described in read_manifest(folder).items():
            known = as_known(described.get("codebooks", []))
            books = books_of(known)     # by their hash; one frame names a record with spare bits that are not zero
            if "base" not in described and {book.hash for book in books} == {digest for _, digest in known}:
                result = outcome(memory, (folder / f"{name}.frame").read_bytes(), books=books)
                if folder == GOLDEN:
                    assert not isinstance(result, str), (name, result)
                    assert sha256(result.tobytes()).hexdigest() == described["sha256"], name
                else:
                    assert result == described["expected"], (name, result)


@law
def any_frames(memory: HostMemory, quick: bool) -> None:
    """Valid frames of every type that no encoder writes, and frames with one thing wrong, which are refused alike. No
    index is out of bounds."""
    rng = Random(2)
    for k in range(60 if quick else 2):
        built = build_frame(rng, dtype=[1, 2, 3, 7, 8][k % 5], block_log2=10 if k % 3 else None, named=k % 2 == 0,
                            spare_bits=k % 2 == 1, with_base=False, n_values=None if quick else 150)
        result = outcome(memory, built.frame, books=books_of(built.codebooks))
        assert laws.same_outcome(result, built.bits), (k, result, built.bits)
    for k in range(5 if quick else 0):
        built = build_frame(rng, dtype=[1, 2, 3, 7, 8][k % 5], block_log2=10, with_base=False)
        for mutation in mutations(built.frame, rng, built.codebooks):
            books = books_of(built.codebooks)
            expected = laws.outcome(mutation.frame, built.codebooks)
            assert laws.same_outcome(outcome(memory, mutation.frame, books=books), expected), mutation


@law
def places_beyond_32_bits(memory: HostMemory, quick: bool) -> None:
    """Tensors, frames and results that lie more than 2**32 values apart, and blocks of a tensor that begin after as
    many. Memory that is only named costs nothing."""
    if not quick or sys.platform != "linux":
        return
    from gcodec.gpu import decoder, preludes

    dtype, far = BY_NAME["bfloat16"], (1 << 32) + (1 << 20)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    room = np.frombuffer(mmap.mmap(-1, 2 * far + (1 << 20), flags=flags), np.uint16)
    selected = Case("bfloat16", "gaussian").bits.reshape(-1)
    places = [room[0:700], room[far : far + 700]]
    for place in places:
        place[:] = selected[:700]
    frames = check_same_bytes(memory, places, dtype, bit_layouts.lossless(dtype))
    data = [room[begin : begin + len(frame) // 2].view(np.uint8)
            for begin, frame in zip((1 << 16, far + (1 << 16)), frames, strict=True)]
    for place, own, frame in zip(places, data, frames, strict=True):
        own[:] = np.frombuffer(frame, np.uint8)
        place[:] = 0
    (decoded,) = decoder.decode(memory, preludes.parse(memory, data), places)
    assert not decoded.failures()
    assert all(np.array_equal(place, selected[:700]) for place in places)
    check_far_blocks(memory, room, far)


def check_far_blocks(memory: HostMemory, room: np.ndarray, far: int) -> None:
    """Run the kernels on the last blocks of a tensor of more than 2**32 bfloat16 values, as if the launch had begun
    there: number 0 of the launch's blocks is ``far >> 14`` of the frame's."""
    from gcodec.gpu import encoder
    from gcodec.gpu import kernel_tables as forms
    from gcodec.kernels.block.header import OK
    from gcodec.kernels.cuda.decode import decode_blocks
    from gcodec.kernels.cuda.encode import encode_blocks
    from gcodec.kernels.cuda.launch_tables import EncodedFrames, Output, Tensors

    dtype, n, first, words = BY_NAME["bfloat16"], 20_000, -(far >> 14), 4 + (1 << 13)
    bit_layout, own = bit_layouts.lossless(dtype), room[far : far + n]
    own[:] = np.resize(Case("bfloat16", "gaussian").bits.reshape(-1), n)
    wanted, owner = own.copy(), np.zeros(2, np.int32)
    shared = encoder.fit_codebook(memory, [encoder.GpuSource(own, n, (n,))], dtype, bit_layout, CODING)
    assert shared is not None
    form = forms.value_coding_of(dtype, 1, len(bit_layout.widths), bit_layout, True)
    out = Output(np.zeros(2 * words, np.uint32), np.zeros(2, np.uint32), np.zeros(2, np.uint8), np.zeros(1, np.uint32))
    rows = np.array([[0, 0, far + n, first, 0, 8, 1, first * words]], np.int64)
    tables = forms.encode_tables(memory, dtype, bit_layout, [shared.codebook])
    memory.launch(encode_blocks, 2, Tensors(room, np.zeros(1, np.uint8), rows, owner), form, tables, out)
    assert (out.kinds == 2).all() and (out.sizes < 4 * words).all()
    own[:] = 0
    rows = np.array([[0, 0, far + n, first, 14, 8, 0, 1, 0, 0]], np.int64)
    lookups = forms.decode_tables(memory, dtype, bit_layout.widths, bit_layout.levels, [shared.codebook], [])
    statuses = np.full(2, -1, np.int32)
    frames = EncodedFrames(out.slots, rows, owner, np.array([0, 4 * words]), out.sizes.astype(np.int64))
    memory.launch(decode_blocks, 2, frames, form, lookups, room, statuses)
    assert (statuses == OK).all() and np.array_equal(own, wanted)


@law
def spoilt_blocks(memory: HostMemory, quick: bool) -> None:
    """Check coded blocks with any bytes altered and a checksum that fits: the host's outcome, nothing out of bounds."""
    rng = Random(3)
    for k in range(150 if quick else 4):
        built = build_frame(rng, dtype=[1, 2, 3, 7, 8][k % 5], block_log2=10, kinds=("coded",), with_base=False,
                            n_values=rng.randint(1, 1500) if quick else 120)
        draft = Draft.of(built.frame, built.codebooks)
        blocks = [bytearray(block) for block in draft.blocks]
        for _ in range(rng.choice([1, 1, 2, 5])):
            block = rng.choice(blocks)
            at = rng.choice([rng.randrange(1, min(len(block), 32)), rng.randrange(1, len(block))])
            block[at] = rng.choice([block[at] ^ 1 << rng.randrange(8), 0, 255, rng.randrange(256)])
        frame = replace(draft, blocks=tuple(map(bytes, blocks))).seal()
        expected = laws.outcome(frame, built.codebooks)
        result = outcome(memory, frame, books=books_of(built.codebooks))
        assert laws.same_outcome(result, expected), (k, result, expected)


#: Types that arrays of unsigned integers stand for, by the type of a frame.
STANDS_FOR = {name: {f"uint{BY_NAME[name].bits}": name} for name in BY_NAME}


def outcome_with_base(memory: HostMemory, frame: bytes, base: Bits, dtype: str, books: Any = ()) -> Any:
    """Return what the device makes of a frame and its base: bits of values, or the kind of refusal, which is the same
    over the base and apart from it; a frame that is refused leaves the base as it was."""
    from gcodec.gpu import batches

    here = HostMemory(memory.wrap, STANDS_FOR[dtype])
    results: list[Any] = []
    for in_place in (True, False):
        own = base.copy()
        try:
            result = batches.decode_one(here, frame, own, own if in_place else None, books)
            assert not in_place or result is own
            results.append(result.reshape(-1))
        except gcodec.InvalidArgument:
            results.append("unsupported")       # of a base of another size
        except gcodec.GcodecError as error:
            results.append(laws.kind_of(error))
        if not in_place or isinstance(results[0], str):
            assert np.array_equal(own, base), "the base was changed"
    assert laws.same_outcome(*results), [item if isinstance(item, str) else item[:4] for item in results]
    memory.waited, memory.launched = memory.waited + here.waited, memory.launched + here.launched
    return results[0]


def near(bits: Bits, share: float, seed: int) -> Bits:
    """Return an array of which about this share of values differs from ``bits``: mostly by one step, some by any."""
    rng = np.random.default_rng(seed)
    result = bits.copy()
    places = rng.permutation(bits.size)[: int(share * bits.size)]
    result[places] += np.where(rng.random(len(places)) < 0.5, 1, -1).astype(bits.dtype)
    far = places[::9]
    result[far] = rng.integers(0, 1 << 8 * bits.itemsize, len(far), dtype=np.uint64).astype(bits.dtype)
    return result


def pairs(quick: bool) -> Iterator[tuple[str, Bits, Bits]]:
    """Yield types, bases and arrays of which some differ from these in few values."""
    for number, case in enumerate(cases(quick, ("gaussian, three in ten zero", "every corner of the type"), 700)):
        if case.bits.size:
            base = kernel_view(case.bits.reshape(-1)).copy()
            share = (0.01, 0.1, 0.3)[number % 3]
            yield case.dtype, base, near(base, share, number)


@contextmanager
def small_blocks(block_log2: int = 11, stream_log2: int = 8) -> Iterator[None]:
    """Let the host's encoder make small sparse blocks, so that there are several."""
    sizes = SparseSizes(block_log2, stream_log2)
    with patch.object(sparse_frames, "sparse_sizes", lambda n, with_base: sizes):
        yield


@law
def patches(memory: HostMemory, quick: bool) -> None:
    """Check that the device makes of a frame and its base what the host does, in place and apart."""
    n_sparse = 0
    for dtype, base, wanted in pairs(quick):
        for size in (None, (10, 6), (11, 8))[:: 1 if quick else 2]:
            with small_blocks(*size) if size else ExitStack():
                frame = gcodec.encode(wanted, base=base, dtype=dtype, options=EncoderOptions(prediction=False))
            n_sparse += gcodec.inspect(frame).kinds["sparse"]
            assert np.array_equal(outcome_with_base(memory, frame, base, dtype), wanted), (dtype, size)
            other = base.copy()
            other[len(other) // 2] ^= 1
            if gcodec.inspect(frame).kinds["sparse"]:
                assert outcome_with_base(memory, frame, other, dtype) == "unsupported"
            assert outcome_with_base(memory, frame, base[1:], dtype) == "unsupported"
    assert n_sparse > (50 if quick else 3)


@law
def patches_made(memory: HostMemory, quick: bool) -> None:
    """Check that the device makes of a tensor and its base the bytes that the host does, by its own kernels where those
    are sparse blocks for certain."""
    from gcodec.gpu import batches, sparse_encoder

    made = 0
    for number, (name, share) in enumerate(product(("float32", "bfloat16", "float16", "float8_e4m3fn"),
                                                   (0.0, 0.002, 0.03, 0.3))):
        if not quick and (number % 4 != 2 or number > 6):
            continue
        here, dtype = HostMemory(memory.wrap, STANDS_FOR[name]), BY_NAME[name]
        for n, log2s, least in ((700_001, None, 1 << 14), (20_000, (11, 8), 256), (300, (10, 6), 256)):
            if not quick and n > 300:
                continue
            base = np.resize(Case(name, "gaussian").bits.reshape(-1), n).copy()
            wanted = near(base, share, number)
            wanted[n // 2 : n // 2 + (900 if share == 0.03 and n > 20_000 else 0)] ^= 1    # one block becomes raw
            with ExitStack() as stack:
                if log2s:
                    stack.enter_context(small_blocks(*log2s))
                    stack.enter_context(patch.object(sparse_encoder, "MIN_VALUES", least))
                    stack.enter_context(patch.object(import_module("gcodec.frame.encode"), "_MIN_SURE_VALUES", least))
                expected = gcodec.encode(wanted, base=base, dtype=name)
                values = Values(wanted[:0], dtype, wanted.shape, 0)
                request = EncodeRequest(values, bit_layouts.lossless(dtype), np.zeros(0, np.uint8), CODING,
                                        shapes=(wanted.shape,), standalone=True)
                launched = here.launched
                frame = bytes(batches.encode_patch(here, wanted, base, request))
            assert frame == expected, (name, share, n)
            made += here.launched - launched in (7, 10)     # one choice of classes or two; else by the host
            assert np.array_equal(outcome_with_base(memory, frame, base, name), wanted)
    assert made >= (20 if quick else 1), made


@law
def golden_patches(memory: HostMemory, quick: bool) -> None:
    """Check the frames of ``tests/golden`` and ``tests/golden-invalid`` that have a base, of all types and kinds."""
    if not quick:
        return
    from tests.support.make_golden import as_known, read_manifest
    from tests.support.paths import GOLDEN, GOLDEN_INVALID

    for folder in (GOLDEN, GOLDEN_INVALID):
        for name, described in read_manifest(folder).items():
            known = as_known(described.get("codebooks", []))
            books = books_of(known)
            if "base" not in described or {book.hash for book in books} != {digest for _, digest in known}:
                continue
            file, bits = described["base"]
            base = np.fromfile(folder / file, f"<u{bits // 8}")
            frame = (folder / f"{name}.frame").read_bytes()
            dtype = BY_CODE[frame[5]].narrow.name if len(frame) > 5 and frame[5] in BY_CODE else f"float{bits}"
            result = outcome_with_base(memory, frame, base, dtype, books)
            if folder == GOLDEN:
                assert not isinstance(result, str), (name, result)
                assert sha256(result.tobytes()).hexdigest() == described["sha256"], name
            else:
                assert result == described["expected"], (name, result)


@law
def any_patches(memory: HostMemory, quick: bool) -> None:
    """Valid frames with a base that no encoder writes, and frames with one thing wrong, which are refused alike; the
    base stays as it was. No index is out of bounds."""
    rng = Random(7)
    codes = [1, 2, 3, 5, 6, 4] if quick else [2, 5]
    chosen: list[list[Any]] = [["sparse"], ["sparse", "raw", "constant"], ["sparse", "coded", "predicted"]]
    for k in range(90 if quick else 2):
        built = build_frame(rng, dtype=codes[k % len(codes)], block_log2=10 if k % 4 else None, named=k % 2 == 0,
                            kinds=chosen[k % 3], spare_bits=k % 2 == 1, with_base=True, n_values=None if quick else 90)
        assert built.base is not None
        dtype, books = BY_CODE[built.frame[5]].narrow.name, books_of(built.codebooks)
        result = outcome_with_base(memory, built.frame, built.base, dtype, books)
        assert laws.same_outcome(result, built.bits), (k, result, built.bits)
        if k % 6 == 3 and quick:      # those that name no codebooks, which are found here by their hash alone
            for mutation in mutations(built.frame, rng, built.codebooks):
                expected = laws.outcome(mutation.frame, built.codebooks, built.base)
                result = outcome_with_base(memory, mutation.frame, built.base, dtype, books)
                assert laws.same_outcome(result, expected), (str(result)[:40], str(expected)[:40], mutation.name)


@law
def spoilt_patches(memory: HostMemory, quick: bool) -> None:
    """Check sparse blocks with any bytes altered and a checksum that fits: the host's outcome, the base as it was."""
    rng, refused = Random(5), 0
    for k in range(240 if quick else 4):
        name = ("float32", "bfloat16", "float8_e4m3fn")[k % 3]
        if quick:
            base = np.resize(Case(name, "gaussian").bits.reshape(-1), rng.choice([300, 1500, 3000]))
        else:
            base = np.arange(300).astype(BY_NAME[name].uint)
        with small_blocks(10, rng.choice([6, 8, 10])):
            frame = gcodec.encode(near(base, 0.1, k), base=base, dtype=name, options=EncoderOptions(prediction=False))
        draft = Draft.of(frame, laws.SHIPPED)
        blocks = [bytearray(block) for block in draft.blocks]
        for _ in range(rng.choice([0, 1, 1, 2, 5])):
            block = rng.choice(blocks)
            at = rng.choice([rng.randrange(1, min(len(block), 32)), rng.randrange(1, len(block))])
            block[at] = rng.choice([block[at] ^ 1 << rng.randrange(8), 0, 255, rng.randrange(256)])
        frame = replace(draft, blocks=tuple(map(bytes, blocks))).seal()
        expected = laws.outcome(frame, base=base)
        result = outcome_with_base(memory, frame, base, name)
        assert laws.same_outcome(result, expected), (k, result, expected)
        refused += isinstance(result, str)
    assert refused > (100 if quick else 0)


@law
def hashes(memory: HostMemory, quick: bool) -> None:
    """Check that a device's XXH3 is that of the library, for sizes around all of its limits, one by one and at once."""
    from gcodec.gpu import hashing

    rng = np.random.default_rng(6)
    sizes = [0, 1, 240, 241, 247, 256, 1023, 1024, 1025, 1088, 1089, 2048, 5000, 16384, 16385, 70_001, 131_072]
    arrays = [rng.integers(0, 256, n, dtype=np.uint8) for n in (sizes if quick else [0, 100, 1500, 18_001])]
    wanted = [xxhash.xxh3_64_hexdigest(array.tobytes()) for array in arrays]
    assert hashing.hash_tensors(memory, []) == []
    for array, own in zip(arrays, wanted, strict=True):
        assert hashing.hash_tensors(memory, [array]) == [own]
    for most in (hashing.MOST_AT_ONCE, 30_000, 1):
        with patch.object(hashing, "MOST_AT_ONCE", most):
            assert hashing.hash_tensors(memory, arrays[::-1]) == wanted[::-1]
    extremes = [np.zeros(3000, np.uint8), np.full(3000, 255, np.uint8)]
    assert hashing.hash_tensors(memory, extremes) == [xxhash.xxh3_64_hexdigest(array.tobytes()) for array in extremes]


@law
def public_functions(memory: HostMemory, quick: bool) -> None:
    """Check ``gcodec.encode`` and ``gcodec.decode`` of tensors that say they are on a CUDA device, and ``gcodec.gpu``.
    """
    if not quick:
        return
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
        laws.check_refused(gcodec.LimitExceeded, lambda: gcodec.decode(
            gcodec.encode(torch.ones(500)), device="cuda", max_output_bytes=100))
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
        laws.check_refused(gcodec.InvalidArgument, lambda: gcodec.decode(
            data, base=pretending(base), out=pretending(wrong)))  # noqa: B023
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


@law
def weight_sync(memory: HostMemory, quick: bool) -> None:
    """Check versions of weights that are published and applied by the device's kernels, beside those of the host's."""
    if not quick:
        return
    import torch

    from gcodec.sync import Publisher, Subscriber, device_segments, weight_changes
    from tests.gpu.cuda_torch import on_host, pretending

    random = torch.Generator().manual_seed(4)
    shapes = {"big": (300, 201), "rows": (170, 100), "small": (90,), "one": (), "none": (0, 3)}
    kinds = (torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int32)
    state = {f"{name} {kind}": (torch.randn(shape, generator=random) * 9).to(kind)
             for name, shape in shapes.items() for kind in kinds}

    def there(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {name: pretending(tensor.clone()) for name, tensor in tensors.items()}

    def same(ours: dict[str, Any], theirs: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(ours[name].as_subclass(torch.Tensor).reshape(-1).view(torch.uint8),
                               tensor.reshape(-1).view(torch.uint8)) for name, tensor in theirs.items())

    in_parts = patch.object(device_segments, "PART_BYTES", 1 << 16), patch.object(weight_changes, "DEVICE_PART", 50_000)
    with on_host(), in_parts[0], in_parts[1]:
        ours, theirs = Publisher(start=there(state), on_device=True), Publisher(start=state)
        weights = [there(state), there(state)]
        subscribers = [Subscriber(own, on_device=True) for own in weights]
        for share in (0.01, 0.2, 0.0, 0.9):
            moved = {name: tensor.double() * torch.where(torch.rand(tensor.shape, generator=random) < share, 1.3, 1.0)
                     for name, tensor in state.items()}
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


@law
def coders_of_all_reduces(memory: HostMemory, quick: bool) -> None:
    """What an all-reduce encodes of parts of a buffer and decodes: every value as it is rounded at the level that the
    host's rule has for it, whatever part it lies in."""
    if not quick:
        return
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
    optimizer = torch.optim.AdamW(params[:-1], lr=1e-3)       # none holds the last
    for param in params:
        param.grad = torch.randn(param.shape, generator=random) * 1e-2
    optimizer.step()
    for param in params[:2]:       # as with fused=True
        optimizer.state[param]["step"] = pretending(optimizer.state[param]["step"])
    ends = np.cumsum([param.numel() for param in params])
    segments = [GradientSegment(int(end) - param.numel(), int(end), param, param.stride())
                for end, param in zip(ends, params, strict=True)]
    values = torch.randn(int(ends[-1]), generator=random) * 1e-2
    parts = [(begin, values[begin:end]) for begin, end in ((0, 1000), (1000, 4096), (4096, len(values)))]
    modes: list[gd.Lossless | gd.FixedBits | gd.NearLossless] = [
        gd.Lossless(), gd.FixedBits(5), gd.NearLossless(optimizer), gd.NearLossless(optimizer, PAPER_LADDER["float32"])]
    for mode in modes:
        near = mode if isinstance(mode, gd.NearLossless) else None
        arguments: Any = near, Gradients(segments), dtype, 2.0
        for kind in (0, 1, 1):
            books, tally = GpuCodebooks(gd.Refresh()), Counters()
            coder = GpuCoder(dtype, mode, GpuLevelChooser(*arguments) if near else None, books, tally)
            with on_host():
                frames = coder.encode([(begin, pretending(part)) for begin, part in parts], kind)
                result = coder.decode(frames, [len(part) for _, part in parts])
            for (begin, part), own in zip(parts, result, strict=True):
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


@law
def the_benchmark(memory: HostMemory, quick: bool) -> None:
    """Check that ``bench.gpu`` runs to its end and finds what it verifies; its figures are then the host's."""
    if not quick:
        return
    from bench import gpu as bench
    from bench.gpu_device import reason_not_to
    from tests.gpu.cuda_torch import pretending_device

    with pretending_device(), patch.object(bench, "PART", 1 << 13), redirect_stdout(StringIO()):
        assert not reason_not_to()
        wanted = list(bench.jobs([1 << 15], 1))
        rows = [row for job in wanted for row in job.rows()]
    assert len({job.title for job in wanted}) == len(wanted) == len(bench.TYPES) * 7
    assert all(len(row) == len(bench.COLUMNS) and min(map(float, row[6:13])) >= 0 for row in rows)
    assert {row[1] for row in rows} == set(TYPES)
    assert {row[2] for row in rows} == {*bench.MODES, *bench.RULES}
    what = {row[3] for row in rows}
    assert {"encode, reused codebook", "decode", "levels", "encode, 4 tensors of 0 MiB", "cast to bfloat16",
            "host: decode", "publish, on the device", "apply, on the device", "apply, on the host"} <= what


@law
def the_tests_of_a_device(memory: HostMemory, quick: bool) -> None:
    """Check that tests of ``make test-gpu`` hold where a device does what it should; of the many, some of each kind."""
    if not quick:
        return
    import pytest

    from tests.gpu.cuda_torch import pretending_device

    said = StringIO()
    with pretending_device(), redirect_stdout(said):
        selected = "0-d or golden or a_batch or live or spoilt or patches or xxh3 or weights or (hosts and AdamW)"
        result = pytest.main(["-q", "-m", "gpu", "-k", selected, "-p", "no:cacheprovider", "-p", "no:xdist", "-W",
                             "ignore::pytest.PytestAssertRewriteWarning", "tests/gpu/test_gpu.py"])
    assert result == pytest.ExitCode.OK and " passed" in said.getvalue(), said.getvalue()


@contextmanager
def _never_restored(function: Any, fake: Any) -> Iterator[None]:
    """The simulator gives a function its ``cuda`` and takes it away again when a call returns, though other threads may
    still be inside; here it stays."""
    function.__globals__["cuda"] = fake
    yield


def start(mode: str) -> HostMemory:
    """Make this process one of those that the module's first lines describe."""
    names = {"uint16": "bfloat16", "uint32": "float32"}
    if mode == "one-thread":
        from tests.gpu import cuda_one_thread

        cuda_one_thread.install()
        return HostMemory(lambda array: array, names)
    np.seterr(over="ignore")      # integers wrap, as they shall
    import numba.cuda.simulator.kernel as simulator
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    from gcodec.kernels.cuda import grid

    setattr(simulator, "swapped_cuda_module", _never_restored)  # noqa: B010 - it is not exported
    grid.set_threads(THREADS)
    for module in ("batches", "hashing", "level_choice"):
        import_module(f"gcodec.gpu.{module}")  # and so every kernel, before the first is launched
    return HostMemory(FakeCUDAArray, names)


def main(mode: str, *wanted: str) -> None:
    """Run all laws, or those named."""
    memory = start(mode)
    for name, item in LAWS.items():
        if wanted and name not in wanted:
            continue
        try:
            item(memory, mode == "one-thread")
            problem = ""
        except Exception:
            problem = traceback.format_exc()
        print(json.dumps([name, problem]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
