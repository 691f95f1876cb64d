"""gcodec makes its tensors where they belong, not on the device on which torch makes tensors by default: after
``torch.set_default_device("cuda")`` they would be on a device that what they are used with is not on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.averaging.averager import Averager, CompressionPlan
from gcodec.compressors import PowerSGD, TopK, alone
from tests.test_floors import at, trees


def calls_without_a_device(tree: ast.Module, makers: set[str]) -> Iterator[int]:
    """Yield the lines in which a function of torch makes a tensor on the default device."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in makers
            and not {"device", None} & {keyword.arg for keyword in node.keywords}
        ):
            yield node.lineno


def test_every_new_tensor_has_a_device():
    from torch.utils._device import _device_constructors

    # What as_tensor is given in the recorder, it moves to the CPU.
    makers = {f"torch.{maker.__name__}" for maker in _device_constructors()} - {"torch.as_tensor"}
    found = [at(name, line) for name, tree in trees().items() for line in calls_without_a_device(tree, makers)]
    assert not found
    assert list(calls_without_a_device(ast.parse("torch.ones(3)\ntorch.ones(3, device=x.device)"), makers)) == [1]


@pytest.mark.parametrize("compressor", [PowerSGD(rank=2), TopK(density=0.1, sample=0.5)], ids=str)
def test_gradients_are_compressed_whatever_the_default_device(compressor):
    gradient, results = torch.linspace(-1.0, 1.0, 4096).view(64, 64), []
    for where in "cpu", "meta":
        with torch.device(where):
            averager = Averager(CompressionPlan(compressor, min_values=0))
            results.append(alone(averager.average({"w": gradient}))["w"])
    assert torch.equal(*results)


def test_tensors_are_read_whatever_the_default_device(tmp_path):
    tensors = {"empty": torch.zeros(0, 3), "full": torch.linspace(-1.0, 1.0, 4096)}
    gcodec.save_file(tensors, tmp_path / "tensors")
    with torch.device("meta"):
        found = gcodec.load_file(tmp_path / "tensors", like="torch")
        frame = gcodec.encode(tensors["full"])
        decoded = gcodec.decode(frame, like="torch")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert torch.equal(decoded, tensors["full"])
