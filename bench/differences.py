"""Differences: what a step of training changes in bfloat16 weights, what that takes, and how fast.

    python -m bench.differences [--quick] [--out DIR]

writes ``bench/results/differences.csv``, in about a minute on two cores. Weights of two models in training with AdamW,
all tensors end to end, are encoded against what they were one step and eight steps before; then a large array of random
weights, of which one in a hundred changes by one unit in the last place, and arrays whose first part moves much
further. Every method decodes to the new weights, which is checked. The bound is the entropy of which weights change and
by how many units, each given the exponent that a weight had before. Seconds are medians of rounds in which all methods
take turns on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from torch.nn import functional

import gcodec
from bench.checkpoints import LAYERS, WIDTH, Training
from bench.codec import RESULTS
from bench.method_rows import APART, method_rows
from bench.weight_sync import nudge
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.timing import CodecTask, copy_task
from gcodec.demo.data import load_digits
from gcodec.demo.models import DigitNet

RATES = (1e-6, 3e-6, 1e-5)
STEPS = (1, 8)
MOVED = (0.1, 0.3, 0.5, 0.9)  #: share of an array, at its front, whose values all move far
_DTYPE = "bfloat16"


def bound_bytes(values: np.ndarray, base: np.ndarray) -> float:
    """Return the bytes that the changes take at least, if codes know a weight's earlier exponent and nothing else.

    Args:
        values: uint16[n], bits of bfloat16.
        base: uint16[n].
    """
    exponents, steps = base >> 7 & 255, _ordered(values) - _ordered(base)
    bits = 0.0
    for exponent in np.unique(exponents):
        of_one = steps[exponents == exponent]
        changed = of_one[of_one != 0]
        share = len(changed) / len(of_one)
        if 0 < share < 1:
            bits -= len(of_one) * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
        counts = np.unique(changed, return_counts=True)[1]
        bits -= float((counts * np.log2(counts / max(len(changed), 1))).sum())
    return bits / 8


def _ordered(bits: np.ndarray) -> np.ndarray:
    """Return numbers in the order of the values."""
    wide = bits.astype(np.int64)
    return np.where(wide < 0x8000, wide, 0x7FFF - wide)


def methods(values: np.ndarray, base: np.ndarray) -> dict[str, CodecTask]:
    """Return all methods for one array; arguments as for :func:`bound_bytes`."""
    out, patched = np.empty_like(values), base.copy()
    room = np.empty(gcodec.max_encoded_size(values.size, _DTYPE), np.uint8)

    def by_gcodec(options: gcodec.EncoderOptions, threads: int, *, in_place: bool = False) -> CodecTask:
        def decode(frame: Any) -> np.ndarray:
            target = patched if in_place else out
            gcodec.decode(frame, base=patched if in_place else base, out=target, threads=threads)
            return target

        def prepare() -> None:
            if in_place:
                np.copyto(patched, base)

        return CodecTask(
            lambda: gcodec.encode(values, base=base, dtype=_DTYPE, options=options, threads=threads, out=room),
            decode,
            values,
            prepare,
        )

    sparse, predicted = gcodec.EncoderOptions(), gcodec.EncoderOptions(sparse=False)
    return {
        "copy": copy_task(values),
        "gcodec": by_gcodec(sparse, 1),
        "gcodec, in place": by_gcodec(sparse, 1, in_place=True),
        "gcodec, 2 threads": by_gcodec(sparse, 2),
        "gcodec, predicted blocks": by_gcodec(predicted, 1),
        "numpy: index and value": _pairs(values, base),
        "gaps as varints, values, zstd-3": _gaps(values, base),
        "xor, zstd-1": _xor(values, base, 1),
        "xor, zstd-3": _xor(values, base, 3),
    }


def _pairs(values: np.ndarray, base: np.ndarray) -> CodecTask:
    """Return the method of 32-bit indices and values."""

    def encode() -> bytes:
        places = np.flatnonzero(values != base)
        return np.int64(len(places)).tobytes() + places.astype(np.uint32).tobytes() + values[places].tobytes()

    def decode(data: bytes) -> np.ndarray:
        count = int(np.frombuffer(data, np.int64, 1)[0])
        result = base.copy()
        result[np.frombuffer(data, np.uint32, count, 8)] = np.frombuffer(data, np.uint16, count, 8 + 4 * count)
        return result

    return CodecTask(encode, decode, values)


def _gaps(values: np.ndarray, base: np.ndarray) -> CodecTask:
    """Return the method of home-made patches: distances as bytes of seven bits, then values, then Zstandard."""
    packer, unpacker = zstandard.ZstdCompressor(3), zstandard.ZstdDecompressor()

    def encode() -> bytes:
        places = np.flatnonzero(values != base)
        gaps = np.diff(places, prepend=-1) - 1
        n_bytes = 1 + (gaps >= 1 << 7) + (gaps >= 1 << 14) + (gaps >= 1 << 21) + (gaps >= 1 << 28)
        ends = np.cumsum(n_bytes)
        stream = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
        for k in range(int(n_bytes.max(initial=0))):
            has = n_bytes > k
            more = (n_bytes[has] > k + 1).astype(np.int64) << 7
            stream[(ends - n_bytes)[has] + k] = (gaps[has] >> 7 * k & 127) | more
        sizes = np.array([len(places), len(stream)])
        return packer.compress(sizes.tobytes() + stream.tobytes() + values[places].tobytes())

    def decode(data: bytes) -> np.ndarray:
        raw = unpacker.decompress(data)
        count, length = np.frombuffer(raw, np.int64, 2).tolist()
        stream = np.frombuffer(raw, np.uint8, length, 16)
        last = np.flatnonzero(stream < 128)
        first = np.concatenate([[0], last[:-1] + 1])[: len(last)]
        gaps = np.zeros(count, np.int64)
        for k in range(int((last - first).max(initial=-1)) + 1):
            has = last - first >= k
            gaps[has] |= (stream[first[has] + k].astype(np.int64) & 127) << 7 * k
        result = base.copy()
        result[np.cumsum(gaps + 1) - 1] = np.frombuffer(raw, np.uint16, count, 16 + length)
        return result

    return CodecTask(encode, decode, values)


def _xor(values: np.ndarray, base: np.ndarray, level: int) -> CodecTask:
    """Return the method that has Zstandard compress the bits that differ."""
    packer, unpacker = zstandard.ZstdCompressor(level), zstandard.ZstdDecompressor()
    return CodecTask(
        lambda: packer.compress((values ^ base).tobytes()),
        lambda data: np.frombuffer(unpacker.decompress(data), np.uint16) ^ base,
        values,
    )


def rows_of(
    weights: str, rate: str, steps: int, values: np.ndarray, base: np.ndarray, rounds: int
) -> Iterator[NamedRow]:
    """Yield a row for each method; other arguments as for :func:`bound_bytes`."""
    bound, changed = bound_bytes(values, base), 100 * float(np.count_nonzero(values != base)) / len(values)
    begin = start_of(weights, rate, steps, len(values), changed, bound)
    yield from (begin | row for row in method_rows(methods(values, base), values.nbytes, bound, rounds))


def start_of(weights: str, rate: str, steps: int, n_values: int, changed: float, bound: float) -> NamedRow:
    """Return the columns of an array, of which ``changed`` % differ."""
    return {
        "weights": weights,
        "learning_rate": rate,
        "steps": steps,
        "values": n_values,
        "changed_percent": f"{changed:.3f}",
        "bound_bytes": round(bound),
    }


def rows_of_parts(values: np.ndarray, base: np.ndarray, first: int, name: str, rounds: int) -> Iterator[NamedRow]:
    """Yield rows for an array whose first ``first`` values moved far, as one frame and with a frame for each part."""
    parts, out = (slice(0, first), slice(first, len(values))), np.empty_like(values)

    def encode() -> bytes:
        one, other = (gcodec.encode(values[part], base=base[part], dtype=_DTYPE, threads=1) for part in parts)
        return np.int64(len(one)).tobytes() + one + other

    def decode(data: bytes) -> np.ndarray:
        end = 8 + int(np.frombuffer(data, np.int64, 1)[0])
        for part, frame in zip(parts, (data[8:end], data[end:]), strict=True):
            gcodec.decode(frame, base=base[part], out=out[part], threads=1)
        return out

    apart = CodecTask(encode, decode, values)
    tasks = {name: task for name, task in methods(values, base).items() if name in SHOWN_OF_PARTS}
    bound = sum(bound_bytes(values[part], base[part]) for part in parts)
    changed = 100 * float(np.count_nonzero(values != base)) / len(values)
    begin = start_of(name, "", 1, len(values), changed, bound)
    yield from (begin | row for row in method_rows(tasks | {APART: apart}, values.nbytes, bound, rounds))


SHOWN_OF_PARTS = ("copy", "gcodec", "gcodec, predicted blocks")


class Pictures:
    """The demo's convolutional network, trained with AdamW on digits."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        digits = load_digits()[0]
        self._images, self._labels = torch.as_tensor(digits.images), torch.as_tensor(digits.labels)
        self.model = DigitNet()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._random = np.random.default_rng(1)

    def take_steps(self, count: int, learning_rate: float) -> None:
        """Take ``count`` steps of AdamW."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        for _ in range(count):
            chosen = torch.from_numpy(self._random.integers(len(self._images), size=64))
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(self._images[chosen]), self._labels[chosen]).backward()
            self.optimizer.step()


def weights_of(model: torch.nn.Module) -> np.ndarray:
    """Return all parameters of a model as bfloat16, end to end: uint16[n]."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).to(torch.bfloat16)
    return flat.view(torch.int16).numpy().view(np.uint16)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.differences", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny models, few rounds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # for training alone; it is not measured
    rows: list[NamedRow] = []
    rounds, n_warmup = (1, 3) if options.quick else (5, 100)
    trainings: dict[str, Callable[[], Any]] = {
        "transformer": lambda: Training(*((64, 1) if options.quick else (WIDTH, LAYERS))),
        "convolutional network": Pictures,
    }
    for name, make in trainings.items():
        training = make()
        training.take_steps(n_warmup, 1e-3)
        for rate in RATES:
            training.take_steps(8, rate)  # the optimizer's state is of the other rate before
            for steps in STEPS:
                base = weights_of(training.model)
                training.take_steps(steps, rate)
                rows += rows_of(name, f"{rate:g}", steps, weights_of(training.model), base, rounds)
                print(*rows[-8].values(), flush=True)
    random = np.random.default_rng(1)
    n_values = 1 << (16 if options.quick else 26)
    large = torch.randn(n_values, generator=torch.Generator().manual_seed(1)) * 0.02
    base = large.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    values = base.copy()
    nudge(values, 2.3e-7, random)
    rows += rows_of("large array", "", 1, values, base, rounds)
    for share in MOVED:
        base, values = base[: n_values // 16], values[: n_values // 16].copy()
        first = int(share * len(values))
        moved = (base[:first].astype(np.uint32) << 16).view(np.float32) + random.normal(0, 1e-3, first)
        values[:first] = torch.from_numpy(moved).bfloat16().view(torch.int16).numpy().view(np.uint16)
        rows += rows_of_parts(values, base, first, f"{share:g} of an array moved far", rounds)
    write_named(options.out / "differences.csv", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
