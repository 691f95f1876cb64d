"""The laws of small tensors that lie together: they come back one by one, bit for bit, wherever they are read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as safetensors_load
from safetensors.numpy import save as safetensors_save

import gcodec
from gcodec.archive import ArchiveReader, ArchiveWriter, load_file, save_file
from gcodec.archive.tensor_groups import MAX_GROUP, MAX_SMALL
from gcodec.errors import Corruption, GcodecError, LimitExceeded, Unsupported
from gcodec.files import FileSource, plan_file
from tests.support import commands
from tests.support.commands import run

RNG = np.random.default_rng(21)
TIED = RNG.standard_normal(50, np.float32)


folder = commands.folder


def layers(count: int, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Return biases, norms and factors of so many layers."""
    found = {}
    for n in range(count):
        found[f"{n}/bias"] = (1e-2 * RNG.standard_normal(300)).astype(dtype)
        found[f"{n}/norm"] = (1 + 1e-2 * RNG.standard_normal(64)).astype(dtype)
        found[f"{n}/factor"] = (1e-3 * RNG.standard_normal((4, 200))).astype(dtype)
    return found


def saved(tensors: dict[str, np.ndarray]) -> io.BytesIO:
    """Return an archive of tensors."""
    stream = io.BytesIO()
    save_file(tensors, stream)
    stream.seek(0)
    return stream


CASES: dict[str, dict[str, np.ndarray]] = {
    "layers": layers(8),
    "half": layers(8, "float16"),
    "double": layers(3, "float64"),
    "types in turn": {f"{n}": RNG.standard_normal(9 * n).astype(("f4", "f2", "i8")[n % 3]) for n in range(1, 30)},
    "one value each": {f"{n}": np.array(n / 3, np.float32) for n in range(40)},
    "constants and zeros": {f"{n}": np.full(500, n % 3, np.float32) for n in range(12)},
    "few values": {f"{n}": RNG.choice([0.5, 1.5, -2], 700).astype(np.float32) for n in range(5)},
    "empty ones among them": {f"{n}": np.ones((n % 3, 2), np.float32) for n in range(9)},
    "empty ones beside few values": {f"{n}": RNG.choice([0.5, 1.5], (0, 700, 0)[n % 3]).astype("f4") for n in range(8)},
    "large ones among them": {f"{n}": RNG.standard_normal((20_000, 10)[n % 3 > 0]).astype("f4") for n in range(7)},
    "ties among them": {"a": TIED, **layers(2), "b": TIED, "c": TIED.copy()},
    "nan and infinity": {f"{n}": np.array([np.nan, np.inf, -0.0, 1e-45] * 20, np.float32) for n in range(5)},
    "more than a group": {
        f"{n}": RNG.standard_normal(MAX_SMALL // 4, np.float32) for n in range(MAX_GROUP // MAX_SMALL + 2)
    },
}


def same(found: object, expected: np.ndarray) -> bool:
    array = np.asarray(found)
    return array.dtype == expected.dtype and array.shape == expected.shape and array.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_tensors_come_back_wherever_they_are_read(name, folder):
    tensors = CASES[name]
    save_file(tensors, "x.gc")
    loaded = load_file("x.gc")
    assert loaded.keys() == tensors.keys() and all(same(loaded[key], value) for key, value in tensors.items())
    some = list(tensors)[1::3]
    assert all(same(value, tensors[key]) for key, value in load_file("x.gc", names=some).items())
    with gcodec.open("x.gc") as file:
        for key, value in tensors.items():
            assert same(file[key], value)
            if value.ndim:
                assert same(file.get_slice(key)[1:3], value[1:3])
    run("decompress", "x.gc", "-o", "x.safetensors")
    restored = safetensors_load(Path("x.safetensors").read_bytes())
    assert all(same(value, tensors[key]) for key, value in restored.items())


WHOLE = RNG.standard_normal((40, 30), np.float32)
VIEWS: dict[str, dict[str, np.ndarray]] = {
    "transposed and a row": {"whole.w": WHOLE, "turned.w": WHOLE.T, "row.w": WHOLE[3]},
    "every second value": {"a.w": WHOLE[0, ::2], "b.w": WHOLE[0, 1::2]},
    "overlapping or from last to first": {"a.w": WHOLE[1], "b.w": WHOLE[1, ::-1]},
    "pairs": {f"{n}.w": RNG.standard_normal(9 + n) + 1j for n in range(3)},
}


TORCH_VIEWS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "transposed and a row": lambda whole: {"whole.w": whole, "turned.w": whole.t(), "row.w": whole[3]},
    "every second value": lambda whole: {"a.w": whole[0, ::2], "b.w": whole[0, 1::2]},
    "overlapping or from last to first": lambda whole: {"a.w": whole[1:], "b.w": whole[:-1]},
    "pairs": lambda whole: {f"{n}.w": whole[n].double() + 1j for n in range(3)},
}


@pytest.mark.parametrize("like", ["numpy", "torch"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_one_memory_are_read_one_by_one_among_small_tensors(name, like, folder):
    small = {f"{n}.{key}": value for n in range(3) for key, value in (("w", WHOLE[n].copy()), ("d", np.ones(n + 1)))}
    state: dict[str, Any] = dict(list(small.items())[:3]) | VIEWS[name] | dict(list(small.items())[3:])
    if like == "torch":
        torch = pytest.importorskip("torch")
        whole = torch.from_numpy(WHOLE)
        state = {key: torch.tensor(value) for key, value in small.items()} | TORCH_VIEWS[name](whole)
    gcodec.save(state, "state.gc")
    loaded = gcodec.load("state.gc")
    assert all(same(loaded[key], np.asarray(value)) for key, value in state.items())
    with gcodec.open("state.gc") as file:
        assert all(same(file[key], np.asarray(value)) for key, value in state.items())
    assert all(same(value, np.asarray(state[key])) for key, value in load_file("state.gc").items())
    with ArchiveReader("state.gc") as archive:
        assert archive.files[0].groups


def test_many_small_tensors_take_few_segments_and_less_room():
    tensors, alone = layers(40), 0
    with ArchiveReader(saved(tensors)) as archive:
        [entry] = archive.files
        assert len(entry.segments) == 3 and len(entry.tensors) == len(tensors)  # all biases, all norms, all factors
    for name, value in tensors.items():
        with ArchiveReader(saved({name: value})) as archive:
            alone += archive.files[0].segments[0].stored
    assert sum(segment.stored for segment in entry.segments) < 0.96 * alone


def test_a_tensor_keeps_no_others_in_memory():
    torch = pytest.importorskip("torch")
    stream = saved(layers(20))
    [one] = load_file(stream, names=["3/norm"]).values()
    assert one.base is None or one.base.nbytes <= one.nbytes
    stream.seek(0)
    loaded = load_file(stream, like="torch")
    assert all(value.untyped_storage().nbytes() == value.numel() * 4 for value in loaded.values())
    assert torch.equal(loaded["3/norm"], torch.from_numpy(one))


def some_changed(tensors: dict[str, np.ndarray], share: float = 0.1) -> dict[str, np.ndarray]:
    """Return tensors of which so many values, and no whole tensor, are others."""
    return {
        name: np.where(RNG.random(value.shape) < share, value * value.dtype.type(1.25), value)
        for name, value in tensors.items()
    }


EARLIER = layers(10)
LATER: dict[str, dict[str, np.ndarray]] = {
    "a few values changed": some_changed(EARLIER),
    "nothing changed": dict(EARLIER),
    "everything changed": layers(10),
    "one tensor changed": EARLIER | {"3/bias": RNG.standard_normal(300, np.float32)},
    "new tensors among them": {
        f"{n}/{key}": value
        for n in range(10)
        for key, value in [
            *((part, some_changed({"": EARLIER[f"{n}/{part}"]})[""]) for part in ("bias", "norm")),
            ("new", RNG.standard_normal(30, np.float32)),
            ("factor", EARLIER[f"{n}/factor"]),
        ]
    },
    "another order": dict(reversed(some_changed(EARLIER).items())),
    "other sizes": {name: value[:-1] for name, value in EARLIER.items()},
    "other types": {name: value.astype("float16") for name, value in EARLIER.items()},
    "types in turn": {
        name: some_changed({"": value})[""].astype(("f4", "f2")[n % 2])
        for n, (name, value) in enumerate(EARLIER.items())
    },
    "one left": {"4/bias": EARLIER["4/bias"]},
}


def write_alone(path: str, archive: str) -> None:
    """Write an archive of a tensor file in which each tensor is a segment, as earlier writers did."""
    with ArchiveWriter(archive) as writer, closing(plan_file(path, FileSource(open(path, "rb"), name=path))) as plan:
        assert len(writer.add(plan).segments) == len(plan.tensors)


@pytest.mark.parametrize("known_as", ["path", "dictionary", "each alone"])
@pytest.mark.parametrize("change", LATER)
def test_small_tensors_of_a_group_are_a_base_in_every_form(change, known_as, folder):
    later = LATER[change]
    save_file(EARLIER, "earlier.gc")
    Path("earlier.safetensors").write_bytes(safetensors_save(EARLIER))
    write_alone("earlier.safetensors", "alone.gc")
    bases: dict[str, Any] = {"path": "earlier.gc", "dictionary": EARLIER, "each alone": "alone.gc"}
    save_file(later, "later.gc", base=bases[known_as])
    for base in bases.values():
        loaded = load_file("later.gc", base=base)
        assert loaded.keys() == later.keys() and all(same(loaded[name], value) for name, value in later.items())
        one = load_file("later.gc", base=base, names=["4/bias"])["4/bias"]
        assert same(one, later["4/bias"])
    save_file(later, "whole.gc")
    assert Path("later.gc").stat().st_size <= Path("whole.gc").stat().st_size + 300  # the index names the base


def test_the_difference_of_small_tensors_is_in_few_segments_and_a_fraction_of_the_room(folder):
    earlier = layers(40)
    later = some_changed(earlier, 0.01)
    save_file(earlier, "earlier.gc")
    save_file(later, "later.gc", base="earlier.gc")
    with ArchiveReader("later.gc") as archive, ArchiveReader("earlier.gc") as base:
        segments = archive.files[0].segments
        assert [segment.base for segment in segments] == [segment.hash for segment in base.files[0].segments]
    alone = sum(len(gcodec.encode(later[name], base=value)) for name, value in earlier.items())
    assert len(segments) == 3 and sum(segment.stored for segment in segments) < 0.3 * alone


def test_a_base_of_other_values_is_refused(folder):
    save_file(EARLIER, "earlier.gc")
    save_file(LATER["a few values changed"], "later.gc", base="earlier.gc")
    other = EARLIER | {"3/bias": EARLIER["3/bias"] + np.float32(1)}
    with pytest.raises(GcodecError, match=r"base"):
        load_file("later.gc", base=other)
    save_file(other, "other.gc")
    with pytest.raises(Unsupported, match=r"against a base, .* of other values than .*other"):
        load_file("later.gc", base="other.gc")


def test_lists_and_descriptions_have_every_tensor(folder, capsys):
    tensors = {"large": RNG.standard_normal(40_000, np.float32), **layers(5)}
    save_file(tensors, "x.gc")
    for command in (("decompress", "--list"), ("inspect",)):
        run(*command, "x.gc", "--json")
        [found] = json.loads(capsys.readouterr().out)
        [file] = found["files"]
        rows = {row["name"]: row for row in file["tensors"]}
        assert list(rows) == list(tensors) and all(rows[n]["bytes"] == v.nbytes for n, v in tensors.items())
        small = [row["stored_bytes"] for row in rows.values() if "group" in row]
        assert len(small) == 15 and min(small) > 0 and sum(small) < file["stored_bytes"]
        run(*command, "x.gc")
        assert "4/factor" in capsys.readouterr().out


@pytest.mark.parametrize("by", ["decompress", "open", "get_slice"])
def test_taking_out_one_after_the_other_unpacks_each_group_once(by, folder, monkeypatch):
    tensors, unpacked, unpack = layers(5) | layers(3, "float16"), list[int](), ArchiveReader._unpacked
    save_file(tensors, "x.gc")
    with ArchiveReader("x.gc") as archive:
        n_chunks = sum(len(segment.chunks) for segment in archive.files[0].segments)

    def counted(self: ArchiveReader, item: Any) -> Any:
        unpacked.append(item.at)
        return unpack(self, item)

    monkeypatch.setattr(ArchiveReader, "_unpacked", counted)
    if by == "decompress":
        run("decompress", "x.gc", "--only", "*", "-o", "x.safetensors")
        found = safetensors_load(Path("x.safetensors").read_bytes())
    else:
        with gcodec.open("x.gc") as file:
            found = {
                name: file[name]
                if by == "open"
                else np.concatenate([file.get_slice(name)[:1], file.get_slice(name)[1:]])
                for name in file
            }
    assert found.keys() == tensors.keys() and all(same(found[name], value) for name, value in tensors.items())
    assert len(unpacked) == len(set(unpacked)) and len(unpacked) <= n_chunks + 1


def test_damage_names_the_group():
    data = bytearray(saved(layers(10)).getvalue())
    data[3000] ^= 1
    with pytest.raises(Corruption, match=r"0/bias \.\.\. 9/bias"):
        load_file(io.BytesIO(data))


@pytest.mark.parametrize("empty", [[], [0], [5, 6], [11]])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tensors_that_have_not_changed_cost_little_among_those_that_have(dtype, empty, folder):
    earlier = {f"{n}.weight": RNG.standard_normal(0 if n in empty else 4001).astype(dtype) for n in range(12)}
    later = {
        name: RNG.standard_normal(value.size).astype(dtype) if n % 2 else value
        for n, (name, value) in enumerate(earlier.items())
    }
    save_file(earlier, "earlier.gc")
    save_file(later, "later.gc", base="earlier.gc")
    loaded = load_file("later.gc", base=earlier)
    assert all(same(loaded[name], value) for name, value in later.items())
    with gcodec.open("later.gc", base="earlier.gc") as file:
        assert all(same(file[name], value) for name, value in later.items())
    with (
        ArchiveReader(saved({name: value for n, (name, value) in enumerate(later.items()) if n % 2})) as new,
        ArchiveReader("later.gc") as archive,
    ):
        assert archive.files[0].stored < 1.05 * new.files[0].stored


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"3/bias": RNG.standard_normal(299, np.float32)},
        {"3/bias": EARLIER["3/bias"].astype(np.float64)},
    ],
    ids=["not there", "of another size", "of another type"],
)
def test_a_base_that_lacks_a_tensor_of_a_group_is_refused_by_its_name(changed, folder):
    save_file(some_changed(EARLIER), "later.gc", base=EARLIER)
    base = {name: value for name, value in EARLIER.items() if name != "3/bias"} | changed
    with pytest.raises(Unsupported, match=r"0/bias \.\.\. 9/bias: .* has no tensor '3/bias' of 1200 bytes of float32"):
        load_file("later.gc", base=base)


def test_a_limit_that_a_group_is_above_names_the_group(folder):
    save_file(layers(10), "x.gc")
    with (
        gcodec.open("x.gc", max_output_bytes=2000) as file,
        pytest.raises(LimitExceeded, match=r"0/bias \.\.\. 9/bias: 12000 bytes are above the limit of 2000"),
    ):
        file["3/bias"]
