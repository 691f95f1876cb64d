"""Measure what each planning feature of the encoder is worth: by how much files grow when it is off.

    python -m bench.features [FOLDER ...] [--out DIR]

writes ``bench/results/features.csv``: a row for each group of arrays and feature. The arrays are the gradients of
``tests/corpus`` and the float tensors of each checkpoint under the folders (.safetensors, .pt, .pth), which are
measured as they are and cast to bfloat16. If a checkpoint ``pretrained.pt`` of the package Resemblyzer is among
them, its model is trained on for a few steps, and gradients and AdamW's moments are measured, too. Each tensor is a
frame of its own; every frame is decoded and compared before its size counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

import gcodec
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.options import DEFAULT_OPTIONS, EncoderOptions

FILE = "features.csv"
#: Each feature, and the options without it; what is on by request only is measured by what it saves.
WITHOUT = {
    "prediction": replace(DEFAULT_OPTIONS, prediction=False),
    "references": replace(DEFAULT_OPTIONS, references=False),
    "column references": replace(DEFAULT_OPTIONS, columns=False),
    "several codebooks": replace(DEFAULT_OPTIONS, max_codebooks=1),
    "other heads": replace(DEFAULT_OPTIONS, wide_heads=False),
    "sparse blocks": replace(DEFAULT_OPTIONS, sparse=False),
    "dictionaries": replace(DEFAULT_OPTIONS, indexed=False),
}
ON_REQUEST = {"smallest": replace(DEFAULT_OPTIONS, smallest=True)}
CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
CHECKPOINTS = (".safetensors", ".pt", ".pth")
MIN_VALUES = 1024  #: of a tensor that is measured
STEPS, SPEAKERS, FRAMES = 8, 8, 80  #: of training on


def tensors_of(path: Path) -> Iterator[torch.Tensor]:
    """Yield the float tensors of a checkpoint that are not small."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        found: object = load_file(path)
    else:
        found = torch.load(path, map_location="cpu", weights_only=True)
    yield from _floats_in(found)


def _floats_in(found: object) -> Iterator[torch.Tensor]:
    """Yield the float tensors in nested dicts and lists that are not small."""
    if isinstance(found, torch.Tensor):
        if found.is_floating_point() and found.numel() >= MIN_VALUES:
            yield found.detach().contiguous()
    elif isinstance(found, dict):
        for value in found.values():
            yield from _floats_in(value)
    elif isinstance(found, list | tuple):
        for value in found:
            yield from _floats_in(value)


def trained_on(path: Path) -> dict[str, list[torch.Tensor]]:
    """Train the model of a Resemblyzer checkpoint for a few steps; return its gradients and AdamW's moments."""
    torch.manual_seed(0)
    state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    lstm, linear = torch.nn.LSTM(40, 256, 3, batch_first=True), torch.nn.Linear(256, 256)
    lstm.load_state_dict({name[5:]: value for name, value in state.items() if name.startswith("lstm.")})
    linear.load_state_dict({name[7:]: value for name, value in state.items() if name.startswith("linear.")})
    parameters = [*lstm.parameters(), *linear.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    voices = torch.rand(SPEAKERS, 1, 40).repeat_interleave(2, 0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        _, (hidden, _) = lstm(voices * torch.rand(2 * SPEAKERS, FRAMES, 40))
        found = torch.nn.functional.normalize(linear(hidden[-1]).relu(), dim=1)
        alike = 10 * (found[::2] @ found[1::2].T)
        torch.nn.functional.cross_entropy(alike, torch.arange(SPEAKERS)).backward()
        optimizer.step()
    states = [optimizer.state[parameter] for parameter in parameters]
    return {
        "gradients": list(_floats_in([parameter.grad for parameter in parameters])),
        "first moments": list(_floats_in([state["exp_avg"] for state in states])),
        "second moments": list(_floats_in([state["exp_avg_sq"] for state in states])),
    }


def groups_of(folders: Sequence[Path]) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield the groups of arrays, by name."""
    for path in sorted(CORPUS.glob("*.safetensors")):
        yield path.stem, list(tensors_of(path))
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in CHECKPOINTS):
            tensors = list(tensors_of(path))
            if not tensors:
                continue
            yield path.stem, tensors
            if tensors[0].dtype == torch.float32:
                yield f"{path.stem} as bfloat16", [tensor.bfloat16() for tensor in tensors]
            if path.name == "pretrained.pt":
                for name, found in trained_on(path).items():
                    yield f"{path.stem} {name}", found
                    yield f"{path.stem} {name} as bfloat16", [tensor.bfloat16() for tensor in found]


def bytes_of(tensors: Sequence[torch.Tensor], options: EncoderOptions, *, together: bool) -> int:
    """Return the bytes of a frame for each tensor, or of one for all ``together``; each gives its values back."""
    shapes = [[tuple(tensor.shape)] for tensor in tensors]
    if together:
        tensors, shapes = [torch.cat([tensor.reshape(-1) for tensor in tensors])], [[shape for [shape] in shapes]]
    total = 0
    for tensor, shapes_in_it in zip(tensors, shapes, strict=True):
        frame = gcodec.encode(tensor, options=options, shapes=shapes_in_it)
        back = gcodec.decode(frame)
        if not torch.equal(tensor.reshape(-1).view(torch.uint8), back.reshape(-1).view(torch.uint8)):
            raise SystemExit(f"a frame of {tensor.dtype}{list(tensor.shape)} does not give the tensor back")
        total += len(frame)
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.features", description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="*", help="folders with checkpoints")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    rows: list[NamedRow] = []
    for group, tensors in groups_of(options.folders):
        n_values = sum(tensor.numel() for tensor in tensors)
        for together in (False, True):
            usual = bytes_of(tensors, DEFAULT_OPTIONS, together=together)
            for feature, other in (WITHOUT | ON_REQUEST).items():
                n_bytes = bytes_of(tensors, other, together=together)
                sizes = (n_bytes, usual) if feature in ON_REQUEST else (usual, n_bytes)
                growth = 100 * (sizes[1] / sizes[0] - 1)
                rows.append(
                    {
                        "group": group,
                        "values": n_values,
                        "frames": "one" if together else "many",
                        "feature": feature,
                        "bytes_with": sizes[0],
                        "bytes_without": sizes[1],
                        "growth_percent": f"{growth:.3f}",
                    }
                )
                print(*rows[-1].values(), flush=True)
    write_named(options.out / FILE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
