"""The laws of records stored field by field: every part comes back, no damage is believed, and no field costs much more
than its integers hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcodec.archive import chunks, records
from gcodec.archive.chunks import record_chunk, unpack_chunk
from gcodec.archive.entries import Chunk
from gcodec.archive.layout import RECORDS, STORED
from gcodec.errors import Corruption, GcodecError
from gcodec.files.gguf import BLOCKS
from gcodec.files.record_fields import RecordFields

TYPES = {name: fields for name, _, fields in BLOCKS.values()}
#: Bytes of a block of each type, as llama.cpp has them.
BLOCK_BYTES = {
    "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q8_1": 40, "Q2_K": 84, "Q3_K": 110, "Q4_K": 144,
    "Q5_K": 176, "Q6_K": 210, "Q8_K": 292, "IQ2_XXS": 66, "IQ2_XS": 74, "IQ3_XXS": 98, "IQ1_S": 50, "IQ4_NL": 18,
    "IQ3_S": 110, "IQ2_S": 82, "IQ4_XS": 136, "IQ1_M": 56, "TQ1_0": 54, "TQ2_0": 66, "MXFP4": 17, "NVFP4": 36,
    "Q1_0": 18,
}  # fmt: skip


def restored(payload: bytes, codec: int, n_bytes: int) -> np.ndarray:
    """Return the part that a chunk holds."""
    return unpack_chunk(Chunk(codec, len(payload), n_bytes), np.frombuffer(payload, np.uint8), "x")


def check_comes_back(data: np.ndarray, fields: RecordFields) -> int:
    """Check that a part comes back, as it is packed and as records; return the size that it takes."""
    packed = record_chunk(data, fields)
    assert np.array_equal(restored(bytes(packed.payload), packed.codec, data.size), data)
    whole = records.pack_records(data, fields, chunks._packed_field)
    assert np.array_equal(restored(whole, RECORDS, data.size), data)
    assert len(packed.payload) <= min(len(whole), data.size)
    return len(packed.payload)


def quantized(rng: np.random.Generator, n: int, *, minimum: bool) -> np.ndarray:
    """Return normal values of several magnitudes in blocks of 4 bits, as Q4_1 or Q4_0 has them: uint8[n, 20 or 18]."""
    values = rng.standard_normal((n, 32)).astype(np.float32) * np.exp(0.5 * rng.standard_normal((n, 1)))
    least = values.min(1) if minimum else -np.abs(values).max(1)
    scales = ((values.max(1) - least) / 15 if minimum else -least / 8).astype(np.float16)
    codes = np.clip(np.round((values - least[:, None]) / scales.astype(np.float32)[:, None]), 0, 15).astype(np.uint8)
    columns = [scales[:, None].view(np.uint8), *([least.astype(np.float16)[:, None].view(np.uint8)] if minimum else [])]
    return np.concatenate([*columns, codes[:, :16] | codes[:, 16:] << 4], axis=1)


def test_all_types_of_blocks_have_the_bytes_that_llama_has():
    assert {name: fields.record_bytes for name, fields in TYPES.items()} == BLOCK_BYTES


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("n", [1, 2, 700, 9000])
def test_blocks_of_every_type_and_content_come_back(name, n):
    fields, rng = TYPES[name], np.random.default_rng(n)
    size = n * fields.record_bytes
    noise = rng.integers(0, 256, size, np.uint8)
    check_comes_back(noise, fields)
    for few in (noise & 0x11, np.zeros(size, np.uint8), np.full(size, 0xFF, np.uint8), np.tile(noise[: size // n], n)):
        assert check_comes_back(few, fields) < size or n < 700
    some = noise.reshape(n, -1).copy()
    some[:, :4] = quantized(rng, n, minimum=True)[:, :4]  # scales and minima as they are, where a type begins with them
    check_comes_back(some.reshape(-1), fields)


@given(st.data())
def test_records_of_all_fields_come_back(data):
    kinds = data.draw(st.lists(st.sampled_from(["float16", "float32", None]), min_size=1, max_size=16))
    sizes = tuple({"float16": 2, "float32": 4, None: data.draw(st.integers(1, 70))}[kind] for kind in kinds)
    halves = [number for number, kind in enumerate(kinds) if kind == "float16"]
    integers = [number for number, kind in enumerate(kinds) if kind is None]
    chosen: dict[str, Any] = {}
    if halves and integers:
        minimum = data.draw(st.sampled_from([None, *halves]))
        chosen = {"scale": data.draw(st.sampled_from(halves)), "minimum": minimum, "integers": integers[-1]}
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    n = data.draw(st.sampled_from([1, 5, 300, 20_000]))
    scales = rng.integers(0, 1 << data.draw(st.integers(1, 16)), (n, sum(sizes)))
    check_comes_back(scales.astype(np.uint8).reshape(-1), RecordFields(sizes, tuple(kinds), **chosen))


@pytest.mark.parametrize("minimum", [True, False])
def test_integers_take_hardly_more_than_their_distribution_given_the_scale(minimum):
    blocks = quantized(np.random.default_rng(5), 100_000, minimum=minimum)
    fields = TYPES["Q4_1" if minimum else "Q4_0"]
    codes = blocks[:, -16:]
    alone = records._bits(codes) / 8  # with one code for all, at least
    n_scales = 2 * len(blocks) * (1 + minimum)
    n_bytes = check_comes_back(blocks.reshape(-1), fields)
    assert n_bytes < 1.005 * alone + n_scales
    if minimum:  # where zero is among the integers tells more than a code's inefficiency takes
        assert n_bytes - n_scales < 0.99 * alone


def spoilt(payload: bytes) -> list[bytes]:
    """Return a chunk cut off, longer, and with each byte of its header and some others changed."""
    places = [*range(min(len(payload), 90)), *range(90, len(payload), len(payload) // 50 + 1)]
    changed = [
        payload[:at] + bytes([payload[at] ^ bit]) + payload[at + 1 :] for at in places for bit in (1, 2, 0x80, 0xFF)
    ]
    return [payload[:at] for at in places] + [payload + b"\0", b""] + changed


@pytest.mark.parametrize("minimum", [True, False])
def test_damage_gives_other_bytes_or_a_gcodec_error(minimum):
    data = quantized(np.random.default_rng(6), 12_000, minimum=minimum).reshape(-1)
    fields = TYPES["Q4_1" if minimum else "Q4_0"]
    payload = records.pack_records(data, fields, chunks._packed_field)
    n_errors = 0
    for bad in spoilt(payload):
        try:
            assert restored(bad, RECORDS, data.size).size == data.size  # the archive's hash finds it
        except GcodecError:
            n_errors += 1
    assert n_errors > 300
    for n_bytes in (0, 1, data.size - 1, data.size + fields.record_bytes):
        with pytest.raises(Corruption):
            restored(payload, RECORDS, n_bytes)


def test_a_record_in_a_record_is_refused():
    inner = records.pack_records(
        np.zeros(64, np.uint8), RecordFields((4,), (None,)), lambda data, _: records.Stream(STORED, data.data)
    )
    outer = records.pack_records(
        np.zeros(64, np.uint8), RecordFields((4,), (None,)), lambda data, _: records.Stream(RECORDS, inner)
    )
    with pytest.raises(Corruption, match="codec 3"):
        restored(outer, RECORDS, 64)
