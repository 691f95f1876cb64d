"""Drive a controller: one rank's averaging of gradients, and the small sums that decisions are made from.

Like the averaging itself this is a conversation, so that it runs in one process as well as on real ranks:

    ranks = adaptive.ranks(4, TopK(0.01), GraVAC(TopK(0.01)))
    averages = run_conversations([rank.average(gradients[r]) for r, rank in enumerate(ranks)])
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Generator, Iterable, Mapping
from time import perf_counter
from typing import Any

import torch

from ..averaging.averager import Averager, CompressionPlan, compression_plan
from ..averaging.feedback import Carried, narrowed
from ..averaging.state import pack_by_tensor, pack_state, unpack_by_tensor, unpack_state
from ..compressors.contract import AllReduce, Compressor, Place, Request, check_gradient, check_whole, wide
from ..compressors.outcome import is_finite
from ..errors import InvalidArgument, check_state, naming_damaged_state
from .contract import Controller, Measured, Planner, Selector, Shapes
from .losses import square
from .multilevel import ProbeResult, probe_settings

_DECIDING_RANK = 0  #: the rank that reads a planner's tensors
_STATE = {"step", "averager", "controller", "shapes", "sums", "n_summed", "times"}  #: keys of a state
_ENTRIES = {"averager", "tensors", "adaptive", "sums"}  #: keys of a packed state


class Adaptive:
    """Averages the gradients of a model on one rank, with settings that a controller chooses.

    All gradients of a step come in one call of :meth:`average`, the same names at every step; or, where
    :attr:`in_parts` allows it, in parts: :meth:`begin`, :meth:`part` as often as needed, :meth:`end`.

    Args:
        averager: Averages the gradients.
        controller: Chooses the settings; every rank has a controller of its own.
        clock: Returns seconds.

    Attributes:
        step: Number of steps that have ended.
    """

    def __init__(self, averager: Averager, controller: Controller, clock: Callable[[], float] = perf_counter) -> None:
        self.averager, self.controller, self.clock = averager, controller, clock
        self.step = 0
        self._shapes: Shapes | None = None
        self._missing: set[str] = set()  #: tensors of a step in parts that are still to come
        self._sums: dict[str, torch.Tensor] = {}
        self._n_summed = 0
        self._ended: float | None = None
        self._seconds = self._measuring = self._samples = 0.0
        self._probed = 0.0  #: seconds of this step's probes

    def average(
        self,
        gradients: Mapping[str, torch.Tensor],
        params: Mapping[str, torch.Tensor] | None = None,
        *,
        rate: float | None = None,
        samples: float = 1.0,
        in_place: bool = False,
    ) -> Generator[Request, Any, dict[str, torch.Tensor]]:
        """Return the conversation about a step's gradients.

        Args:
            gradients: This rank's gradients, by name.
            params: Parameters by name, as for :meth:`Averager.average`.
            rate: Learning rate of this step, for controllers that need it.
            samples: Samples that this rank's gradients are from.
            in_place: As for :meth:`Averager.average`.

        Returns:
            A generator that returns the averages, by name.

        Raises:
            InvalidArgument: Names or shapes have changed since the first step, a gradient is sparse or no floats, or
                the controller has been at work in another one; or it may choose settings that must have no feedback,
                and the plan has some.
        """
        shapes = self._compressed(gradients)
        if self._shapes is None:
            if hasattr(self.controller, "shapes"):  # then it would mix what it learns here with what it learned there
                raise InvalidArgument(
                    f"controller must be newly made for each model, as {type(self.controller).__name__}(...) makes it: "
                    "this one has chosen settings for other gradients"
                )
            self._start(shapes)
        elif shapes != self._shapes:
            raise _change(dict(shapes.items() ^ self._shapes.items()))
        self.begin(rate)
        averages = yield from self.part(gradients, params, in_place)
        yield from self.end(samples)
        return averages

    def _start(self, shapes: Shapes) -> None:
        """Start the controller. Raises InvalidArgument if it may choose what must not go with the plan's feedback."""
        self.controller.start(shapes, self.averager.size)
        for setting in self.controller.possible() if self.averager.plan.feedback is not None else ():
            setting.check_feedback()
        self._shapes = shapes

    @property
    def in_parts(self) -> bool:
        """True if the next step's gradients may come in parts.

        Those of the first step may not, for the controller learns names and shapes from them; nor may those of a
        controller that decides within the step, from all of them.
        """
        return self._shapes is not None and not isinstance(self.controller, Selector)

    def begin(self, rate: float | None = None) -> None:
        """Begin a step whose gradients come in parts. A step that was begun before and not ended does not count.

        Args:
            rate: Learning rate of this step, for controllers that need it.

        Raises:
            InvalidArgument: It is the first step, from which the controller learns names and shapes.
        """
        if self._shapes is None:
            raise InvalidArgument("the first step must be one call of average(): its gradients may not come in parts")
        self._missing = set(self._shapes or {})
        self.averager.compressors.update(self.controller.settings(self.step, rate))

    def part(
        self,
        gradients: Mapping[str, torch.Tensor],
        params: Mapping[str, torch.Tensor] | None = None,
        in_place: bool = False,
    ) -> Generator[Request, Any, dict[str, torch.Tensor]]:
        """Return the conversation about some of a step's gradients; arguments and result as for :meth:`average`.

        Raises:
            InvalidArgument: Names or shapes are not those of earlier steps, or were there before in this one.
        """
        expected, shapes = self._shapes or {}, self._compressed(gradients)
        wrong = [name for name, shape in shapes.items() if name not in self._missing or shape != expected[name]]
        if wrong:
            raise _change(wrong)
        self._missing -= shapes.keys()
        if isinstance(self.controller, Selector) and shapes:
            self._probed = yield from self._select(self.controller, gradients, params or {})
        planner = self.controller if isinstance(self.controller, Planner) else None
        if planner is not None and planner.source != "average":
            self._add(gradients, shapes, planner)
        averages = yield from self.averager.average(gradients, params, in_place)
        if planner is not None and planner.source == "average":
            self._add(averages, shapes, planner)
        return averages

    def end(self, samples: float = 1.0) -> Generator[Request, Any, None]:
        """Return the conversation that ends a step in parts, in which the controller decides.

        Args:
            samples: Samples that this rank's gradients are from.

        Raises:
            InvalidArgument: Some parts are missing.
        """
        if self._missing:
            raise _change(self._missing)
        if isinstance(self.controller, Planner) and self._shapes:
            yield from self._plan(self.controller)
        self.step += 1
        self._time(self._probed, samples)
        self._probed = 0.0

    def skip(self) -> None:
        """Leave out of the next step's time whatever has passed since the last step, such as an evaluation."""
        self._ended = self.clock()

    def _compressed(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the gradients that are compressed, by name.

        Raises InvalidArgument for a sparse gradient, or one that is no floats.
        """
        for name, gradient in gradients.items():
            check_gradient(gradient, name)
        return {name: tuple(x.shape) for name, x in gradients.items() if self.averager.plan.compresses(x)}

    # within a step

    def _select(
        self, controller: Selector, gradients: Mapping[str, torch.Tensor], params: Mapping[str, torch.Tensor]
    ) -> Generator[Request, Any, float]:
        """Try the controller's probes, and let the one it chooses be sent. Returns the seconds it took."""
        begun, probes = self.clock(), controller.probes()
        sums, results = torch.zeros(5 + len(probes), dtype=torch.float64, device="cpu"), dict[str, list[ProbeResult]]()
        for name in self._shapes or {}:
            gradient, place = gradients[name].detach(), self._place(name, params)
            fed, memory = self._fed(gradient, place), self.averager.memories.setdefault(name, {})
            results[name] = probe_settings(fed, [probe[name] for probe in probes], memory, place, controller.nested)
            kept = [result.kept for result in results[name]]
            sums += torch.tensor([square(gradient), square(fed), 0, 0, 0, *kept], dtype=torch.float64, device="cpu")
        probed_seconds = self.clock() - begun
        size = self.averager.size
        times = [self._seconds / size, self._measuring / size, self._samples]
        sums[2:5] = torch.tensor(times, dtype=torch.float64, device="cpu")
        raw, fed_square, seconds, measuring, samples, *kept = (yield AllReduce(sums)).tolist()
        choice = controller.choose(Measured(raw, fed_square, tuple(kept), seconds, measuring, samples))
        for name, probed in results.items():
            self.averager.compressors[name] = controller.fallback if choice is None else probed[choice].compressor
        return probed_seconds

    def _place(self, name: str, params: Mapping[str, torch.Tensor]) -> Place:
        return Place(self.averager.rank, self.averager.size, name, params.get(name))

    def _fed(self, gradient: torch.Tensor, place: Place) -> torch.Tensor:
        """Return the gradient with error feedback, if there is any, as it will be compressed."""
        feedback, memory = self.averager.feedback_of(gradient), self.averager.memories.setdefault(place.name, {})
        carried = Carried(gradient) if feedback is None else feedback.before(gradient, memory, place)
        return narrowed(carried.corrected, gradient.dtype)

    def _time(self, measuring: float, samples: float) -> None:
        """Record how long the step has taken, where the end of the one before is known."""
        now = self.clock()
        is_timed = self._ended is not None
        self._seconds = now - self._ended if self._ended is not None else 0.0
        self._measuring, self._samples = (measuring, samples) if is_timed else (0.0, 0.0)
        self._ended = now

    # between steps

    def _plan(self, controller: Planner) -> Generator[Request, Any, None]:
        """Decide at the end of a period, on one rank, and tell all ranks."""
        self._n_summed += 1
        if (self.step + 1) % controller.period:
            return
        sums, n_steps = self._sums, self._n_summed
        if controller.source == "reduced":
            for name in self._shapes or {}:
                total = yield AllReduce(sums[name])
                sums[name] = total / self.averager.size
        numbers = torch.zeros(controller.n_numbers, dtype=torch.float64, device="cpu")
        if self.averager.rank == _DECIDING_RANK:
            decided = controller.decide({name: x / n_steps for name, x in sums.items()})
            numbers += torch.tensor(decided, dtype=torch.float64, device="cpu")
        decision = yield AllReduce(numbers)  # the other ranks' numbers are zero
        controller.apply(decision.tolist())
        self._sums, self._n_summed = {}, 0

    def _add(self, tensors: Mapping[str, torch.Tensor], names: Iterable[str], controller: Planner) -> None:
        """Add gradients to the period's sums, but for those that are not finite; only on ranks that need them.

        A tensor of which none was finite in a period has NaN for a sum: as zeros it would seem to lose nothing by the
        harshest setting.
        """
        if controller.source != "reduced" and self.averager.rank != _DECIDING_RANK:
            return
        for name in names:
            tensor, total = tensors[name].detach(), self._sums.get(name)
            tensor = tensor.to(wide(tensor.dtype))
            if not is_finite(tensor):
                self._sums[name] = torch.full_like(tensor, math.nan) if total is None else total
            elif total is None or bool(total.reshape(-1)[:1].isnan().any()):
                self._sums[name] = tensor.clone()
            else:
                total.add_(tensor)

    # checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's checkpoint needs, between steps: plain tensors, numbers and strings.

        Its averager's and its controller's states are included. How long the next step takes is not known after a
        resume, nor used.
        """
        return {
            "version": 1,
            "step": self.step,
            "averager": self.averager.state_dict(),
            "controller": self.controller.state_dict(),
            "shapes": {name: list(shape) for name, shape in (self._shapes or {}).items()},
            "sums": {name: tensor.clone() for name, tensor in self._sums.items()},
            "n_summed": self._n_summed,
            "times": [self._seconds, self._measuring, self._samples],
        }

    @naming_damaged_state()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, bit for bit but for times.

        Args:
            state: What :meth:`state_dict` returned on the same rank.

        Raises:
            InvalidArgument: The state is of another version, rank or controller, or of something else.
        """
        check_state(state)
        if state.get("version") != 1:
            raise InvalidArgument(f"the state must be of version 1, not {state.get('version')}")
        missing = _STATE - state.keys()
        if missing:
            raise InvalidArgument(f"the state lacks {sorted(missing)}; it must be one of Adaptive.state_dict()")
        self.averager.load_state_dict(state["averager"])
        if state["step"]:
            self._start({name: tuple(map(operator.index, shape)) for name, shape in state["shapes"].items()})
        self.controller.load_state_dict(state["controller"])
        self.step, self._n_summed = int(state["step"]), int(state["n_summed"])
        self._sums = {name: tensor.clone() for name, tensor in state["sums"].items()}
        for name, total in self._sums.items():  # others might be broadcast
            if total.shape != (self._shapes or {}).get(name):
                raise InvalidArgument(
                    f"the state has a sum of shape {tuple(total.shape)} for {name!r}, another than that of the tensor"
                )
        self._seconds, self._measuring, self._samples = map(float, state["times"])
        self._ended = None


def _change(names: Iterable[str]) -> InvalidArgument:
    """Return the error for gradients that differ from those of earlier steps."""
    return InvalidArgument(
        f"the same tensors must be compressed once in each step, in the same shapes; these were not: {sorted(names)}. "
        "For parameters that are added, frozen or no longer frozen make a new controller, and a new state of the hook"
    )


def ranks(
    size: int,
    plan: CompressionPlan | Compressor | str,
    controller: Controller,
    clock: Callable[[], float] = perf_counter,
) -> list[Adaptive]:
    """Return ranks in one process for :func:`~gcodec.averaging.simulate.run_conversations`.

    Args:
        size: Number of ranks.
        plan: Plan of all ranks, or what :func:`~gcodec.averaging.averager.compression_plan` makes one of.
        controller: Controller, of which each rank gets a copy.
        clock: Returns seconds.

    Raises:
        InvalidArgument: ``size`` is no number of ranks, or ``plan`` nothing that a plan can be made of.
    """
    check_whole("size", size)
    plan = compression_plan(plan)
    return [Adaptive(Averager(plan, rank, size), copy.deepcopy(controller), clock) for rank in range(size)]


def packed_state(adaptive: Adaptive, names: Iterable[str]) -> dict[str, Any]:
    """Return this rank's state as strings, a string for each tensor, whatever has happened so far.

    A distributed checkpoint restores only what the new state has an entry for, so every tensor in ``names`` has one.
    """
    names, state = list(names), adaptive.state_dict()
    averager, sums = state.pop("averager"), state.pop("sums")
    return {
        **pack_by_tensor(averager, names),
        "adaptive": pack_state(state),
        "sums": {name: pack_state(sums.get(name)) for name in names},
    }


@naming_damaged_state()
def load_packed_state(adaptive: Adaptive, state: Mapping[str, Any], params: Mapping[str, torch.Tensor]) -> None:
    """Go on from :func:`packed_state`, bit for bit but for times.

    Args:
        adaptive: A rank that has made no step.
        state: What :func:`packed_state` returned on the same rank.
        params: Parameters by name; tensors of the state are put where these are.

    Raises:
        InvalidArgument: For a state of something else, of another rank or controller, or of a model with other names or
            shapes.
    """
    if not state.keys() >= _ENTRIES:
        raise InvalidArgument(f"the state lacks {sorted(_ENTRIES - state.keys())}; it must be one of packed_state()")
    devices = {name: param.device for name, param in params.items()}
    sums = {name: unpack_state(text, devices.get(name)) for name, text in state["sums"].items()}
    sums = {name: total for name, total in sums.items() if total is not None}
    averager = unpack_by_tensor(state, params)
    adaptive.load_state_dict({**unpack_state(state["adaptive"]), "averager": averager, "sums": sums})
