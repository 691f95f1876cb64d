"""Checkpoints of torch.distributed.checkpoint: saved by some ranks, loaded by others, as archives and as a series."""

from __future__ import annotations

import json
import pickle
import secrets
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed.checkpoint")

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.testing._internal.two_tensor import TwoTensor

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.checkpoints import Checkpointer, StepFolder
from gcodec.errors import CheckpointWarning, PeerError
from gcodec.integrations.torch_checkpoint import (
    CheckpointReader,
    CheckpointWriter,
    SeriesReader,
    SeriesWriter,
    steps_in_series,
)
from tests.integrations import torch_checkpoint_cases as cases
from tests.support.rank_fixtures import ranks_of
from tests.support.ranks import agreed

pair = ranks_of(2)
three = ranks_of(3)
# Saving in one process is what torch warns about.
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is (disabled|unavailable):UserWarning", "ignore:TypedStorage is deprecated:UserWarning"
)


def check_rest(rest, step):
    assert rest["step"] == step and rest["name"] == "run" and rest["list"][1] == {"x": step / 3}
    assert rest["list"][0].item() == step
    assert torch.equal(rest["whole"], torch.arange(step + 7.0)[:7].half())


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_what_some_ranks_saved_is_loaded_by_as_many_and_by_others(pair, three, tmp_path, asynchronous):
    saved = agreed(three.run(cases.save, folder=tmp_path / "a", asynchronous=asynchronous))
    names = sorted(path.name[:10] for path in (tmp_path / "a").iterdir())
    assert names == ["checkpoint", "rank-00000", "rank-00001", "rank-00002"]
    for ranks in (three, pair):
        for found, rest in ranks.run(cases.load, folder=tmp_path / "a"):
            assert found == saved
            check_rest(rest, 2)


def test_the_steps_of_a_series_are_differences_and_come_back_in_any_sharding(pair, three, tmp_path):
    saved = agreed(three.run(cases.save_series, folder=tmp_path, steps=[0, 10, 20, 30], full_every=3))
    assert steps_in_series(tmp_path) == [0, 10, 20, 30]
    bases = [info.base for info in StepFolder(tmp_path / "rank-00001").overview()]
    assert bases == [None, 0, 10, None]
    for ranks in (three, pair):
        expected = list(zip([saved[1], saved[2], saved[0], saved[3]], [10, 20, 0, 30], strict=True))
        for found in ranks.run(cases.load_series, folder=tmp_path, steps=[10, 20, 0, None]):
            assert found == expected


def test_old_steps_of_a_series_are_deleted_also_those_of_ranks_that_are_no_more(pair, three, tmp_path):
    three.run(cases.save_series, folder=tmp_path, steps=[1, 2], keep_last=2)
    saved = agreed(pair.run(cases.save_series, folder=tmp_path, steps=[3, 4, 5, 6], keep_last=2, full_every=8))
    assert steps_in_series(tmp_path) == [4, 5, 6]  # two, and the one that was saved last
    assert [StepFolder(tmp_path / f"rank-{rank:05d}").steps() for rank in range(3)] == [[4, 5, 6], [4, 5, 6], []]
    found = pair.run(cases.load_series, folder=tmp_path, steps=[4, 5, 6])
    assert agreed(found) == list(zip(saved[1:], [4, 5, 6], strict=True))


@pytest.mark.parametrize("owner", [0, 1, None])
def test_old_steps_of_a_series_are_deleted_also_where_a_rank_has_nothing_to_save(pair, tmp_path, owner):
    pair.run(cases.save_series_of_one_rank, folder=tmp_path, steps=[1, 2, 3, 4], owner=owner, keep_last=1)
    assert steps_in_series(tmp_path) == [3, 4]  # one, and the one that was saved last
    found = [StepFolder(tmp_path / f"rank-{rank:05d}").steps() for rank in range(2)]
    assert found == [[3, 4] if rank == owner else [] for rank in range(2)]


def test_a_series_keeps_what_it_saves_below_the_steps_of_an_earlier_run(tmp_path):
    def save(writer, *steps):
        for step in steps:
            dcp.save(state_of(step), storage_writer=writer, checkpoint_id=str(step))

    save(SeriesWriter(tmp_path, keep_last=2), 100, 200, 300)
    with pytest.warns(CheckpointWarning, match="has steps 100 to 300 of an earlier run, above step 9"):
        save(SeriesWriter(tmp_path), 9)
    again = SeriesWriter(tmp_path, keep_last=2)
    with pytest.warns(CheckpointWarning, match="has steps 100 to 300 of an earlier run, above step 10"):
        save(again, 10)
    save(again, 20, 30, 40)
    assert steps_in_series(tmp_path) == StepFolder(tmp_path / "rank-00000").steps() == [20, 30, 40, 100, 200, 300]
    for step in (20, 300):
        expected = state_of(step)
        found = {name: torch.zeros_like(value) for name, value in expected.items()}
        dcp.load(found, storage_reader=SeriesReader(tmp_path), checkpoint_id=str(step))
        assert all(same(found[name], value) for name, value in expected.items())
    save(again, 110, 120)
    assert steps_in_series(tmp_path) == StepFolder(tmp_path / "rank-00000").steps() == [40, 110, 120, 200, 300]


def test_a_step_is_saved_though_a_damaged_one_keeps_old_steps_from_being_deleted(tmp_path):
    values = torch.randn(100, 100)
    writer = SeriesWriter(tmp_path, keep_last=2)

    def save(step):
        dcp.save({"x": values + step * 2.0**-12}, storage_writer=writer, checkpoint_id=str(step))

    for step in (1, 2, 3):
        save(step)
    path = tmp_path / "rank-00000" / "step-00000002.gc"
    assert StepFolder(path.parent).info(2).base == 1
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with (
        pytest.warns(CheckpointWarning, match="is saved whole, for step 3 cannot be its base"),
        pytest.warns(CheckpointWarning, match="step 4 is being saved, but old steps could not be deleted: step 2"),
    ):
        save(4)
    with pytest.warns(CheckpointWarning, match="step 5 is being saved"):
        save(5)
    for step in (6, 7):
        save(step)
    assert steps_in_series(tmp_path) == StepFolder(path.parent).steps() == [5, 6, 7]
    for step in (5, 6, 7):
        found = {"x": torch.zeros(100, 100)}
        dcp.load(found, storage_reader=SeriesReader(tmp_path), checkpoint_id=str(step))
        assert same(found["x"], values + step * 2.0**-12)


def test_steps_of_a_series_whose_indices_are_removed_can_be_saved_again(tmp_path):
    for step in (1, 2, 3, 4):
        dcp.save(state_of(step), storage_writer=SeriesWriter(tmp_path), checkpoint_id=str(step))
    with pytest.raises(dcp.CheckpointException, match=r"or remove step-00000002\.json first"):
        dcp.save(state_of(12), storage_writer=SeriesWriter(tmp_path), checkpoint_id="2")
    for step in (2, 3):  # 4 stays
        (tmp_path / f"step-{step:08d}.json").unlink()
    with pytest.warns(CheckpointWarning, match="step 4 of an earlier run"):
        dcp.save(state_of(12), storage_writer=SeriesWriter(tmp_path), checkpoint_id="2")
    assert steps_in_series(tmp_path) == [1, 2, 4]
    for step, seed in ((1, 1), (2, 12), (4, 4)):
        found = state_of(0)
        dcp.load(found, storage_reader=SeriesReader(tmp_path), checkpoint_id=str(step))
        assert all(same(value, state_of(seed)[name]) for name, value in found.items())


def test_a_reader_of_a_series_loads_the_step_that_is_the_last_at_each_load(tmp_path):
    """A reader does not stay at the step of its first load."""
    writer, reader = SeriesWriter(tmp_path), SeriesReader(tmp_path)
    for step, asked in ((1, None), (2, None), (3, 1), (4, None), (5, 5), (6, None)):
        dcp.save({"x": torch.tensor(step)}, storage_writer=writer, checkpoint_id=str(step))
        found = {"x": torch.tensor(0)}
        dcp.load(found, storage_reader=reader, checkpoint_id=None if asked is None else str(asked))
        assert found["x"].item() == reader.step == (asked or step)


@pytest.mark.parametrize("series", [True, False])
def test_ranks_that_read_before_and_after_a_save_do_not_load_parts_of_two_checkpoints(tmp_path, series):
    readers = []
    for step in (1, 2):
        writer = SeriesWriter(tmp_path) if series else CheckpointWriter(tmp_path)
        dcp.save({"x": torch.tensor(step)}, storage_writer=writer, checkpoint_id=str(step) if series else None)
        readers += [SeriesReader(tmp_path) if series else CheckpointReader(tmp_path) for _ in range(2)]
        for reader in readers[-2:]:
            reader.read_metadata()
    plans = [reader.prepare_local_plan(dcp.LoadPlan([])) for reader in readers]
    for some in (plans[:2], plans[2:]):
        assert readers[0].prepare_global_plan(some) == some
    words = "rank 0 has read .*1.json and rank 2 .*2.json" if series else "rank 0 has read checkpoint.json and rank 2"
    with pytest.raises(PeerError, match=words):
        readers[0].prepare_global_plan(plans)


@pytest.mark.parametrize("series", [True, False])
def test_a_save_within_which_the_writer_saves_the_next_step_keeps_its_own(tmp_path, series):
    """Steps that overlapped, as with async_save and no wait between, were saved one under the name of the other."""

    class Planner(dcp.DefaultSavePlanner):
        """While the first step is read, has another thread save the second."""

        def resolve_data(self, write_item):
            pool.submit(save, 2, dcp.DefaultSavePlanner()).result()
            return super().resolve_data(write_item)

    def name_of(step):
        return str(step) if series else tmp_path / str(step)

    def save(step, planner):
        dcp.save({"x": torch.tensor(step)}, storage_writer=writer, planner=planner, checkpoint_id=name_of(step))

    writer = SeriesWriter(tmp_path, keep_last=5) if series else CheckpointWriter()
    writer = pickle.loads(pickle.dumps(writer))  # as async_save does where it saves in another process
    with ThreadPoolExecutor(1) as pool:
        save(1, Planner())
    for step in (1, 2):
        reader = SeriesReader(tmp_path) if series else CheckpointReader()
        found = {"x": torch.tensor(0)}
        dcp.load(found, storage_reader=reader, checkpoint_id=name_of(step))
        assert found["x"].item() == step


def test_a_step_that_a_rank_could_not_write_is_not_there_and_can_be_saved_again(pair, tmp_path):
    pair.run(cases.save_series, folder=tmp_path, steps=[1, 2])
    saved = agreed(pair.run(cases.die_while_saving, folder=tmp_path, step=3))
    assert steps_in_series(tmp_path) == [1, 2, 3]
    assert agreed(pair.run(cases.load_series, folder=tmp_path, steps=[None])) == [(saved, 3)]


def test_damaged_missing_and_exchanged_archives_are_named(pair, tmp_path):
    pair.run(cases.save, folder=tmp_path / "a")
    pair.run(cases.save, folder=tmp_path / "b", asynchronous=True)
    archive, index = next((tmp_path / "a").glob("rank-00001*")), tmp_path / "a" / "checkpoint.json"
    whole, text = archive.read_bytes(), index.read_bytes()

    def fails(what):
        found = pair.run(cases.load_failing, folder=tmp_path / "a")
        assert all(what in error for error in found), found

    middle = len(whole) // 2
    archive.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    fails("rank-00001")
    archive.write_bytes(next((tmp_path / "b").glob("rank-00000*")).read_bytes())
    fails("rank-00001")
    archive.unlink()
    fails("rank-00001")
    archive.write_bytes(whole)
    index.write_bytes(text.replace(b'"size":[', b'"size":[1,', 1))
    fails("checkpoint.json")


# In one process, without a process group

DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.int64,
    torch.bool,
    torch.uint8,
    torch.complex64,
    torch.complex128,
]


def state_of(seed=0):
    """A state of many kinds of tensors."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(40, 30, generator=random)
    state = {str(dtype): values.to(dtype) for dtype in DTYPES if not dtype.is_complex}
    state |= {str(dtype): torch.complex(values, values).to(dtype) for dtype in DTYPES if dtype.is_complex}
    state |= {
        "transposed": values.T,
        "strided": values[::3, 1::2],
        "none": values[:0],
        "scalar": values[0, 0],
        "conjugate": torch.complex(values, values).conj(),
        "parameter": torch.nn.Parameter(values.clone()),
    }
    state["tied"] = state["parameter"]
    return state


def same(one, other):
    """Whether two tensors have the same type, shape and bits."""
    one, other = (item.detach().resolve_conj().resolve_neg().contiguous().reshape(-1) for item in (one, other))
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_tensors_of_every_kind_are_kept(tmp_path):
    state = state_of()
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path))
    found = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp.load(found, storage_reader=CheckpointReader(), checkpoint_id=tmp_path)
    assert all(same(found[name], state[name]) for name in state)


@pytest.mark.filterwarnings("ignore::UserWarning")  # CSR is in beta, quantized tensors are to go
@pytest.mark.parametrize(
    ("make", "dense"),
    [
        (lambda x: x.to_sparse(), lambda x: x.to_dense()),
        (lambda x: x.to_sparse_csr(), lambda x: x.to_dense()),
        (lambda x: torch.quantize_per_tensor(x, 0.25, 3, torch.qint8), lambda x: x.dequantize()),
    ],
    ids=["sparse", "sparse rows", "quantized"],
)
def test_tensors_that_are_not_dense_are_loaded_as_they_were_saved(tmp_path, make, dense):
    """Sparse ones were saved, and could not be loaded."""
    dcp.save({"x": make(torch.eye(5) * 0.5)}, storage_writer=CheckpointWriter(tmp_path))
    found = {"x": make(torch.eye(5))}
    dcp.load(found, storage_reader=CheckpointReader(tmp_path))
    assert torch.equal(dense(found["x"]), torch.eye(5) * 0.5)


def test_tensors_that_are_made_of_others_are_loaded_as_they_were_saved(tmp_path):
    """As quantized weights of torchao are. They could not be saved."""
    dcp.save({"x": TwoTensor(torch.eye(5), torch.ones(5, 5))}, storage_writer=CheckpointWriter(tmp_path))
    found = {"x": TwoTensor(torch.zeros(5, 5), torch.zeros(5, 5))}
    with torch.serialization.safe_globals([TwoTensor]):
        dcp.load(found, storage_reader=CheckpointReader(tmp_path))
    assert torch.equal(found["x"].a, torch.eye(5)) and torch.equal(found["x"].b, torch.ones(5, 5))


def test_saving_again_replaces_a_checkpoint_and_leaves_nothing_of_the_old_one(tmp_path):
    for seed in (1, 2):
        dcp.save(state_of(seed), storage_writer=CheckpointWriter(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    found = {"transposed": torch.zeros(30, 40)}  # a part of the state
    dcp.load(found, storage_reader=CheckpointReader(tmp_path))
    assert same(found["transposed"], state_of(2)["transposed"])


@pytest.mark.skipif("enable_plan_caching" not in signature(DefaultSavePlanner).parameters, reason="needs torch 2.7")
def test_cached_plans_fit_states_that_change(tmp_path):
    planner = DefaultSavePlanner(enable_plan_caching=True, dedup_save_to_lowest_rank=True)
    for step in range(4):
        state = state_of(step) | ({"more": torch.ones(50 * step)} if step > 1 else {})
        dcp.save(state, storage_writer=CheckpointWriter(tmp_path / str(step)), planner=planner)
        found = {name: torch.zeros_like(value) for name, value in state.items()}
        dcp.load(found, storage_reader=CheckpointReader(tmp_path / str(step)))
        assert all(same(found[name], state[name]) for name in state)


def test_archives_and_series_are_those_of_gcodec(tmp_path):
    state = {"layer.weight": torch.randn(50, 40)}
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path / "a"))
    (archive,) = (tmp_path / "a").glob("*.gc")
    assert torch.equal(gcodec.load_file(archive)["layer.weight"], state["layer.weight"])
    dcp.save(state, storage_writer=SeriesWriter(tmp_path / "b"), checkpoint_id="5")
    assert torch.equal(Checkpointer(tmp_path / "b" / "rank-00000").load(5)["layer.weight"], state["layer.weight"])


@pytest.mark.parametrize("kind", ["archive", "series"])
def test_small_tensors_are_coded_together_and_read_once(kind, monkeypatch, tmp_path):
    generator, read, read_segments = torch.Generator().manual_seed(0), list[int](), ArchiveReader.segments_bytes
    state = {
        f"{name}{n}": torch.randn(64, generator=generator).to(dtype)
        for name, dtype in (("bias", torch.float32), ("norm", torch.bfloat16))
        for n in range(30)
    }
    for step in (1, 2):
        for value in state.values():
            value[7] += 1
        writer = CheckpointWriter(tmp_path) if kind == "archive" else SeriesWriter(tmp_path, full_every=9)
        dcp.save(state, storage_writer=writer, **({} if kind == "archive" else {"checkpoint_id": str(step)}))
    newest = next(tmp_path.glob("*.gc")) if kind == "archive" else tmp_path / "rank-00000/step-00000002.gc"
    assert newest.stat().st_size < (11_000 if kind == "archive" else 2400)  # the values alone are 11,520

    def counted(self, wanted):
        read.extend(tensor.segment for _, tensor in wanted)
        return read_segments(self, wanted)

    monkeypatch.setattr(ArchiveReader, "segments_bytes", counted)
    found = {name: torch.zeros_like(state[name]) for name in sorted(state, key=lambda name: name[::-1])}
    reader = CheckpointReader(tmp_path) if kind == "archive" else SeriesReader(tmp_path)
    dcp.load(found, storage_reader=reader)
    assert all(same(found[name], value) for name, value in state.items())
    assert len(read) == len(set(read))


def test_checkpoints_at_urls_are_saved_replaced_and_loaded_and_damage_is_named():
    fsspec = pytest.importorskip("fsspec")
    url, memory = f"memory://{secrets.token_hex(4)}/run", fsspec.filesystem("memory")

    def names():
        return sorted(path.rpartition("/")[2] for path in memory.ls(url, detail=False))

    memory.pipe_file(f"{url}/.rank-00000-89abcdef.gc.0123abcd.partial", b"left by a process that was killed")
    for seed in (1, 2):
        dcp.save(state_of(seed), storage_writer=CheckpointWriter(url))
        assert [name[:10] for name in names()] == ["checkpoint", "rank-00000"]
    found = {name: torch.zeros_like(value) for name, value in state_of(2).items()}
    dcp.load(found, storage_reader=CheckpointReader(), checkpoint_id=url)
    assert all(same(found[name], value) for name, value in state_of(2).items())
    archive = f"{url}/{names()[1]}"
    assert torch.equal(gcodec.load_file(archive)["strided"], state_of(2)["strided"])
    data = bytearray(memory.cat_file(archive))
    data[len(data) // 2] ^= 1
    memory.pipe_file(archive, bytes(data))
    with pytest.raises(dcp.CheckpointException, match="rank-00000"):
        dcp.load(found, storage_reader=CheckpointReader(url))
    memory.rm_file(f"{url}/checkpoint.json")
    with pytest.raises(FileNotFoundError, match=f"{url}/checkpoint.json"):
        CheckpointReader(url).read_metadata()


def test_where_a_checkpoint_is_missing_the_error_says_what_is_there(tmp_path):
    state = state_of(1)
    dcp.save(state, checkpoint_id=tmp_path / "torch")
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path / "one"))
    for step in (3, 5):
        dcp.save(state, storage_writer=SeriesWriter(tmp_path / "series"), checkpoint_id=str(step))
    (tmp_path / "empty").mkdir()
    for reader, folder, said in [
        (CheckpointReader, "torch", "torch/checkpoint.json: no such file; .* torch's own storage, .* FileSystemReader"),
        (SeriesReader, "torch", "torch: no complete step; .* torch's own storage, which FileSystemReader loads"),
        (SeriesReader, "one", "one: no complete step; .* no series, which CheckpointReader loads"),
        (CheckpointReader, "series", "series of 2 complete steps, from 3 to 5, which SeriesReader loads"),
        (CheckpointReader, "empty", "there is no complete checkpoint in this folder"),
        (CheckpointReader, "none", "none/checkpoint.json: no such file; there is no complete checkpoint"),
    ]:
        with pytest.raises(FileNotFoundError, match=said):
            reader(tmp_path / folder).read_metadata()
        with pytest.raises(dcp.CheckpointException, match=said):
            dcp.load(state, storage_reader=reader(tmp_path / folder))
    with pytest.raises(dcp.CheckpointException, match=r"step-00000004.json: no such file; .* from 3 to 5"):
        dcp.load(state, storage_reader=SeriesReader(tmp_path / "series"), checkpoint_id="4")


def test_a_save_to_a_url_that_fails_leaves_the_earlier_checkpoint(monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    url = f"memory://{secrets.token_hex(4)}/run"
    dcp.save(state_of(1), storage_writer=CheckpointWriter(url))

    def refuse(self, *args, **kwargs):
        raise PermissionError("no")

    with monkeypatch.context() as patch:
        patch.setattr(type(memory), "put_file", refuse)
        with pytest.raises(dcp.CheckpointException, match=f"Permission denied: '{url}"):
            dcp.save(state_of(2), storage_writer=CheckpointWriter(url))
    found = {"strided": torch.zeros_like(state_of(1)["strided"])}
    dcp.load(found, storage_reader=CheckpointReader(url))
    assert same(found["strided"], state_of(1)["strided"])


def test_a_series_at_a_url_is_saved_pruned_and_loaded():
    memory = pytest.importorskip("fsspec").filesystem("memory")
    url = f"memory://{secrets.token_hex(4)}/run"
    writer = SeriesWriter(url, full_every=3, keep_last=3)
    for step in range(1, 6):
        dcp.save(state_of(step), storage_writer=writer, checkpoint_id=str(step))
    assert steps_in_series(url) == [2, 3, 4, 5]
    assert Checkpointer(f"{url}/rank-00000").steps() == [2, 3, 4, 5]
    for checkpoint_id in ("3", "5", None):
        expected = state_of(int(checkpoint_id or 5))
        found = {name: torch.zeros_like(value) for name, value in expected.items()}
        dcp.load(found, storage_reader=SeriesReader(url), checkpoint_id=checkpoint_id)
        assert all(same(found[name], value) for name, value in expected.items())
    with pytest.raises(gcodec.InvalidArgument, match="step 5 is there already"):
        writer.set_up_storage_writer(True)
    memory.rm_file(f"{url}/rank-00000/step-00000005.gc")
    with pytest.raises(dcp.CheckpointException, match="has no step 5"):
        dcp.load(found, storage_reader=SeriesReader(url))


def test_an_index_that_cannot_be_read_is_not_read_again(tmp_path):
    """A rank for which torch's second try succeeds left the collectives that the others waited in."""

    class Reader(CheckpointReader):
        """Fails to read the index, the first time."""

        tries = 0

        def _folder(self):
            self.tries += 1
            if self.tries == 1:
                raise OSError("the server is busy")
            return super()._folder()

    dcp.save({"x": torch.ones(3)}, storage_writer=CheckpointWriter(tmp_path))
    reader = Reader(tmp_path)
    with pytest.raises(dcp.CheckpointException, match="the server is busy"):
        dcp.load({"x": torch.zeros(3)}, storage_reader=reader)
    assert reader.tries == 1


def test_senseless_uses_are_refused(tmp_path):
    state = {"x": torch.ones(3)}
    for arguments in ({"full_every": 0}, {"keep_last": 0}, {"threads": 0}):
        with pytest.raises(gcodec.InvalidArgument):
            SeriesWriter(tmp_path, **arguments)
    for writer, step, words in [
        (CheckpointWriter(), None, "needs a folder"),
        (SeriesWriter(tmp_path), None, "needs the step"),
        (SeriesWriter(tmp_path), "last", "must be a step's number"),
        (SeriesWriter(tmp_path), "1_0", "must be a step's number"),
        (SeriesWriter(tmp_path), "9" * 5000, "must be a step's number"),
    ]:
        with pytest.raises((dcp.CheckpointException, gcodec.InvalidArgument), match=words):
            dcp.save(state, storage_writer=writer, checkpoint_id=step)
    dcp.save(state, storage_writer=SeriesWriter(tmp_path), checkpoint_id="1")
    with pytest.raises(dcp.CheckpointException, match="is there already"):
        dcp.save(state, storage_writer=SeriesWriter(tmp_path), checkpoint_id="1")
    with pytest.raises(dcp.CheckpointException, match="no complete checkpoint"):
        dcp.load(state, storage_reader=SeriesReader(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda root: root.update(format="gcodec-torch-checkpoint-9"),
        lambda root: root.update(hash="0" * 16),
        lambda root: root.pop("content"),
        lambda root: root["content"]["items"][0].__setitem__(3, "../elsewhere"),
        lambda root: root["content"]["tensors"]["x"].update(size=[-3]),
        lambda root: root["content"]["tensors"]["x"].update(dtype="load"),
    ],
)
def test_damaged_indexes_are_errors(tmp_path, spoil):
    from gcodec.integrations.checkpoint_index import _hash_of

    dcp.save({"x": torch.ones(3)}, storage_writer=CheckpointWriter(tmp_path))
    path = Path(tmp_path / "checkpoint.json")
    root = json.loads(path.read_text())
    before = root["hash"]
    spoil(root)
    if root.get("hash") == before and "content" in root:
        root["hash"] = _hash_of(root["content"])  # so that only what is spoilt is wrong
    path.write_text(json.dumps(root))
    with pytest.raises((gcodec.Corruption, gcodec.Unsupported), match=r"checkpoint\.json"):
        CheckpointReader(tmp_path).read_metadata()
