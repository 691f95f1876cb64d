"""Hugging Face transformers: models and the Trainer's checkpoints as ``.safetensors.gc``, and back."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, GenerationConfig, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
from transformers.utils import (
    ADAPTER_CONFIG_NAME,
    GENERATION_CONFIG_NAME,
    SAFE_WEIGHTS_NAME,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME as _INDEX_NAME

from ..archive.file_state import FileState
from ..archive.layout import SUFFIX
from ..archive.lazy_file import open as open_archive
from ..errors import InvalidArgument
from .folder_files import archives_in, compress_files_in, restore_files_in, restored_folder

#: The file of a checkpoint that tells how far the training is; Trainer does not resume without it.
TRAINER_STATE = "trainer_state.json"
#: A file of weights, whole or a shard, plain or compressed: files of the same weights agree in the first group.
WEIGHTS = re.compile(rf"(.+?)(?:-\d{{5}}-of-\d{{5}})?\.safetensors(?:{re.escape(SUFFIX)})?")


def save_pretrained(model: Any, folder: str | os.PathLike[str], *, threads: int | None = None, **options: Any) -> None:
    """Save a model as ``model.save_pretrained`` does, its weights compressed: ``model.safetensors.gc``, or shards.

    Archives of the same weights that an earlier save left in the folder, in other shards, are removed.

    Args:
        model: A model of transformers, or whatever has ``save_pretrained``.
        folder: The folder.
        threads: Threads to use at most; as many as the process may use if None.
        options: For ``model.save_pretrained``; ``push_to_hub`` pushes before compression, so push the folder instead.

    Raises:
        InvalidArgument: ``push_to_hub`` was given.
        OSError: A file cannot be written.
    """
    if options.get("push_to_hub"):
        raise InvalidArgument("push_to_hub pushes files before they are compressed: upload the folder afterwards")
    before = {path: FileState.of(path) for path in _weights_in(folder)}
    model.save_pretrained(folder, **options)
    if options.get("is_main_process", True):
        saved = [path for path in _weights_in(folder) if path not in before or before[path].change_at(path)]
        compress_files_in(folder, threads)
        _remove_other_shards(saved)


def _weights_in(folder: str | os.PathLike[str]) -> list[Path]:
    return [path for path in Path(folder).glob("*.safetensors") if path.is_file()]


def _remove_other_shards(saved: list[Path]) -> None:
    """Remove archives of the weights that were saved, but not of these very files.

    An archive of the whole model would be loaded in place of new shards. transformers removes old shards itself, but
    knows no archives.
    """
    kept = {path.name + SUFFIX for path in saved}
    weights = {match[1] for path in saved if (match := WEIGHTS.fullmatch(path.name))}
    for folder in {path.parent for path in saved}:
        for archive in folder.glob(f"*.safetensors{SUFFIX}"):
            match = WEIGHTS.fullmatch(archive.name)
            if match and match[1] in weights and archive.name not in kept:
                archive.unlink()


def from_pretrained(kind: Any, folder: str | os.PathLike[str], *, threads: int | None = None, **options: Any) -> Any:
    """Load a model that :func:`save_pretrained` saved.

    Args:
        kind: The class, such as ``AutoModelForCausalLM``.
        folder: The folder. The model names it, and not the temporary one, as the place that it comes from.
        threads: Threads to use at most; as many as the process may use if None.
        options: For ``kind.from_pretrained``; ``subfolder`` is the folder in this one that has the files.

    Tensors are decoded one after another as transformers 5 asks for them. Where it reads more than weights from files
    (adapters of PEFT, quantized models, code of the model's own, other kinds of weights), and for older versions, all
    files are restored to a temporary folder first.

    Raises:
        InvalidArgument: There is no such folder.
        GcodecError: An archive is damaged.
        OSError: A file cannot be read, or there is no space for restored files in the folder for temporary ones.
    """
    path = Path(folder, options.pop("subfolder", None) or "")
    if not path.is_dir():
        raise InvalidArgument(
            f"{path}: must be a folder on this machine; one of the Hub is there after huggingface_hub.snapshot_download"
        )
    archives = _archives_of_weights(path, options.get("variant")) if _takes_states(kind, path, options) else None
    if archives is not None:
        return _from_archives(kind, path, archives, threads, options)
    with restored_folder(path, threads) as whole:
        loaded = kind.from_pretrained(whole, **options)
        for named in (loaded, getattr(loaded, "config", loaded)):  # PEFT, for one, stores this name with an adapter
            if getattr(named, "name_or_path", None) == str(whole):
                named.name_or_path = str(path)
    return loaded


_MIN_MAJOR = 5  #: version of transformers that asks for parts of a state's tensors when it needs them
#: Options with which transformers looks for more than weights in files, or for other ones.
_OF_FILES = frozenset(
    ("trust_remote_code", "gguf_file", "quantization_config", "offload_folder", "adapter_kwargs", "distributed_config")
)
#: Options that configurations have, too, but that say how a model is loaded.
_OF_LOADING = frozenset(("dtype", "torch_dtype", "attn_implementation", "experts_implementation"))


def _takes_states(kind: Any, folder: Path, options: dict[str, Any]) -> bool:
    """Return True if transformers loads a model from a state as it does from files, and nothing but that from these."""
    is_known = isinstance(kind, type) and (issubclass(kind, transformers.PreTrainedModel) or _is_auto(kind))
    is_plain = not _OF_FILES.intersection(options) and not (folder / ADAPTER_CONFIG_NAME).exists()
    return is_known and is_plain and int(transformers.__version__.partition(".")[0]) >= _MIN_MAJOR


def _is_auto(kind: type) -> bool:
    """Return True for transformers' Auto classes, which choose a model's own class by its configuration."""
    return kind.__module__.partition(".")[0] == "transformers" and hasattr(kind, "from_config")


def _archives_of_weights(folder: Path, variant: str | None) -> list[Path] | None:
    """Return the archives of the files that transformers would load; None if it would load any other file."""
    archives = archives_in(folder.resolve())
    whole, index = (folder.resolve() / _with_variant(name, variant) for name in (SAFE_WEIGHTS_NAME, _INDEX_NAME))
    if whole in archives:
        return [archives[whole]]
    if whole.exists() or not index.is_file():
        return None
    shards = {index.parent / name for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
    return [archives[shard] for shard in sorted(shards)] if shards <= archives.keys() else None


def _with_variant(name: str, variant: str | None) -> str:
    """Return the name of a variant's file, ``model.fp32.safetensors`` for ``model.safetensors``."""
    start, _, end = name.rpartition(".")
    return name if variant is None else f"{start}.{variant}.{end}"


def _from_archives(
    kind: Any, folder: Path, archives: Sequence[Path], threads: int | None, options: dict[str, Any]
) -> Any:
    """Load a model whose weights transformers asks for one by one; arguments as of :func:`from_pretrained`."""
    config = options.pop("config", None)
    if not isinstance(config, transformers.PretrainedConfig):
        own = getattr(kind, "config_class", None) or AutoConfig  # a class of the caller's may not be registered
        config = own.from_pretrained(folder if config is None else config)
    changed = {name: options.pop(name) for name in set(options) - _OF_LOADING if hasattr(config, name)}
    for name, value in changed.items():
        setattr(config, name, value)
    if not issubclass(kind, transformers.PreTrainedModel):  # an Auto class, which tells the model's own this way
        changed = {}  # it changes the configuration alone
        with torch.device("meta"):
            blank = kind.from_config(config)
        kind, config = type(blank), blank.config
    with ExitStack() as stack:
        files = [stack.enter_context(open_archive(archive, "pt", threads=threads)) for archive in archives]
        state = {name: file.get_slice(name) for file in files for name in file.offset_keys()}
        if config.dtype is None and options.get("dtype", options.get("torch_dtype")) in (None, "auto"):
            options["dtype"] = _first_float_type(file.dtype(name) for file in files for name in file.offset_keys())
        loaded = kind.from_pretrained(None, config=config, state_dict=state, **options)
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    model.name_or_path = model.config.name_or_path = str(folder)
    if model.can_generate() and "generation_config" not in options and (folder / GENERATION_CONFIG_NAME).exists():
        model.generation_config = GenerationConfig.from_pretrained(folder, **changed)
    return loaded


def _first_float_type(names: Iterable[str]) -> torch.dtype:
    """Return the first floating type of tensors, which counts as that of the model; float32 if none is one."""
    types = (getattr(torch, name) for name in names)
    return next((dtype for dtype in types if dtype.is_floating_point), torch.float32)


class CompressCheckpoints(TrainerCallback):
    """Compresses the checkpoints that Trainer writes; :func:`restore_checkpoint` is for resuming.

    ::

        trainer = Trainer(..., callbacks=[CompressCheckpoints()])
        trainer.train(resume_from_checkpoint=restore_checkpoint("output"))

    With ``load_best_model_at_end``, the best checkpoint is compressed when the training ends. A training that goes on
    restores it when it begins, for Trainer loads plain files only, and goes without where there are none.

    Args:
        threads: Threads to use at most; as many as the process may use if None.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the best checkpoint of the run that is resumed, which was compressed when that run ended."""
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        if state.is_world_process_zero and best is not None and Path(best).is_dir():
            restore_files_in(best, self._threads)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Compress the new checkpoint, and what was the best one before."""
        if state.is_world_process_zero:
            best = state.best_model_checkpoint if args.load_best_model_at_end else None
            self._compress(Path(args.output_dir), best)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Compress the best checkpoint."""
        if state.is_world_process_zero:
            self._compress(Path(args.output_dir), None)

    def _compress(self, output: Path, best: str | None) -> None:
        for folder in output.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
            if best is None or folder.resolve() != Path(best).resolve():
                compress_files_in(folder, self._threads)


def restore_checkpoint(folder: str | os.PathLike[str], *, threads: int | None = None) -> str:
    """Restore the files of a compressed checkpoint, and return its folder for ``resume_from_checkpoint``.

    :class:`CompressCheckpoints` compresses them again when the next checkpoint is saved. Among ranks, let one call it
    and the others wait.

    Args:
        folder: A checkpoint's folder, or the Trainer's ``output_dir``: then the last checkpoint is taken.
        threads: Threads to use at most; as many as the process may use if None.

    Raises:
        InvalidArgument: There is no checkpoint.
        GcodecError: An archive is damaged.
        OSError: A file cannot be read or written.
    """
    path = Path(folder)
    if not path.is_dir():
        raise InvalidArgument(f"{path}: is no folder")
    last = get_last_checkpoint(str(path))  # by what lies in it, for any name may begin as a checkpoint's does
    if last is None and not (path / TRAINER_STATE).is_file():
        raise InvalidArgument(
            f"{path}: must be a checkpoint, which has a file {TRAINER_STATE}, or a folder of checkpoints, each called "
            f"{PREFIX_CHECKPOINT_DIR}-STEP: neither is here"
        )
    path = Path(last or path)
    restore_files_in(path, threads)
    return str(path)
