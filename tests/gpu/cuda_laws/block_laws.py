"""The laws of frames on the CUDA path: encoding, decoding, codebooks, levels and places."""

from __future__ import annotations

import mmap
import sys
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any

import numpy as np

import gcodec
from gcodec import FINE_LADDER, PAPER_LADDER, EncoderOptions, Ladder
from gcodec.dtypes import BY_NAME
from gcodec.format import modes as bit_layouts
from gcodec.format import shipped
from gcodec.format.codebook import Codebook
from gcodec.plan.sampling import SampleSource, take_sample
from gcodec.tensors import kernel_view
from gcodec.truncation.evaluate import Policy
from gcodec.truncation.optimizers import levels_for, view_from_dump
from tests.gpu.cuda_laws.law_table import CODING, SLOW_CASES, TYPES, books_of, cases, check_same_bytes, law, outcome
from tests.gpu.cuda_memory import HostMemory
from tests.support import laws
from tests.support.cases import Case, levels_at_random
from tests.support.frame_builder import Draft, build_frame, mutations


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
    from gcodec.kernels.cuda.launch_tables import Tensors
    from gcodec.kernels.cuda.native import counter_for
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
            counter = counter_for(dtype.bits, dtype.head_bits)
            memory.launch(counter, table.n_blocks, tensors, form, forms.drops_of(bit_layout), np.uint32(window),
                          np.uint32(center), counts)
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
