"""What docs/cli.md leaves to its reader: files for each of its blocks, whose lines run in order."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.support.given.files import arrays, compress, record


def before_block(names: dict[str, Any], text: str) -> None:
    """Make the files that a block begins with, in an empty folder."""
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if "series" in text:
        record("run", 300, 600, 1000)
        shutil.copy("run/step-1000.pt", "step-900.pt")
        return
    arrays("model.safetensors", "model.pt", "x.npy", "a.npy", "b.npz", "run/a.npy", "run/b.npy")
    record("run", 100)
    if "--base step-300.pt" in text:
        _bases()
    elif "gcodec decompress" in text or "gcodec inspect" in text:
        _archives()


def _bases() -> None:
    """Make checkpoints of which some are bases of others."""
    record("steps", 300, 600)
    for step in (300, 600):
        shutil.move(f"steps/step-{step}.pt", f"step-{step}.pt")
    for name, step in (("a.pt", 300), ("b.pt", 600), ("c.pt", 600)):
        shutil.copy(f"step-{step}.pt", name)
    compress("b.pt", "--base", "a.pt", "--rm")
    shutil.copytree("run", "run1")
    shutil.copytree("run", "run2")


def _archives() -> None:
    """Make archives, and remove what they were made of."""
    Path("model.safetensors").unlink()
    record("dump", 100)
    compress("run/step-000100.safetensors", "--rm")
    compress("dump/step-000100.safetensors", "-o", "all.gc")
    compress("x.npy", "model.pt", "--rm")
    shutil.copy("dump/step-100.pt", "old.pt")
    shutil.copy("dump/step-100.pt", "new.pt")
    compress("new.pt", "--base", "old.pt", "--rm")
    compress("b.npz", "-o", "upload.gc", "--rm")
