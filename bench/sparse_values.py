"""Arrays that are zero in most places, without a base: what they take, and how fast.

    python -m bench.sparse_values [--quick] [--out DIR]

writes ``bench/results/sparse_values.csv``, in about a minute on two cores. The arrays are of a language model in
training: the gradient of its embedding, whose rows are zero for tokens that a batch does not have; all gradients, of
which the largest one in a hundred, or in a thousand, are kept, as Top-k sends them; and the weights, of which the
largest tenth is kept, as pruning leaves them. Every method gives the array back, bit for bit, which is checked. The
bound is the order-0 entropy of signs and exponents, zeros among them, and all mantissa bits of what is not zero.
Seconds are medians of rounds in which all methods take turns on one core.
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

import gcodec
from bench.checkpoints import LAYERS, WIDTH, Training
from bench.codec import RESULTS
from bench.method_rows import method_rows
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.timing import CodecTask, copy_task
from gcodec.dtypes import BY_NAME

TYPES = ("float32", "bfloat16")


def bound_bytes(bits: np.ndarray, dtype: str) -> float:
    """Return the order-0 entropy of heads and the mantissa bits of what is not zero, in bytes.

    Args:
        bits: uintW[n].
        dtype: Their type's name.
    """
    kind = BY_NAME[dtype]
    counts = np.unique(bits >> kind.tail_bits, return_counts=True)[1]
    heads = -float((counts * np.log2(counts / len(bits))).sum())
    return (heads + kind.tail_bits * int(np.count_nonzero(bits))) / 8


def methods(bits: np.ndarray, dtype: str) -> dict[str, CodecTask]:
    """Return all methods for one array; arguments as for :func:`bound_bytes`."""
    out, room = np.empty_like(bits), np.empty(gcodec.max_encoded_size(bits.size, dtype), np.uint8)

    def by_gcodec(sparse: bool) -> CodecTask:
        options = gcodec.EncoderOptions(sparse=sparse)
        typed = bits.view(np.float32) if dtype == "float32" else bits

        def decode(frame: Any) -> np.ndarray:
            gcodec.decode(frame, out=out.view(np.float32) if dtype == "float32" else out, threads=1)
            return out

        return CodecTask(lambda: gcodec.encode(typed, dtype=dtype, options=options, threads=1, out=room), decode, bits)

    def pairs() -> CodecTask:
        def decode(data: bytes) -> np.ndarray:
            count = int(np.frombuffer(data, np.int64, 1)[0])
            result = np.zeros_like(bits)
            result[np.frombuffer(data, np.uint32, count, 8)] = np.frombuffer(data, bits.dtype, count, 8 + 4 * count)
            return result

        def encode() -> bytes:
            places = np.flatnonzero(bits)
            return np.int64(len(places)).tobytes() + places.astype(np.uint32).tobytes() + bits[places].tobytes()

        return CodecTask(encode, decode, bits)

    def by_zstd(level: int) -> CodecTask:
        packer, unpacker = zstandard.ZstdCompressor(level), zstandard.ZstdDecompressor()
        return CodecTask(
            lambda: packer.compress(bits.data), lambda data: np.frombuffer(unpacker.decompress(data), bits.dtype), bits
        )

    return {
        "copy": copy_task(bits),
        "gcodec": by_gcodec(True),
        "gcodec, no sparse blocks": by_gcodec(False),
        "numpy: index and value": pairs(),
        "zstd-1": by_zstd(1),
        "zstd-3": by_zstd(3),
    }


def rows_of(array: str, dtype: str, bits: np.ndarray, rounds: int) -> Iterator[NamedRow]:
    """Yield a row for each method; other arguments as for :func:`bound_bytes`."""
    bound, share = bound_bytes(bits, dtype), 100 * float(np.count_nonzero(bits)) / len(bits)
    for row in method_rows(methods(bits, dtype), bits.nbytes, bound, rounds):
        yield {
            "array": array,
            "dtype": dtype,
            "values": len(bits),
            "nonzero_percent": f"{share:.3f}",
            "bound_bytes": round(bound),
            **row,
        }


def keep_largest(tensor: torch.Tensor, share: float) -> torch.Tensor:
    """Return the flat tensor with all but a share of its values, the largest, set to zero."""
    flat = tensor.reshape(-1)
    chosen = flat.abs().topk(int(share * len(flat))).indices
    return torch.zeros_like(flat).index_copy(0, chosen, flat[chosen])


def bits_of(tensor: torch.Tensor, dtype: str) -> np.ndarray:
    """Return a tensor's values, rounded to a type, as bits: uintW[n]."""
    flat = tensor.detach().reshape(-1).to(getattr(torch, dtype))
    integers = flat.view(torch.int32 if dtype == "float32" else torch.int16).numpy()
    return integers.view(np.uint32 if dtype == "float32" else np.uint16)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.sparse_values", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny model, one round")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # for training alone; it is not measured
    training = Training(*((64, 1) if options.quick else (WIDTH, LAYERS)))
    training.take_steps(3 if options.quick else 100, 1e-3)
    model = training.model
    embedding = max(
        (module for module in model.modules() if isinstance(module, torch.nn.Embedding)),
        key=lambda module: module.weight.numel(),
    )
    assert embedding.weight.grad is not None
    gradients = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    arrays: dict[str, Callable[[], torch.Tensor]] = {
        "gradient of the embedding": lambda: embedding.weight.grad,  # type: ignore[dict-item, return-value]
        "largest 1 % of the gradients": lambda: keep_largest(gradients, 0.01),
        "largest 0.1 % of the gradients": lambda: keep_largest(gradients, 0.001),
        "largest 10 % of the weights": lambda: keep_largest(weights, 0.1),
    }
    rows: list[NamedRow] = []
    for name, make in arrays.items():
        for dtype in TYPES:
            rows += rows_of(name, dtype, bits_of(make(), dtype), 1 if options.quick else 5)
            print(*rows[-5].values(), flush=True)
    write_named(options.out / "sparse_values.csv", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
