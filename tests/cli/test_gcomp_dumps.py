"""The laws of dumps that ``--mode gcomp`` refuses, because no levels can be chosen by what they hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file as save_safetensors

from tests.support import commands
from tests.support.commands import run

folder = commands.folder


@pytest.mark.parametrize(
    ("key", "shape"), [("grad/w", (4, 3)), ("exp_avg/w", (4, 3)), ("exp_avg_sq/w", (12,)), ("step/w", (1,))]
)
def test_gcomp_refuses_a_dump_whose_state_has_another_shape(capsys, key, shape):
    shapes: dict[str, tuple[int, ...]] = {
        "grad/w": (3, 4),
        "param/w": (3, 4),
        "exp_avg/w": (3, 4),
        "exp_avg_sq/w": (3, 4),
        "step/w": (),
    }
    metadata = {"format": "gcodec-dump-1", "step": "1", "optimizer": "Adam", "groups": '[{"lr": 1, "params": ["w"]}]'}
    save_safetensors({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, "x.safetensors", metadata)
    run("compress", "x.safetensors", "--mode", "gcomp")
    shapes[key] = shape
    save_safetensors({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, "y.safetensors", metadata)
    run("compress", "y.safetensors", "--mode", "gcomp", code=1)
    assert f"{key} must have the shape" in capsys.readouterr().err
    assert not Path("y.safetensors.gc").exists()


def test_gcomp_refuses_numbers_of_steps_whose_value_numpy_does_not_have(capsys):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    metadata = {"format": "gcodec-dump-1", "step": "4", "optimizer": "Adam", "groups": '[{"lr": 1, "params": ["w"]}]'}
    for dtype, code in ((torch.float32, 0), (torch.int64, 0), (torch.bfloat16, 1), (torch.float8_e4m3fn, 1)):
        tensors = {"grad/w": torch.ones(3), "param/w": torch.ones(3), "step/w": torch.tensor(3).to(dtype)}
        save_file(tensors, "x.safetensors", metadata)
        run("compress", "x.safetensors", "--mode", "gcomp", "--force", code=code)
        assert not code or "step/w must be of a type that numpy has" in capsys.readouterr().err
