"""Objects saved and loaded: bit for bit, shared memory shared, nothing executed, nothing left behind."""

from __future__ import annotations

import io
import json
import math
import os
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.archive import ArchiveReader, ArchiveWriter
from gcodec.archive.structure import flatten, rebuild
from gcodec.cli import main
from gcodec.errors import Corruption, InvalidArgument, LimitExceeded, Unsupported
from tests.support.archive_maker import object_archive
from tests.support.same import assert_same

torch = pytest.importorskip("torch")


def trained(steps: int = 2) -> dict[str, Any]:
    """Return a small checkpoint: model, optimizer, counts."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.arange(50)).square().mean().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": steps, "name": "tied"}


def through(obj: Any, **options: Any) -> Any:
    """Return an object saved to a stream and loaded from it."""
    stream = io.BytesIO()
    gcodec.save(obj, stream)
    stream.seek(0)
    return gcodec.load(stream, **options)


OBJECTS: list[Any] = [
    trained(),
    OrderedDict(a=torch.randn(3).bfloat16(), b=[np.arange(4), (1, "x", b"\0", None, True, 2.5, 1j)]),
    {"size": torch.Size([2, 3]), "type": torch.bfloat16, "device": torch.device("cpu"), 3: {4: {5}}},
    torch.arange(5),
    [torch.randn(4, 4).to(torch.float8_e4m3fn), torch.tensor(True), torch.zeros(0, 3)],
    (torch.randn(2, dtype=torch.cdouble), torch.randn(2, dtype=torch.cfloat)),
    {},
    None,
    7,
]


@pytest.mark.parametrize("number", range(len(OBJECTS)))
def test_objects_come_back_from_files_and_streams(number, tmp_path):
    gcodec.save(OBJECTS[number], tmp_path / "x.gc")
    assert_same(gcodec.load(tmp_path / "x.gc"), OBJECTS[number])
    assert_same(through(OBJECTS[number]), OBJECTS[number])
    assert [path.name for path in tmp_path.iterdir()] == ["x.gc"]


def big() -> Any:
    return torch.arange(600, dtype=torch.float32).reshape(20, 30)


SHARED = {
    "tied": lambda x: [x, x],
    "same memory": lambda x: [x, x.detach()],
    "reshaped": lambda x: [x.reshape(600), x, x.reshape(5, 4, 30)],
    "a row": lambda x: [x[3], x],
    "a column": lambda x: [x, x[:, 4]],
    "transposed": lambda x: [x.T, x],
    "transposed alone": lambda x: [x.T],
    "channels last": lambda x: [x.reshape(2, 10, 3, 10).permute(0, 3, 1, 2)],
    "overlapping rows": lambda x: [x[:10], x[5:]],
    "interleaved columns": lambda x: list(x.chunk(3, dim=1)),
    "steps": lambda x: [x.reshape(-1)[::3], x.reshape(-1)[1::3]],
    "one of several steps": lambda x: [x[:, ::7]],
    "expanded": lambda x: [x[0, :1].expand(8), x[1].expand(4, 30)],
    "two expanded": lambda x: [x[1].expand(4, 30), x[1]],
    "side by side": lambda x: [x[:10], x[10:]],
    "bytes of other types": lambda x: [x, x.view(torch.int32)],
    "complex": lambda x: [y := torch.view_as_complex(x.double().reshape(300, 2)), y[10:20], y[5:15], y.conj()],
    "parameter": lambda x: [torch.nn.Parameter(x), x],
    "negative": lambda x: [x, torch._neg_view(x)],
    "empty": lambda x: [x, x[:0], x[:, 3:3]],
    "scalar of it": lambda x: [x[1, 2], x],
}


def overlaps(tensors: list[Any]) -> list[list[bool]]:
    """Return which of the tensors share an element of memory, for any two of them."""

    def elements(tensor: Any) -> set[int]:
        if not tensor.numel() or tensor.is_neg() or tensor.is_conj():
            return set()
        steps = [np.arange(n) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)]
        places = sum(np.ix_(*steps)) if steps else np.zeros(())
        size = tensor.element_size()
        return {tensor.data_ptr() + size * int(place) for place in np.asarray(places).reshape(-1)}

    sets = [elements(tensor) for tensor in tensors]
    return [
        [i != j and a.dtype == b.dtype and not sets[i].isdisjoint(sets[j]) for j, b in enumerate(tensors)]
        for i, a in enumerate(tensors)
    ]


@pytest.mark.parametrize("name", SHARED)
def test_memory_is_shared_after_loading_where_it_was_before(name):
    tensors = SHARED[name](big())
    found = through({"tensors": tensors})["tensors"]
    assert overlaps(found) == overlaps(tensors)
    for one, other in zip(found, tensors, strict=True):
        assert_same(one, other.detach().resolve_neg().resolve_conj())
    for one, other in zip(through(tensors, like="numpy"), tensors, strict=True):
        assert np.array_equal(one, other.detach().resolve_neg().resolve_conj().numpy())


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("tied", 600),
        ("reshaped", 600),
        ("overlapping rows", 600),
        ("transposed", 600),
        ("side by side", 600),
        ("expanded", 31),
        ("one of several steps", 100),
    ],
)
def test_shared_memory_is_stored_once(name, size):
    assert sum(leaf.size for leaf in flatten(SHARED[name](big())).leaves.values()) == 4 * size


def test_strides_are_kept_where_no_gaps_are_stored():
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert through(image).stride() == image.stride()
    assert through(image[:, :, ::2]).shape == (2, 3, 2, 5)


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(()).expand(1),
        torch.ones(1, dtype=torch.float64).as_strided((1, 1), (0, 7)),
        torch.ones(0).expand(3, 0),
        torch.full((1, 1), 2.0, dtype=torch.bfloat16).T,
    ],
    ids=str,
)
def test_tensors_of_one_value_and_any_step_come_back_however_often(value):
    for _ in range(3):
        file = io.BytesIO()
        gcodec.save({"x": value}, file)
        file.seek(0)
        found = gcodec.load(file)["x"]
        assert found.shape == value.shape and torch.equal(found, value)
        value = found


@pytest.mark.parametrize(
    "view",
    [
        [[3], [1], 8],
        [[3], [5], 0],
        [[3], [1], -1],
        [[3], [-1], 5],
        [[3, 2], [1], 0],
        [[3], [1]],
        [[0], [1], 0],
        [[True], [1], 0],
        [[2.0], [1], 0],
        "view",
        [[1 << 40], [1 << 40], 0],
        [[1] * 65, [1] * 65, 0],
        [None, None, 0],
    ],
)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_views_beyond_their_tensor_are_refused(view, kind):
    text = json.dumps({"version": 1, "state": {"torch": "x", "view": view}}).encode()
    stored = torch.zeros(10) if kind == "torch" else np.zeros(10)
    with pytest.raises(Corruption, match="malformed"):
        rebuild(text, lambda name, wanted: stored)


def test_a_base_makes_differences_and_is_needed_again(tmp_path):
    old, new = trained(3), trained(4)
    gcodec.save(old, tmp_path / "old.gc")
    for base in (old, tmp_path / "old.gc"):
        gcodec.save(new, tmp_path / "new.gc", base=base)
        with pytest.raises(Unsupported, match="base"):
            gcodec.load(tmp_path / "new.gc")
        for again in (old, tmp_path / "old.gc"):
            assert_same(gcodec.load(tmp_path / "new.gc", base=again), new)
    with ArchiveReader(tmp_path / "old.gc") as archive:
        assert_same(gcodec.load(tmp_path / "new.gc", base=archive), new)
    with pytest.raises(InvalidArgument, match="is the base"):
        gcodec.save(new, tmp_path / "old.gc", base=tmp_path / "old.gc")


@pytest.mark.parametrize("sequence", [list, tuple])
def test_a_chain_of_bases_is_a_list_of_paths(sequence, tmp_path):
    states = [trained(number) for number in range(3, 6)]
    paths = [tmp_path / f"{number}.gc" for number in range(3)]
    gcodec.save(states[0], paths[0])
    gcodec.save(states[1], paths[1], base=sequence([paths[0]]))
    gcodec.save(states[2], paths[2], base=sequence([str(paths[1]), paths[0]]))
    assert paths[2].stat().st_size < paths[0].stat().st_size
    assert_same(gcodec.load(paths[2], base=sequence([paths[1], paths[0]])), states[2])
    assert gcodec.load_file(paths[2], base=sequence([paths[1], paths[0]])).keys()
    with pytest.raises(Unsupported, match=r"base, 0\.gc, which .*: base= in Python, --base on the command line; for a"):
        gcodec.load(paths[2], base=paths[1])
    for path in paths[:2]:
        with pytest.raises(InvalidArgument, match="is the base"):
            gcodec.save(states[2], path, base=sequence([paths[1], paths[0]]))
    with pytest.raises(gcodec.GcodecError, match="nowhere: no such file"):
        gcodec.load(paths[2], base=sequence([paths[1], tmp_path / "nowhere"]))


@pytest.mark.parametrize("base", [5, {}, [], (), {"epoch": 3}, [{"lr": 0.1}, "x.gc"]], ids=str)
def test_a_base_without_tensors_is_refused(base, tmp_path):
    gcodec.save(trained(), tmp_path / "x.gc")
    for call in (
        lambda: gcodec.save(trained(), tmp_path / "y.gc", base=base),
        lambda: gcodec.load(tmp_path / "x.gc", base=base),
    ):
        with pytest.raises(InvalidArgument, match=r"base must hold tensors, .*; or for a chain a list of paths"):
            call()
    assert not (tmp_path / "y.gc").exists()


@pytest.mark.parametrize("base", [5, [], b"x.gc"], ids=str)
def test_a_base_of_a_dictionary_that_is_no_dictionary_is_refused(base, tmp_path):
    gcodec.save_file({"x": torch.ones(3)}, tmp_path / "x.gc")
    for call in (
        lambda: gcodec.save_file({"x": torch.ones(3)}, tmp_path / "y.gc", base=base),
        lambda: gcodec.load_file(tmp_path / "x.gc", base=base),
    ):
        with pytest.raises(InvalidArgument, match=f"base must hold tensors, but this {type(base).__name__} has none"):
            call()


def test_the_archive_is_an_ordinary_one(tmp_path, monkeypatch):
    from safetensors.torch import load_file

    monkeypatch.chdir(tmp_path)
    state = trained()
    gcodec.save(state, "last.pt.gc")
    assert main(["verify", "-q", "last.pt.gc"]) == main(["decompress", "-q", "last.pt.gc"]) == 0
    tensors = load_file("last.safetensors")
    assert_same(tensors["optimizer/state/0/exp_avg"], state["optimizer"]["state"][0]["exp_avg"])
    assert gcodec.load_file("last.pt.gc", names=["model/0.weight"])["model/0.weight"].equal(state["model"]["0.weight"])
    assert main(["compress", "-q", "last.safetensors"]) == 0
    assert_same(gcodec.load("last.safetensors.gc"), state)


@pytest.mark.parametrize(
    "compress",
    [
        lambda file, archive: gcodec.compress_file(file, archive),
        lambda file, archive: main(["compress", str(file), "-o", str(archive), "-q"]),
        lambda file, archive: main(["series", "add", str(archive.parent), str(file), "--step", "7", "-q"]),
    ],
)
def test_a_state_that_was_restored_and_compressed_again_is_read_as_before(compress, tmp_path):
    """Small tensors that others are views of, or that are pairs, are not put together with those beside them."""
    matrices = [torch.randn(30, 10, dtype=torch.float64) for _ in range(3)]
    state = {
        "first": torch.randn(3, dtype=torch.float64),
        "rows": [(m, m[2:5], m[:, ::3]) for m in matrices],
        "turned": [m[:7].clone().T for m in matrices],
        "pairs": [np.arange(5) + 1j, torch.ones(3, 2) * 1j],
        "last": [torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last) for _ in range(2)],
        "complex": [torch.full((3,), 2j, dtype=torch.complex128) for _ in range(2)],
    }
    gcodec.save(state, tmp_path / "state.gc")
    gcodec.decompress_file(tmp_path / "state.gc", tmp_path / "state.safetensors")
    again = tmp_path / "again" / "step-00000007.gc"
    again.parent.mkdir()
    compress(tmp_path / "state.safetensors", again)
    assert_same(gcodec.load(again), state)
    with gcodec.open(tmp_path / "state.gc") as one, gcodec.open(again) as other:
        assert one.keys() == other.keys()
        for name in one:
            assert_same(other[name], one[name])
            assert_same(other.get_slice(name)[1:], one.get_slice(name)[1:])


@pytest.mark.parametrize("read", [gcodec.load, gcodec.load_file, gcodec.open])
def test_a_state_that_another_program_took_a_tensor_from_names_file_and_tensor(read, tmp_path):
    gcodec.save({"model": {"w": torch.ones(300), "b": torch.ones(3)}, "step": 3}, tmp_path / "state.gc")
    tensors = {**gcodec.load_file(tmp_path / "state.gc", like="numpy")}
    with ArchiveReader(tmp_path / "state.gc") as archive:
        tensors["__structure__"] = np.frombuffer(flatten(gcodec.load(tmp_path / "state.gc")).text, np.uint8)
        assert {tensor.name for _, tensor in archive.tensors()} == tensors.keys()
    del tensors["model/b"]
    (tmp_path / "less.safetensors").write_bytes(pytest.importorskip("safetensors.numpy").save(tensors))
    gcodec.compress_file(tmp_path / "less.safetensors")
    with pytest.raises(Corruption, match=r"less\.safetensors\.gc: .* the file lacks the tensor 'model/b'"):
        read(tmp_path / "less.safetensors.gc")


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 2000, b'{"view": 3}', b'{"complex": [{}]}', b"\xff" * 9])
def test_a_file_with_a_tensor_named_as_the_structure_that_is_none_is_restored(text, tmp_path):
    header = json.dumps({"__structure__": {"dtype": "U8", "shape": [len(text)], "data_offsets": [0, len(text)]}})
    data = len(header).to_bytes(8, "little") + header.encode() + text
    (tmp_path / "a.safetensors").write_bytes(data)
    gcodec.compress_file(tmp_path / "a.safetensors")
    gcodec.decompress_file(tmp_path / "a.safetensors.gc", tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == data
    with pytest.raises(Corruption, match="structure of the state"):
        gcodec.open(tmp_path / "a.safetensors.gc")  # which leaves no file open


def test_the_archive_of_a_file_of_torch_save_is_loaded_as_torch_loads_it(tmp_path):
    state = trained()
    torch.save(state, tmp_path / "x.pt")
    assert main(["compress", "-q", str(tmp_path / "x.pt")]) == 0
    assert_same(gcodec.load(tmp_path / "x.pt.gc"), state)
    assert isinstance(gcodec.load(tmp_path / "x.pt.gc", like="numpy")["model/0.weight"], np.ndarray)


class Trap:
    """An object whose pickle would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("key", [1 << 8192, -(10**5000), (1, 1 << 70_000)], ids=["2^8192", "-10^5000", "a tuple"])
def test_integers_too_long_for_names_are_refused_as_keys(key):
    with pytest.raises(InvalidArgument, match="a: an integer that is a key must have at most 8192 bits to be saved"):
        gcodec.save({"a": {key: torch.ones(2)}}, io.BytesIO())
    stream, shorter = io.BytesIO(), {"a": {(1 << 8192) - 1: torch.ones(2)}}
    gcodec.save(shorter, stream)
    stream.seek(0)
    assert_same(gcodec.load(stream), shorter)


def test_nothing_is_executed(tmp_path):
    with pytest.raises(InvalidArgument, match=r"x/0: a .*Trap cannot be saved"):
        gcodec.save({"x": [Trap(tmp_path / "trap")]}, tmp_path / "y.gc")
    torch.save({"x": Trap(tmp_path / "trap"), "w": torch.ones(3)}, tmp_path / "x.pt")
    main(["compress", "-q", str(tmp_path / "x.pt")])
    with pytest.raises(gcodec.GcodecError, match="weights_only"):
        gcodec.load(tmp_path / "x.pt.gc")
    assert not (tmp_path / "trap").exists() and not (tmp_path / "y.gc").exists()


@pytest.mark.skipif(os.name != "posix", reason="no permission bits")
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path):
    file = tmp_path / "a.gc"
    gcodec.save({"a": 1}, file)
    for mode in (0o600, 0o664):
        file.chmod(mode)
        os.utime(file, ns=(10**18, 10**18))
        gcodec.save({"a": mode}, file)
        found = file.stat()
        assert gcodec.load(file) == {"a": mode}
        assert found.st_mode & 0o777 == mode and found.st_mtime_ns > 10**18


@pytest.mark.skipif(os.name != "posix", reason="links as on Unix")
def test_a_link_is_replaced_and_the_file_that_it_led_to_stays(tmp_path):
    gcodec.save({"a": 1}, tmp_path / "real.gc")
    (tmp_path / "link.gc").symlink_to("real.gc")
    gcodec.save({"a": 2}, tmp_path / "link.gc")
    assert gcodec.load(tmp_path / "real.gc") == {"a": 1} and gcodec.load(tmp_path / "link.gc") == {"a": 2}


@pytest.mark.parametrize("array", [np.zeros(2, np.longdouble), np.zeros(2, "f4,i4")], ids=["longdouble", "records"])
def test_an_array_of_a_type_that_files_lack_is_refused_by_place_and_type(array, tmp_path):
    if array.dtype == np.float64:
        pytest.skip("there is no longer type than float64 here")
    with pytest.raises(
        InvalidArgument,
        match=r"q: a tensor must be of bools, strings or dates, or of a type of numbers that \.safe.*"
        f"not of {array.dtype.str if array.dtype.fields is None else 'structured'}",
    ):
        gcodec.save({"q": array}, tmp_path / "x.gc")


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    gcodec.save({"a": 1}, tmp_path / "x.gc")
    with pytest.raises(InvalidArgument, match="q: a tensor must have values"):
        gcodec.save({"q": torch.ones(3, device="meta")}, tmp_path / "x.gc")
    assert gcodec.load(tmp_path / "x.gc") == {"a": 1} and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(OSError, match="missing"):
        gcodec.save({"a": 1}, tmp_path / "missing" / "x.gc")


@pytest.mark.parametrize("write", [gcodec.save, gcodec.save_file, lambda state, file: ArchiveWriter(file, force=True)])
@pytest.mark.parametrize("name", ["m.safetensors", "m.pt", "m.pth", "m.npz", "m.npy", "m.SAFETENSORS", "m.Pt"])
def test_no_archive_gets_the_name_of_a_tensor_file_which_others_would_read(write, name, tmp_path):
    state = {"w": torch.ones(3)}
    torch.save(state, tmp_path / name)
    before = (tmp_path / name).read_bytes()
    for file in (tmp_path / name, str(tmp_path / name), f"file://{tmp_path / name}", f"memory://{name}"):
        with pytest.raises(InvalidArgument, match=f"{name}: would be an archive under .* call it .*/{name}.gc$"):
            write(state, file)
    assert (tmp_path / name).read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    gcodec.save(state, tmp_path / f"{name}.gc")
    assert torch.equal(gcodec.load(tmp_path / f"{name}.gc")["w"], state["w"])


def test_strangers_archives_have_limits(tmp_path):
    gcodec.save({"x": torch.zeros(100_000)}, tmp_path / "x.gc")
    with pytest.raises(LimitExceeded):
        gcodec.load(tmp_path / "x.gc", max_output_bytes=1000)
    with pytest.raises(InvalidArgument, match="like"):
        gcodec.load(tmp_path / "x.gc", like="jax")


BIG_ENDIAN = {"numpy": "x", "order": ">"}


@pytest.mark.parametrize(
    ("node", "size"),
    [
        ({"numpy": "x", "view": [[1 << 28], [0], 0], "order": ">"}, 64),
        ([BIG_ENDIAN] * 100, 1 << 18),
        ({"tuple": [{"torch": "x", "order": ">"}] * 100}, 1 << 18),
    ],
    ids=["view", "repeated", "like"],
)
def test_copies_made_while_rebuilding_count_against_the_limit(node, size):
    """A view of one value, or many arrays of one memory, took gigabytes from an archive of 600 bytes."""
    data = object_archive(node, bytes(size))
    tracemalloc.start()
    with pytest.raises(LimitExceeded, match="tensor 'x': with its copy"):
        gcodec.load(io.BytesIO(data), like="numpy", max_output_bytes=1 << 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_arrays_in_big_endian_order_are_loaded_within_twice_their_size():
    array = np.arange(50_000, dtype=">f4")
    stream = io.BytesIO()
    gcodec.save({"a": array, "n": np.float64(1)}, stream)
    assert_same(gcodec.load(io.BytesIO(stream.getvalue()), max_output_bytes=410_000), {"a": array, "n": np.float64(1)})
    with pytest.raises(LimitExceeded):
        gcodec.load(io.BytesIO(stream.getvalue()), max_output_bytes=399_000)


def test_texts_of_any_length_are_no_numbers_that_may_be_repeated():
    data = object_archive([{"scalar": "x"}] * 1000, bytes(1 << 16), f"|V{1 << 16}", 1 << 16)
    with pytest.raises(LimitExceeded, match="tensor 'x': with its copy"):
        gcodec.load(io.BytesIO(data), max_output_bytes=1 << 20)


def test_a_state_that_no_memory_holds_is_a_clear_error():
    data = object_archive({"numpy": "x", "view": [[1 << 50], [0], 0], "order": ">"})
    with pytest.raises(LimitExceeded, match="there is no memory for the state"):
        gcodec.load(io.BytesIO(data))


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_views_of_a_tensor_with_steps_of_its_own_are_refused(kind):
    """Each view of such a tensor was one of a copy."""
    stored = np.broadcast_to(np.float32(0), (1000,))
    value = torch.zeros(1).expand(1000) if kind == "torch" else stored
    text = json.dumps({"version": 1, "state": {kind: "x", "view": [[1000], [1], 0]}}).encode()
    with pytest.raises(Corruption, match="row-major order"):
        rebuild(text, lambda name, wanted: value)


def test_damage_is_found_wherever_it_matters():
    state, stream = {"x": torch.randn(1000), "y": [1, "two"]}, io.BytesIO()
    gcodec.save(state, stream)
    data, n_refused = stream.getvalue(), 0
    for at in range(0, len(data), 41):
        try:
            found = gcodec.load(io.BytesIO(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]))
        except gcodec.GcodecError:
            n_refused += 1
        else:  # the header of the .safetensors file, which loading does not need
            assert_same(found, state)
    assert n_refused > len(data) / 41 * 0.9


def test_an_archive_of_several_files_is_no_object(tmp_path):
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.ones(3))
    main(["compress", "-q", str(tmp_path / "a.npy"), str(tmp_path / "b.npy"), "-o", str(tmp_path / "ab.gc")])
    with pytest.raises(Unsupported, match="2 files are in this archive"):
        gcodec.load(tmp_path / "ab.gc")


def test_the_file_in_the_archive_has_the_archives_name(tmp_path):
    names = {"ckpt-1.5.gc": "ckpt-1.5", "x.ckpt": "x", "x.pt.gc": "x", ".gc": "state", "a\\b.gc": "state"}
    for name, inside in names.items():
        gcodec.save([math.pi], tmp_path / name)
        with ArchiveReader(tmp_path / name) as archive:
            assert [entry.path for entry in archive.files] == [f"{inside}.safetensors"]
