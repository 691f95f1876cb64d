"""Records real gradients from a training script, and reads the recorded dumps back.

A dump is one ``.safetensors`` file per recorded step: gradient, value and optimizer state of each parameter
just before the optimizer's step. ``docs/recording.md`` has the layout; this file writes and reads it.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fnmatch
import json
import operator
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from safetensors import SafetensorError, safe_open
from safetensors import __version__ as safetensors_version

from .dtypes import BY_NAME, DTYPES
from .errors import Corruption, GcodecError, InvalidArgument, Unsupported, WrongKind, missing_torch, what_it_is
from .files.all_or_nothing import partial_name
from .files.at_end import call_at_end
from .files.safetensors import plan_safetensors, read_header, safetensors_header
from .files.source import naming, open_regular, open_source
from .files.urls import Upload, fixed_place, is_url, local_copy, local_path

if TYPE_CHECKING:
    import numpy as np
    import torch

FORMAT = "gcodec-dump-1"
GRAD, PARAM = "grad", "param"
WRAPPERS = ("module.", "_orig_mod.")  #: prefixes of DDP and torch.compile
Names = Iterable[str] | Callable[[str], bool]
#: The safetensors types that numpy has; tensors of others come back as torch's.
IN_NUMPY = {*"BOOL U8 I8 U16 I16 U32 I32 U64 I64 C64".split(), *(t.safetensors for t in DTYPES if t.in_numpy)}


class Recorder:
    """Writes a dump at chosen steps of a training loop.

    Call :meth:`record` once per iteration, after ``backward()`` (and a loss scaler's ``unscale_``) and before
    ``optimizer.step()``. Steps count from 1.

    Args:
        model: Wrapped (DDP, ``torch.compile``) or not; a parameter used in several places is recorded once.
        optimizer: The one that is about to step.
        folder: Where ``step-000100.safetensors`` and its like go, or a URL for fsspec; created if missing.
        steps: The iterations to record.
        every: Record each multiple of this; may be combined with ``steps``.
        names: Which parameters: shell patterns (``"layers.0.*"``) or a function of the name; all if None.

    Raises:
        InvalidArgument: Nothing to record, a step below 1, an optimizer without the model's parameters, or an argument
            of another kind.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        folder: str | os.PathLike[str],
        *,
        steps: Iterable[int] | None = None,
        every: int | None = None,
        names: Names | None = None,
    ) -> None:
        for name, value, attribute, wanted in (
            ("model", model, "named_parameters", "torch.nn.Module"),
            ("optimizer", optimizer, "param_groups", "torch.optim.Optimizer"),
        ):
            if not hasattr(value, attribute):
                kind = type(value).__name__
                raise InvalidArgument(f"{name} must be a {wanted}, not {kind}: the order is model, optimizer, folder")
        if not isinstance(folder, str | os.PathLike):
            raise InvalidArgument(f"folder must be a path or a URL, not {type(folder).__name__}")
        self.steps, self.every = _steps(steps), every
        if not self.steps and every is None:
            raise InvalidArgument("nothing to record: give steps=(1, 20, 100) or every=50")
        if any(step < 1 for step in self.steps):
            raise InvalidArgument(f"steps must be at least 1, for they count from 1, not {min(self.steps)}")
        if every is not None and not _is_integer(every):
            raise InvalidArgument(f"every must be an integer, not {every!r}")
        if every is not None and every < 1:
            raise InvalidArgument(f"every must be at least 1, not {every}")
        self.optimizer = optimizer
        self.folder: Path | str = fixed_place(folder)
        self.step = 0
        is_selected = _selection(names)
        self._parameters = {n: p for n, p in _named_parameters(model).items() if is_selected(n)}
        optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(p) in optimized for p in self._parameters.values()):
            raise InvalidArgument("the optimizer holds none of the model's (selected) parameters")

    def record(self, step: int | None = None) -> Path | str | None:
        """Counts one iteration and, if it is to be recorded, writes its dump.

        Args:
            step: The iteration's number, for a run that was resumed; one more than the last call's if None.

        Returns:
            The path or URL written, or None at a step that is not recorded.

        Raises:
            InvalidArgument: No parameter has a gradient, the optimizer's state cannot be named in a dump, or ``step``
                is no integer of at least 1.
            OSError: The dump cannot be written.
        """
        if step is not None and (not _is_integer(step) or step < 1):
            raise InvalidArgument(f"step must be None or an integer of at least 1, where steps begin, not {step!r}")
        self.step = self.step + 1 if step is None else step
        if self.step not in self.steps and (self.every is None or self.step % self.every):
            return None
        recorded = {name: p for name, p in self._parameters.items() if p.grad is not None}
        if not recorded:
            raise InvalidArgument("no parameter has a gradient: call record() after backward()")
        name = f"step-{self.step:06d}.safetensors"
        path = self.folder / name if isinstance(self.folder, Path) else f"{self.folder.rstrip('/')}/{name}"
        tensors, groups = self._tensors(recorded), self._groups(recorded)
        write_dump(path, tensors, step=self.step, optimizer=type(self.optimizer).__name__, groups=groups)
        return path

    def _tensors(self, recorded: dict[str, torch.nn.Parameter]) -> dict[str, Any]:
        tensors: dict[str, Any] = {}
        for name, parameter in recorded.items():
            tensors[f"{GRAD}/{name}"] = parameter.grad
            tensors[f"{PARAM}/{name}"] = parameter
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if not isinstance(key, str) or "/" in key or key in (GRAD, PARAM):
                    raise InvalidArgument(
                        f"optimizer state {key!r} cannot be named in a dump: a key must be a string without /, other "
                        f"than {GRAD!r} and {PARAM!r}"
                    )
                tensors[f"{key}/{name}"] = value
        return tensors

    def _groups(self, recorded: dict[str, torch.nn.Parameter]) -> list[dict[str, Any]]:
        name_of = {id(p): name for name, p in recorded.items()}
        groups = [_hyperparameters(group) for group in self.optimizer.param_groups]
        for entry, group in zip(groups, self.optimizer.param_groups, strict=True):
            entry["params"] = [name_of[id(p)] for p in group["params"] if id(p) in name_of]
        return groups


@dataclass(frozen=True)
class Dump:
    """A recorded step. Tensors are read from the file when asked for, one at a time.

    They come back as numpy arrays; of types that numpy lacks (bfloat16, float8), as torch tensors on the CPU.

    Attributes:
        path: The file.
        step: The iteration, counted from 1.
        optimizer: torch's class name, such as ``"AdamW"``.
        groups: Hyperparameters of each parameter group, and its parameters' names under ``"params"``.
        names: The recorded parameters: those of the groups in order, then any that no group holds.
        keys: Every tensor in the file, ``"grad/NAME"`` and so on.
    """

    path: Path
    step: int
    optimizer: str
    groups: tuple[dict[str, Any], ...]
    names: tuple[str, ...]
    keys: frozenset[str]

    def grad(self, name: str) -> Any:
        """Return the gradient of parameter ``name``, in its own shape and dtype."""
        return self.tensor(f"{GRAD}/{name}")

    def param(self, name: str) -> Any:
        """Return parameter ``name`` as it was before the step."""
        return self.tensor(f"{PARAM}/{name}")

    def state(self, name: str) -> dict[str, Any]:
        """Return the optimizer's state of ``name`` before the step, by torch's keys; empty at the first step.

        Raises:
            InvalidArgument: The parameter was not recorded.
        """
        self._require(f"{GRAD}/{name}")
        return {k: self.tensor(f"{k}/{name}") for k in self.state_kinds if f"{k}/{name}" in self.keys}

    def hyper(self, name: str) -> dict[str, Any]:
        """Return the hyperparameters of the group that holds ``name`` (lr, betas, weight_decay ...).

        Raises:
            InvalidArgument: No group holds it.
        """
        for group in self.groups:
            if name in group["params"]:
                return {key: value for key, value in group.items() if key != "params"}
        raise InvalidArgument(f"no parameter group of {self.path} holds {name!r}")

    def tensor(self, key: str) -> Any:
        """Return the tensor stored under ``key``.

        Raises:
            InvalidArgument: There is none.
            GcodecError: Its type needs torch, which is not installed.
        """
        self._require(key)
        with _open(self.path, "numpy") as file:
            if (dtype := file.get_slice(key).get_dtype()) in IN_NUMPY:
                return file.get_tensor(key)
        try:
            with _open(self.path, "pt") as file:
                return file.get_tensor(key).clone()  # or it would change with the file, and end the process without it
        except ImportError as error:
            raise GcodecError(f"{dtype} tensors need torch: pip install torch") from error

    @cached_property
    def state_kinds(self) -> tuple[str, ...]:
        """The kinds of optimizer state in the file, such as ``("exp_avg", "exp_avg_sq", "step")``."""
        return tuple(sorted({key.partition("/")[0] for key in self.keys} - {GRAD, PARAM}))

    def grads(self) -> Iterator[tuple[str, Any]]:
        """Return each name with its gradient, read one at a time."""
        return ((name, self.grad(name)) for name in self.names)

    def _require(self, key: str) -> None:
        if key not in self.keys:
            raise InvalidArgument(f"{self.path} has no tensor {key!r}; Dump.keys has all there are")


def write_dump(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    step: int,
    optimizer: str,
    groups: Sequence[Mapping[str, Any]],
) -> None:
    """Writes one dump, beside its final name first: a reader sees a whole dump or none.

    Args:
        path: The file, or a URL for fsspec; its folder is created if missing.
        tensors: ``"grad/NAME"`` and so on to torch tensors, numpy or JAX arrays, or numbers; other values are left out.
        step: The iteration, counted from 1.
        optimizer: torch's class name.
        groups: Hyperparameters of each parameter group, and its parameters' names under ``"params"``.

    Raises:
        InvalidArgument: A tensor is sharded over ranks, or a JAX array has no values.
        GcodecError: torch is not installed.
        OSError: The file cannot be written; one that was there is as it was.
    """
    try:
        import torch  # noqa: F401 - what the tensors are made of
    except ImportError as error:
        raise missing_torch("a dump") from error

    metadata = {"format": FORMAT, "optimizer": optimizer, "step": str(step)}
    metadata["groups"] = json.dumps([dict(group) for group in groups])
    if isinstance(path, str) and is_url(path):
        with Upload(path) as file, naming(file.name):
            _write_safetensors(file, path, _detached(tensors), metadata)
        return
    path = Path(local_path(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(partial_name(path.name))
    try:
        with naming(path), unfinished.open("xb") as file:
            _write_safetensors(file, path, _detached(tensors), metadata)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_safetensors(
    file: BinaryIO, place: Path | str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> None:
    """Write dense, contiguous tensors. The library of safetensors ends the process where there is no memory."""
    import torch

    # From wide values to narrow ones, so that each tensor is aligned to its values.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    described = {
        name: (str(tensors[name].dtype).removeprefix("torch."), tuple(tensors[name].shape), tensors[name].nbytes)
        for name in names
    }
    try:
        file.write(safetensors_header(described, metadata))
    except InvalidArgument as error:
        raise InvalidArgument(f"{place}: {error}") from error
    for name in names:
        values = tensors[name].reshape(-1)
        if values.is_complex():
            values = torch.view_as_real(values).reshape(-1)
        file.write(values.view(torch.uint8).numpy().data)


def read_dump(path: str | os.PathLike[str]) -> Dump:
    """Opens a dump and reads its header; tensors are read later, as they are asked for.

    Args:
        path: The file, or a URL for fsspec, of which a temporary copy is on this machine while the dump is in use.

    Raises:
        FileNotFoundError: No such file.
        InvalidArgument: A safetensors file, but not a dump.
        Unsupported: A dump of another version, or one of complex tensors where safetensors is older than 0.7.
        Corruption: Not a regular file, or not a safetensors file, or a dump whose metadata is malformed.
    """
    with local_copy(path) as copy:
        dump = _read_dump(copy)
        return _with_copy(dump) if is_url(path) else dump
    raise AssertionError  # a copy suppresses nothing


#: The folders of copies that are in use.
_copies: set[str] = set()


@atexit.register
def _remove_copies() -> None:
    """Remove what is left of copies when the process ends."""
    for folder in list(_copies):
        shutil.rmtree(folder, ignore_errors=True)


def _with_copy(dump: Dump) -> Dump:
    """Return a dump whose file, which is moved there, is in a folder of its own while the dump is in use."""
    folder = tempfile.mkdtemp(prefix="gcodec-")
    try:
        dump = replace(dump, path=dump.path.replace(Path(folder) / dump.path.name))
        _copies.add(folder)
        remove = partial(os.unlink, str(dump.path)), partial(os.rmdir, folder), partial(_copies.discard, folder)
        call_at_end(dump, *remove)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return dump


def _read_dump(path: Path) -> Dump:
    with _open(path, "numpy") as file:
        metadata, keys = file.metadata() or {}, frozenset(file.keys())
    layout = metadata.get("format", "")
    if not layout.startswith("gcodec-dump-"):
        raise InvalidArgument(f"{path} is not a gcodec dump (its metadata does not say so)")
    if layout != FORMAT:
        raise Unsupported(f"{path} is a dump of format {layout!r}; this version reads {FORMAT!r}")
    try:
        groups = tuple(json.loads(metadata["groups"]))
        grouped = [name for group in groups for name in group["params"]]
        ungrouped = {key.partition("/")[2] for key in keys if key.startswith(f"{GRAD}/")}.difference(grouped)
        step, optimizer = int(metadata["step"]), metadata["optimizer"]
    except (KeyError, TypeError, ValueError) as error:
        raise Corruption(f"{path}: malformed dump metadata: {error}") from error
    names = (*grouped, *sorted(ungrouped))
    if not keys.issuperset(f"{kind}/{name}" for name in names for kind in (GRAD, PARAM)):
        raise Corruption(f"{path}: a parameter lacks its gradient or its value")
    return Dump(path.absolute(), step, optimizer, groups, names, keys)  # tensors are read later


def _named_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Names to parameters, each parameter once, without the prefix that a wrapper puts before all of them."""
    named = dict(model.named_parameters())
    while prefix := next((w for w in WRAPPERS if named and all(n.startswith(w) for n in named)), ""):
        named = {name.removeprefix(prefix): parameter for name, parameter in named.items()}
    return named


def _steps(steps: Any) -> frozenset[int]:
    """Return the steps to record. Raises InvalidArgument unless they are integers."""
    if steps is not None and (not isinstance(steps, Iterable) or isinstance(steps, str | bytes)):
        raise InvalidArgument(f"steps must be several iterations, as in steps=(1, 20, 100), not {steps!r}")
    several = [*(() if steps is None else steps)]
    for step in several:
        if not _is_integer(step):
            raise InvalidArgument(f"steps must be integers, not {step!r}")
    return frozenset(several)


def _is_integer(value: object) -> bool:
    """Return True for integers, numpy's too."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:  # of arrays of several values, too, which have the method
        return False
    return not isinstance(value, bool)


def _selection(names: Any) -> Callable[[str], bool]:
    """Return the test that ``Recorder(names=...)`` stands for."""
    if callable(names):
        return names
    several = ["*"] if names is None else [names] if isinstance(names, str) else names
    patterns = list(several) if isinstance(several, Iterable) else []
    if not isinstance(several, Iterable) or not all(isinstance(pattern, str) for pattern in patterns):
        raise InvalidArgument(f"names must be shell patterns or a function of the name, not {names!r}")
    return lambda name: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _detached(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Dense contiguous CPU tensors that share no storage with each other, as safetensors wants them.

    What is no tensor, array or number is left out: None (no momentum yet), lists (the history of L-BFGS).
    """
    import numpy as np
    import torch

    from .tensors import host_array

    seen: set[int] = set()
    result = {}
    for key, value in tensors.items():
        value = host_array(value, key)
        if isinstance(value, np.ndarray):
            value = _tensor_of(value)
        if not isinstance(value, torch.Tensor | int | float):
            continue
        tensor = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None).detach()
        if hasattr(tensor, "to_local"):
            raise InvalidArgument(f"{key} is sharded over ranks (a DTensor); the recorded model must not be")
        tensor = (tensor.to_dense() if tensor.layout != torch.strided else tensor).cpu()
        tensor = tensor.resolve_conj().resolve_neg().contiguous()  # bits that safetensors would not look at
        storage = tensor.untyped_storage().data_ptr()
        result[key] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return result


def _tensor_of(array: np.ndarray) -> torch.Tensor:
    """Return an array as a torch tensor, of the same memory where it is contiguous."""
    import torch

    from .tensors import TORCH, as_container, kernel_view, values_of

    if array.dtype.name in BY_NAME:  # also of types of ml_dtypes, which torch does not take
        values = values_of(array)
        tensor: torch.Tensor = as_container(values.bits, values.dtype, values.shape, TORCH)
        return tensor
    return torch.as_tensor(kernel_view(array))  # torch warns of arrays that are marked read-only


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON-serializable entries of a parameter group; one-element tensors become floats."""
    plain = {}
    for key, value in group.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            if key not in ("params", "param_names"):
                plain[key] = json.loads(json.dumps(value, default=float))
    return plain


#: The number of the system's error in a text of safetensors.
_NUMBER = r"\(os error ([0-9]+)\)"


def _open(path: Path, framework: str) -> Any:
    open_regular(path).close()  # safetensors would wait for a pipe, and not name a folder
    try:
        return safe_open(path, framework=framework)
    except OSError as error:  # has neither a number nor the file's name
        found = re.search(_NUMBER, str(error))
        code = errno.ENOENT if isinstance(error, FileNotFoundError) else int(found[1]) if found else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error
    except SafetensorError as error:
        if [int(part) for part in safetensors_version.split(".")[:2]] < [0, 7] and _holds_complex(path):
            text = f"{path} holds complex tensors, which safetensors {safetensors_version} does not read: 0.7 does"
            raise Unsupported(text) from error
        with open_regular(path) as file:
            kind = what_it_is(file.read(8))  # a damaged dump is not called a good .safetensors file
        wrong = WrongKind if kind else Corruption
        raise wrong(f"{path} is not a readable safetensors file: {error}{kind}") from error


def _holds_complex(path: Path) -> bool:
    """Return whether a file is a sound ``.safetensors`` file with tensors of complex numbers."""
    with contextlib.closing(open_source(path)) as source:
        try:
            plan_safetensors(str(path), source)
        except GcodecError:
            return False
        _, header = read_header(source, str(path))
    return any(entry.get("dtype") == "C64" for entry in header.values())
