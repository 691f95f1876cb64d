"""Nothing is silently uncompressed: whatever asks for compression sends fewer bytes, raises an error, or the log has a
line that says why not."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch.distributed._composable.replicate_with_fsdp")  # of torch 2.13, as other names of these cases

import torch
import torch.distributed as dist

from gcodec.distributed import CompressedGroup, GroupOptions, fsdp
from gcodec.distributed.collectives import Collectives
from gcodec.distributed.transport.gpu import gpu_transport_of, has_nccl
from gcodec.distributed.uncompressed import UncompressedBuckets
from tests.distributed import uncompressed_cases as cases
from tests.support.ranks import Ranks

SMALL = "below min_bytes=65536 bytes, where latency is all that counts (min_bytes=0 compresses them)"
COMPLEX = "bytes of complex numbers (floats that torch.view_as_complex turns into such numbers are compressed)"
VECTORS = (
    "bytes of tensors of fewer than 1024 values or of one dimension (a CompressionPlan with min_values=0, vectors=True"
)
OTHERS = ": compress_fsdp must come after the last fully_shard, and be the last to set a reduce-scatter"
MOVED = ": only sums and averages are, by all_reduce and reduce_scatter_single"

#: What the first rank logs about ways that leave something uncompressed; others log nothing.
LINES = {
    "DDP, complex": f"CompressedAllreduce: no gradients are compressed: 1608000 {COMPLEX}",
    "DDP, a complex layer": f"CompressedAllreduce: not all gradients are compressed: 321600 {COMPLEX}",
    "DDP, tiny": f"CompressedAllreduce: no gradients are compressed: 1440 bytes of buckets {SMALL}",
    "DDP, top-k": f"CompressedGradients: not all gradients are compressed: 4000 {VECTORS}",
    "DDP, top-k, complex": f"CompressedGradients: no gradients are compressed: 1608000 {COMPLEX}",
    "DDP, top-k, tiny": f"CompressedGradients: no gradients are compressed: 1440 {VECTORS}",
    "DDP, sparse gradients": "CompressedAllreduce: not all gradients are compressed: sparse tensors, which are never",
    "DDP, delayed parameters": "CompressedAllreduce: not compressed are the 6 parameters of delay_all_reduce_named",
    "DDP, hook not registered": "CompressedAllreduce: no gradients have come here in 8 steps of optimizers: register",
    "DDP, hook of one of two models": "CompressedAllreduce: no gradients have come here in 8 steps of optimizers: reg",
    "FSDP2, another model": "FSDP: no gradients have come here in 8 steps of optimizers: call compress_fsdp on the m",
    "FSDP1, process group": f"gcodec: not compressed are calls of allgather{MOVED}",
    "FSDP2, tiny": f"FSDP: no gradients are compressed: those of all modules are tensors {SMALL}",
    "FSDP2, another reduce-scatter after": "FSDP: not compressed are the gradients of layers.0, layers.1, layers.2"
    + OTHERS,
    "FSDP2, root after compress_fsdp": f"FSDP: not compressed are the gradients of model{OTHERS}",
    "group, tensor parallel": f"gcodec: not compressed are calls of scatter{MOVED}",
    "group, SimpleFSDP": f"gcodec: not compressed are calls of scatter{MOVED}",
    "group, DDP": f"gcodec: not compressed are calls of broadcast{MOVED}",
    "group, maximum": "gcodec: not compressed are other reductions than sums and averages",
    "group, scaled sum": "gcodec: not compressed are sums of scaled values, PREMUL_SUM (in FSDP2, set_force_sum_reduc",
    "group, integers": "gcodec: not compressed are values of int64: only float32, float64, float16 and bfloat16 are",
    "group, small": f"gcodec: not compressed are tensors {SMALL}",
    "group, sparse": "gcodec: not compressed are sparse tensors",
    "group, to one rank": f"gcodec: not compressed are calls of reduce{MOVED}",
    "group, list": f"gcodec: not compressed are calls of reduce_scatter{MOVED}",
    "group, all-gather": f"gcodec: not compressed are calls of allgather{MOVED}",
    "group, broadcast": f"gcodec: not compressed are calls of broadcast{MOVED}",
    "group, all-to-all": f"gcodec: not compressed are calls of all_to_all_single{MOVED}",
    "group, send": f"gcodec: not compressed are calls of send{MOVED}",
    "allreduce, small": f"allreduce: not compressed are tensors {SMALL}",
    "DiLoCo, int4, tiny": "DiLoCo: not compressed are all parameters, which are tensors of fewer than 1024 values",
    "DiLoCo, tiny": "DiLoCo: not compressed are all 1440 bytes of torch.float32 parameters, which are below min_bytes=",
}
#: What ways raise that are refused, by gcodec or by torch itself.
ERRORS = {
    "DDP, mixed precision": "RuntimeError: register_comm_hook .* can only be called once",
    "DDP, parameters of float8": "RuntimeError: Invalid scalar type",
    "DDP, hook registered twice": "RuntimeError: register_comm_hook .* can only be called once",
    "DDP, another group": "InvalidArgument: group must be that of the DDP model",
    "DDP, python_reducer": "Unsupported: .* choose 'ddp_optimizer' or 'no_optimization'",
    "FSDP1, hook": "Unsupported: the hook needs DDP's buckets, .* or use fully_shard and compress_fsdp",
    "FSDP1, compress_fsdp": r"InvalidArgument: .* give it process_group=new_group\(backend=\"gcodec\"\)",
    "FSDP2, all ignored": "InvalidArgument: .* none of their parameters is sharded",
    "FSDP2, memory of the group, after": "AssertionError: .* when (reduce scatter|all gather) comm is custom",
    "FSDP2, replicas of a wrong kind": "InvalidArgument: replicas must be one dimension of a mesh, .* not 'rep'",
    "FSDP2, replicas of two dimensions": "InvalidArgument: replicas must be one .* not a mesh of 2 dimensions",
    "FSDP2, replicas with other shards": r"InvalidArgument: .* model has other shards on some of the ranks \[0, 1\]",
    "FSDP2, replicas and a hook": "InvalidArgument: model has a hook of its own from set_all_reduce_hook",
    "group, DDP, mixed precision": "RuntimeError: cpu backend doesn't support events",
    "group, scaled sum": "RuntimeError: Cannot use ReduceOp.PREMUL_SUM with Gloo",
    "allreduce, integers": "InvalidArgument: tensor must be dense and of float16, bfloat16, float32 or float64",
    "allreduce, maximum": "InvalidArgument: op must be one of 'sum', 'avg', not 'max'",
}
#: Ways that compress a part, and whose other part the log explains.
IN_PART = {
    "DDP, a complex layer",
    "DDP, top-k",
    "DDP, sparse gradients",
    "DDP, delayed parameters",
    "FSDP1, process group",
    "FSDP2, another reduce-scatter after",
    "FSDP2, root after compress_fsdp",
    "group, tensor parallel",
    "group, SimpleFSDP",
    "group, DDP",
}


@pytest.fixture(scope="module")
def outcomes() -> Any:
    """What all ways have led to, by rank."""
    ranks = Ranks(2)
    yield ranks.run(cases.outcomes)
    ranks.close()


@pytest.mark.parametrize("name", cases.WAYS)
def test_a_way_to_ask_for_compression_sends_fewer_bytes_or_says_why_not(outcomes, name):
    first, other = (by_name[name] for by_name in outcomes)
    for found in (first, other):
        if name in ERRORS:
            assert re.match(ERRORS[name], found.error), found
        else:
            assert not found.error
            compresses = name not in LINES or name in IN_PART
            assert (0 < found.sent < 0.95 * found.dense) == compresses, found
    explained = [line for line in first.lines if line.startswith(LINES.get(name, "nothing"))]
    assert len(explained) == (name in LINES), first
    assert not [line for line in first.lines if "no gradients have come" in line and line not in explained]
    assert all(line.endswith("another, uncompressed model") for line in explained if "no gradients have come" in line)
    assert len(first.lines) == len(set(first.lines))
    assert not other.lines


def test_a_rank_that_is_alone_has_nothing_to_say():
    ranks = Ranks(1)
    assert ranks.run(cases.alone) == [[]]
    ranks.close()


def test_every_way_that_is_listed_is_tried():
    assert {*LINES, *ERRORS, *IN_PART} <= cases.WAYS.keys()


def test_a_part_that_stays_uncompressed_is_logged_once_and_not_for_the_buckets_of_the_first_step(caplog):
    caplog.set_level("INFO", "gcodec.distributed")
    buckets = UncompressedBuckets("label")
    levels = []
    for small_of_step in (100, 0, 100, 100):
        buckets.add(1000, None)
        if small_of_step:
            buckets.add(small_of_step, "small ones", is_small=True)
        buckets.end_step(0)
        levels.append([record.levelname for record in caplog.records])
    assert levels == [[], [], ["INFO"], ["INFO"]]
    assert caplog.messages == ["label: not all gradients are compressed: 100 bytes of small ones"]


def test_hsdp_says_that_its_all_reduce_is_not_compressed_unless_it_is(caplog, monkeypatch):
    def said_of(*groups: object) -> list[str]:
        caplog.clear()
        infos = [SimpleNamespace(replicate_mesh_size=2, replicate_process_group=group) for group in groups]
        states = [SimpleNamespace(_fsdp_param_groups=[SimpleNamespace(mesh_info=info)]) for info in infos]
        modules: Any = [SimpleNamespace(_get_fsdp_state=lambda state=state: state) for state in states]
        fsdp._say_of_replicas(Collectives(GroupOptions(), "FSDP"), modules)
        return caplog.messages

    compressed = CompressedGroup.__new__(CompressedGroup)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    assert said_of() == said_of(compressed, compressed) == []
    (line,) = said_of(compressed, object(), object())
    assert line.startswith("FSDP: not compressed is HSDP's all-reduce among replicas: give their dimension of the mesh")


def test_a_group_that_torch_checks_in_detail_is_asked_for_nccl_behind_its_wrapper(monkeypatch):
    class Nccl:
        """Stands for NCCL's backend, which this torch may not have."""

    class Wrapper:
        wrapped_pg = Nccl()

    class Group:
        backend: Any = None

        def _get_backend(self, device: torch.device) -> Any:
            return self.backend

    group: Any = Group()
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Nccl, raising=False)
    for group.backend, expected in ((Nccl(), True), (Wrapper(), True), (object(), False)):
        assert has_nccl(group) == expected


def test_a_run_whose_frames_go_through_the_host_says_so(caplog):
    lane: Any = SimpleNamespace(parent=SimpleNamespace(_get_backend=lambda device: object()), rank=0, gpu_transports={})
    for device in ("cpu", "cuda:1", "cuda:1"):
        gpu_transport_of(lane, torch.device(device))
    (line,) = caplog.messages
    assert line.startswith("gradients on cuda:1 are sent through the host's memory and Gloo")
    assert "cuda:nccl" in line
