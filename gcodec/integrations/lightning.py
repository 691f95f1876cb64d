"""The checkpoint plugin for Lightning: ``Trainer(plugins=[GcodecCheckpointIO()])``."""

from __future__ import annotations

import io
import sys
from inspect import signature
from tempfile import NamedTemporaryFile
from typing import Any

import torch

from ..archive import ArchiveReader, load, save
from ..archive.layout import MAGIC
from ..archive.reader import write_restored
from ..archive.whole_files import compress_file
from ..errors import InvalidArgument
from ..files.source import open_source
from ..files.urls import path_or_none

# Lightning goes by two names, whose classes are not the same: take that of the one that is in use.
if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from lightning_fabric.plugins import TorchCheckpointIO
else:
    from lightning.fabric.plugins import TorchCheckpointIO


class GcodecCheckpointIO(TorchCheckpointIO):
    """Saves Lightning's checkpoints as archives, lossless, and loads them; those of torch are loaded, too.

    Nothing is pickled unless a checkpoint holds what :func:`gcodec.save` refuses, such as hyperparameters of an
    ordinary class: then it is what ``torch.save`` makes of it, compressed.

    Args:
        threads: For coding and decoding; as many as the process may use if None.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Save a checkpoint to a path or URL, where it appears when it is complete.

        Raises:
            TypeError: ``storage_options`` were given, as from Lightning's own.
            OSError: It cannot be written.
        """
        if storage_options is not None:
            raise TypeError("storage_options are not supported: set the options of a store in fsspec's configuration")
        path = str(path)
        local = path_or_none(path)
        if local is not None:
            local.parent.mkdir(parents=True, exist_ok=True)
        try:
            save(checkpoint, path, threads=self._threads)
        except InvalidArgument:  # an object of some class
            stream = io.BytesIO()
            torch.save(checkpoint, stream)
            stream.seek(0)
            compress_file(stream, path, force=True, threads=self._threads)

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, loc: storage, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Load a checkpoint.

        Args:
            path: Of the checkpoint, or its URL.
            map_location: As for ``torch.load``; of what :func:`gcodec.save` has saved, a device or its name is
                followed, all else is the CPU.
            weights_only: As for Lightning's own plugin, for what ``torch.save`` made, and for tensors that are made of
                others, which a function of their class puts together: with None, Lightning 2.6 loads no such objects
                with torch 2.6 and later, and Lightning 2.5, which knows no other value, does.

        Raises:
            FileNotFoundError: There is none.
            GcodecError: It is damaged.
        """
        options = {} if weights_only is None else {"weights_only": weights_only}
        if not _is_archive(str(path)):
            plain: dict[str, Any] = super().load_checkpoint(path, map_location, **options)
            return plain
        with ArchiveReader(str(path), threads=self._threads) as archive:
            if len(archive.files) == 1 and archive.files[0].format == "torch":
                with NamedTemporaryFile(prefix="gcodec-") as file:
                    write_restored(archive, archive.files[0], file)
                    file.flush()
                    made: dict[str, Any] = super().load_checkpoint(file.name, map_location, **options)
                    return made
        device = map_location if isinstance(map_location, str | torch.device) else None
        is_trusted = weights_only is False or "weights_only" not in signature(super().load_checkpoint).parameters
        classes = _classes_of_tensors(torch.Tensor) if is_trusted else None
        loaded: dict[str, Any] = load(str(path), device=device, classes=classes, threads=self._threads)
        return loaded


def _classes_of_tensors(kind: type) -> dict[str, type]:
    """Return the classes derived from one that put tensors together from others, by the names that archives have."""
    found: dict[str, type] = {}
    subclasses: list[type] = kind.__subclasses__()
    for derived in subclasses:
        if hasattr(derived, "__tensor_unflatten__"):
            found[f"{derived.__module__}.{derived.__qualname__}"] = derived
        found |= _classes_of_tensors(derived)
    return found


def _is_archive(path: str) -> bool:
    """Return True for an archive. Raises FileNotFoundError if there is nothing."""
    source = open_source(path)
    try:
        return source.read(0, min(len(MAGIC), source.size)).tobytes() == MAGIC
    finally:
        source.close()
