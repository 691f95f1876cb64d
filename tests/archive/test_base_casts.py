"""The laws of bases of another type: what is a cast of a tensor of an earlier file takes next to nothing, and comes
back."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec.archive.type_casts import BASE_CASTS, bfloat16_to_float32, float16_to_float32
from gcodec.cli import main
from gcodec.errors import GcodecError, Unsupported
from tests.archive.test_archive import opened
from tests.support.same import assert_same

pytest.importorskip("torch")

import torch

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PAIRS = list(BASE_CASTS)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return weights of one part in 2^24 and more, so that all bits of float32 are used."""
    return 0.02 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


#: Large tensors, small ones that share a segment, and values that casts have rules for.
WEIGHTS = {f"{n}.weight": drawn(300, 200 + n, seed=n) for n in range(3)} | {
    f"{n}.bias": drawn(300 + n, seed=10 + n) for n in range(9)
}
WEIGHTS["0.weight"][7, :6] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e30, 1e-30])


def as_type(dtype: str, weights: dict[str, torch.Tensor] = WEIGHTS) -> dict[str, torch.Tensor]:
    """Return weights as tensors of a type."""
    return {name: value.to(TYPES[dtype]) for name, value in weights.items()}


def size_against(new: Any, base: Any) -> int:
    """Return the size of an archive, which is read back."""
    stream = io.BytesIO()
    gcodec.save_file(new, stream, base=base)
    assert_same(gcodec.load_file(io.BytesIO(stream.getvalue()), base=base), new)
    return len(stream.getvalue())


def bases_in(data: bytes) -> dict[str, str | None]:
    """Return the hash of what each tensor in an archive is coded against."""
    with opened(data) as archive:
        return {tensor.name: entry.segments[tensor.segment].base for entry, tensor in archive.tensors()}


@pytest.mark.parametrize(("of", "to"), PAIRS)
def test_values_are_cast_as_torch_does_but_for_nan(of, to):
    bits = torch.arange(1 << 16, dtype=torch.int32)
    if of == "float32":
        low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x3000], dtype=torch.int32)
        values = (bits[:, None] << 16 | low).reshape(-1).view(torch.float32)
    else:
        values = bits.to(torch.int16).view(TYPES[of])
    found = BASE_CASTS[of, to].apply(values.view(torch.uint8).numpy())
    made = torch.from_numpy(found).view(TYPES[to])
    expected = values.float().to(TYPES[to])
    known = ~values.isnan()
    assert_same(made[known], expected[known])
    assert bool(made[~known].isnan().all())
    assert torch.equal(made[~known].signbit(), values[~known].signbit())


def test_nan_of_16_bits_widens_to_the_bits_that_the_page_names():
    short = np.array([0x7F81, 0xFFC1, 0x7FFF], "<u2").view(np.uint8)
    assert bfloat16_to_float32(short).view("<u4").tolist() == [0x7F810000, 0xFFC10000, 0x7FFF0000]
    half = np.array([0x7C01, 0xFE01, 0x7FFF], "<u2").view(np.uint8)
    assert float16_to_float32(half).view("<u4").tolist() == [0x7FC00000, 0xFFC00000, 0x7FC00000]


@given(st.sampled_from(PAIRS), st.integers(0, 100), st.integers(0, 100))
def test_any_range_of_bytes_is_that_of_the_whole(pair, start, size):
    cast = BASE_CASTS[pair]
    data = np.arange(100 * cast.of_bytes, dtype=np.uint8) % 61  # no NaN
    whole = cast.apply(data)
    stop = min(start + size, len(whole))
    start = min(start, stop)
    assert cast.read(lambda a, b: data[a:b], start, stop).tolist() == whole[start:stop].tolist()
    assert cast.n_bytes_of(len(whole)) == len(data)


@pytest.mark.parametrize(("of", "to"), PAIRS)
def test_casts_of_a_base_take_less_and_come_back(of, to):
    """The narrower type next to nothing; the wider one, whose last bits the base lacks, clearly less than alone."""
    new, base = as_type(to), as_type(of)
    found, alone = size_against(new, base), size_against(new, None)
    is_whole = of == "float32" or (of, to) == ("float16", "bfloat16")
    assert found < (2500 if of == "float32" else 0.8 * alone)
    assert not is_whole or found < 0.3 * alone


@pytest.mark.parametrize("form", ["safetensors", "pt", "npz", "npy", "gc"])
@pytest.mark.parametrize("by_command", [True, False])
def test_casts_of_a_base_come_back_from_any_kind_of_file(form, by_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old, new = ({name: value.numpy() for name, value in as_type(dtype).items()} for dtype in ("float32", "float16"))
    for name, arrays in (("old", old), ("new", new)):
        path = Path(f"{name}.{form}")
        if form == "npy":
            np.save(path, arrays["1.weight"])
        elif form == "npz":
            np.savez(path, **dict[str, Any](arrays))
        elif form == "pt":
            torch.save({key: torch.from_numpy(value) for key, value in arrays.items()}, path)
        else:
            gcodec.save_file(arrays, f"{name}.gc")
            if form == "safetensors" or name == "new":
                gcodec.decompress_file(f"{name}.gc", f"{name}.safetensors")
    new_path, old_path = ("new.safetensors" if form == "gc" else f"new.{form}"), f"old.{form}"
    if by_command:
        assert main(["compress", "-q", new_path, "--base", old_path, "-o", "x.gc"]) == 0
        assert main(["decompress", "-q", "x.gc", "--base", old_path, "-o", "back/"]) == 0
    else:
        gcodec.compress_file(new_path, "x.gc", base=old_path)
        gcodec.decompress_file("x.gc", "back/", base=old_path)
    assert Path("back", new_path).read_bytes() == Path(new_path).read_bytes()
    assert Path("x.gc").stat().st_size < 6000


def test_the_base_of_a_cast_has_the_hash_of_what_is_cast(tmp_path):
    stream = io.BytesIO()
    new = as_type("bfloat16")
    gcodec.save_file(new, stream, base=as_type("float32"))
    found = bases_in(stream.getvalue())
    for name in ("1.weight", "2.weight"):
        assert found[name] == xxhash.xxh3_64_hexdigest(new[name].view(torch.uint8).numpy().tobytes())


def test_parts_of_casts_are_read_alone(tmp_path):
    gcodec.save_file(as_type("float32"), tmp_path / "old.gc")
    new = as_type("bfloat16")
    gcodec.save_file(new, tmp_path / "new.gc", base=tmp_path / "old.gc")
    with gcodec.open(tmp_path / "new.gc", base=tmp_path / "old.gc") as file:
        assert torch.equal(file.get_slice("1.weight")[11:30], new["1.weight"][11:30])
        assert torch.equal(file.get_tensor("5.bias"), new["5.bias"])


def test_a_tensor_of_the_same_type_is_preferred_to_one_that_is_cast(tmp_path):
    """Of tied tensors, which are one segment, the base has one in another type."""
    shared = drawn(300, 200).bfloat16()
    old = {"a": drawn(300, 200, seed=1), "b": (shared.float() * 1.001).bfloat16()}
    torch.save({"a": shared, "b": shared}, tmp_path / "new.pt")
    gcodec.compress_file(tmp_path / "new.pt", base=old)
    data = (tmp_path / "new.pt.gc").read_bytes()
    expected = xxhash.xxh3_64_hexdigest(old["b"].view(torch.uint8).numpy().tobytes())
    assert set(bases_in(data).values()) == {expected}
    gcodec.decompress_file(tmp_path / "new.pt.gc", tmp_path / "back.pt", base=old)
    assert (tmp_path / "back.pt").read_bytes() == (tmp_path / "new.pt").read_bytes()


def test_another_base_is_refused_and_so_is_none():
    stream = io.BytesIO()
    gcodec.save_file(as_type("bfloat16"), stream, base=as_type("float32"))
    data = stream.getvalue()
    other = {name: value * 1.1 for name, value in as_type("float32").items()}
    for base in (other, as_type("float16"), {}, {"1.weight": drawn(10)}, None):
        with pytest.raises(Unsupported if base is None else GcodecError, match="base"):
            gcodec.load_file(io.BytesIO(data), base=base)


def test_a_series_goes_on_where_weights_change_their_type(tmp_path):
    checkpoints = gcodec.Checkpointer(tmp_path, full_every=4)
    states = [as_type("float32"), as_type("bfloat16"), as_type("bfloat16"), as_type("float32")]
    for step, state in enumerate(states):
        checkpoints.save(step, state)
    for step, state in enumerate(states):
        assert_same(checkpoints.load(step), state)
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.gc"))]
    assert sizes[1] < 4000 and sizes[3] < 0.8 * sizes[0]
    checkpoints.delete(1)
    for step in (0, 2, 3):
        assert_same(checkpoints.load(step), states[step])


def test_versions_within_an_archive_have_no_bases_of_another_type(tmp_path):
    """Casts of other files there have a key of their own, and the archive needs no base."""
    (tmp_path / "run").mkdir()
    for number, dtype in enumerate(("float32", "bfloat16", "float32")):
        gcodec.save_file(as_type(dtype), tmp_path / "x.gc")
        gcodec.decompress_file(tmp_path / "x.gc", tmp_path / "run" / f"{number}.safetensors")
    result = gcodec.compress_file(tmp_path / "run", auto_base=True)
    assert not result.needs_base
    gcodec.decompress_file(tmp_path / "run.gc", f"{tmp_path}/back/")
    for file in (tmp_path / "run").iterdir():
        assert (tmp_path / "back/run" / file.name).read_bytes() == file.read_bytes()
