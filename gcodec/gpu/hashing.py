"""XXH3 of tensors on a device, the same 64 bits that the library xxhash computes on the host.

After the public description of the algorithm (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), seed 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ..kernels.cuda.native import CHAIN_HASH_BLOCKS, SUM_HASH_BLOCKS
from .gpu_memory import Memory

# The numbers of ``source/hash.cu``.
BLOCK_BYTES = 1024  #: between two scrambles
N_LANES = 8  #: accumulators
BLOCKS_PER_SUM = 64  #: blocks that a block of the grid sums
#: Where the words of :func:`hash_words` begin, those of the secret first, of which the last eight are for scrambling:
#: those for the last 64 bytes; the accumulators as they begin; their end.
LAST, START, N_WORDS = 24, 32, 40

MOST_SHORT = 240  #: bytes up to which XXH3 is of another kind, which the host computes
MOST_AT_ONCE = 1 << 31  #: bytes that are hashed before the host waits; their sums take a sixteenth

#: The secret that XXH3 has where it is given none.
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PRIMES_32 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIMES_64 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_OF_LAST, _OF_MERGE = 121, 11  #: bytes of the secret at which the words for the last stripe, and for merging, begin
_ALL = (1 << 64) - 1


class HashWords(NamedTuple):
    """The words that kernels need, by kind as :data:`LAST` says.

    Attributes:
        words: uint64[N_WORDS].
    """

    words: Any


@cache
def hash_words() -> np.ndarray:
    """Return the words that kernels need: uint64[N_WORDS]."""
    words = np.empty(N_WORDS, np.uint64)
    words[:LAST] = np.frombuffer(_SECRET, np.uint64, 24)
    words[LAST:START] = np.frombuffer(_SECRET, np.uint64, N_LANES, _OF_LAST)
    narrow, wide = _PRIMES_32, _PRIMES_64
    words[START:] = narrow[2], *wide[:4], narrow[1], wide[4], narrow[0]
    return words


def hash_tensors(memory: Memory, tensors: Sequence[Any]) -> list[str]:
    """Return the XXH3 of tensors, 16 hexadecimal digits each; waits for the device now and then.

    Args:
        tensors: Flat tensors of bytes on the device.
    """
    digests, short = [""] * len(tensors), [k for k, x in enumerate(tensors) if len(x) <= MOST_SHORT]
    if short:
        heads = memory.heads([tensors[k] for k in short], [len(tensors[k]) for k in short])
        for k, head in zip(short, heads, strict=True):
            digests[k] = xxhash.xxh3_64_hexdigest(head.tobytes())
    for batch in _batches(tensors):
        for k, state in zip(batch, _states(memory, [tensors[k] for k in batch]), strict=True):
            digests[k] = f"{_merged(list(map(int, state)), len(tensors[k])):016x}"
    return digests


def _batches(tensors: Sequence[Any]) -> Iterator[list[int]]:
    """Yield the numbers of tensors that are hashed at once, those that are not short."""
    batch, n_bytes = list[int](), 0
    for k, tensor in enumerate(tensors):
        size = len(tensor)
        if size <= MOST_SHORT:
            continue
        if batch and n_bytes + size > MOST_AT_ONCE:
            yield batch
            batch, n_bytes = [], 0
        batch.append(k)
        n_bytes += size
    if batch:
        yield batch


def _states(memory: Memory, tensors: Sequence[Any]) -> np.ndarray:
    """Return the accumulators of the hashes of long tensors: uint64[n, 8]."""
    sizes = np.array([len(tensor) for tensor in tensors], np.int64)
    n_fulls = (sizes - 1) // BLOCK_BYTES
    ends = N_LANES * np.cumsum(n_fulls + 1)
    firsts = ends - N_LANES * (n_fulls + 1)
    fixed = memory.kept("XXH3", lambda: HashWords(memory.send(hash_words())))
    words = getattr(fixed, "bundle", fixed).words
    sums, results = memory.empty(int(ends[-1]), "uint64"), memory.empty(N_LANES * len(tensors), "uint64")
    for tensor, size, n_full, first in zip(tensors, sizes.tolist(), n_fulls.tolist(), firsts.tolist(), strict=True):
        aligned = memory.bytes_of(tensor)
        (wide, _), (data, _) = memory.span([aligned[: size & ~7]], "u8"), memory.span([aligned], "u1")
        memory.launch(
            SUM_HASH_BLOCKS, n_full // BLOCKS_PER_SUM + 1, wide, data, np.uint64(size), words, np.uint64(first), sums
        )
    memory.launch(CHAIN_HASH_BLOCKS, len(tensors), sums, memory.send(firsts), memory.send(n_fulls), words, results)
    return memory.fetch(results).reshape(-1, N_LANES)


def _merged(state: Sequence[int], n_bytes: int) -> int:
    """Return a hash of its accumulators."""
    keys = np.frombuffer(_SECRET, np.uint64, N_LANES, _OF_MERGE).tolist()
    mixed = [own ^ key for own, key in zip(state, keys, strict=True)]
    total = n_bytes * _PRIMES_64[0]
    for one, other in zip(mixed[::2], mixed[1::2], strict=True):
        product = one * other
        total += (product & _ALL) ^ product >> 64
    total &= _ALL
    total ^= total >> 37
    total = total * 0x165667919E3779F9 & _ALL
    return total ^ total >> 32
