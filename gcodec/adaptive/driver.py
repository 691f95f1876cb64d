"""A controller at work: one rank's averaging of gradients, and the small sums that its decisions are made from.

Like the averaging itself this is a conversation, so that it runs in one process as well as on real ranks:

    ranks = adaptive.ranks(4, TopK(0.01), GraVAC(TopK(0.01)))
    averages = run_conversations([rank.average(own) for rank, own in zip(ranks, gradients)])
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Mapping
from time import perf_counter
from typing import Any

import torch

from ..averaging.averager import Averager, CompressionPlan
from ..averaging.feedback import Carried
from ..averaging.state import pack_state, unpack_state
from ..compressors.contract import AllReduce, Compressor, Place, Request, wide
from ..compressors.outcome import is_finite
from ..errors import InvalidArgument
from .contract import Controller, Measured, Planner, Selector, Shapes
from .losses import square
from .multilevel import ProbeResult, probe_settings

_DECIDES = 0  #: the rank that looks at a planner's tensors
_ENTRIES = {"averager", "tensors", "adaptive", "sums"}  #: of a packed state


class Adaptive:
    """Averages the gradients of a model on one rank, with settings that a controller chooses.

    ``averager``: what does it; ``controller``: this rank's own, which no other rank's shares. ``clock`` counts seconds.
    All gradients of a step come in one call of :meth:`average`, the same names at every step; or, where that is
    allowed, in parts: :meth:`begin`, :meth:`part` as often as needed, :meth:`end`.
    """

    def __init__(
        self, averager: Averager, controller: Controller, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.averager, self.controller, self.clock = averager, controller, clock
        self.step = 0  #: steps ended
        self._shapes: Shapes | None = None
        self._missing: set[str] = set()  #: of a step in parts: what is still to come
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
        """The conversation about a step's gradients: returns their averages.

        ``params`` and ``in_place`` as for :meth:`Averager.average`; ``rate``: the learning rate of this step, for
        controllers that look at it; ``samples`` that this rank's gradients are from. Raises InvalidArgument where names
        or shapes change.
        """
        shapes = self._compressed(gradients)
        if self._shapes is None:
            self._shapes = shapes
            self.controller.start(shapes, self.averager.size)
        elif shapes != self._shapes:
            raise _change(dict(shapes.items() ^ self._shapes.items()))
        self.begin(rate)
        averages = yield from self.part(gradients, params, in_place)
        yield from self.end(samples)
        return averages

    @property
    def in_parts(self) -> bool:
        """The next step's gradients may come in parts: not the first one's, from which the controller learns
        what there is, and not those of a controller that decides within the step, from all of them."""
        return self._shapes is not None and not isinstance(self.controller, Selector)

    def begin(self, rate: float | None = None) -> None:
        """The settings of a step, whose gradients come in parts. One that was begun before and not ended does not
        count."""
        self._missing = set(self._shapes or {})
        self.averager.compressors.update(self.controller.settings(self.step, rate))

    def part(
        self,
        gradients: Mapping[str, torch.Tensor],
        params: Mapping[str, torch.Tensor] | None = None,
        in_place: bool = False,
    ) -> Generator[Request, Any, dict[str, torch.Tensor]]:
        """The conversation about some of a step's gradients: returns their averages. Raises InvalidArgument for names
        or shapes that are not those of other steps, or that were there before in this one."""
        known, shapes = self._shapes or {}, self._compressed(gradients)
        wrong = [name for name, shape in shapes.items() if name not in self._missing or shape != known[name]]
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
        """The conversation in which what needs all of a step is decided, once all parts are there. Raises
        InvalidArgument where some are not."""
        if self._missing:
            raise _change(self._missing)
        if isinstance(self.controller, Planner) and self._shapes:
            yield from self._plan(self.controller)
        self.step += 1
        self._time(self._probed, samples)
        self._probed = 0.0

    def skip(self) -> None:
        """Whatever has passed since the last step, such as an evaluation, was no part of the next one."""
        self._ended = self.clock()

    def _compressed(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
        """The shapes of those that are compressed."""
        return {name: tuple(x.shape) for name, x in gradients.items() if self.averager.plan.compresses(x)}

    # within a step

    def _select(
        self, controller: Selector, gradients: Mapping[str, torch.Tensor], params: Mapping[str, torch.Tensor]
    ) -> Generator[Request, Any, float]:
        """Try the controller's probes, and let the one it chooses be sent. Returns the seconds it took."""
        begun, probes = self.clock(), controller.probes()
        sums, tried = torch.zeros(5 + len(probes), dtype=torch.float64), dict[str, list[ProbeResult]]()
        for name in self._shapes or {}:
            gradient, place = gradients[name].detach(), self._place(name, params)
            fed, memory = self._fed(gradient, place), self.averager.memories.setdefault(name, {})
            tried[name] = probe_settings(fed, [probe[name] for probe in probes], memory, place, controller.nested)
            kept = [level.kept for level in tried[name]]
            sums += torch.tensor([square(gradient), square(fed), 0, 0, 0, *kept], dtype=torch.float64)
        took = self.clock() - begun
        size = self.averager.size
        sums[2:5] = torch.tensor([self._seconds / size, self._measuring / size, self._samples])
        raw, whole, seconds, measuring, samples, *left = (yield AllReduce(sums)).tolist()
        choice = controller.choose(Measured(raw, whole, tuple(left), seconds, measuring, samples))
        for name, found in tried.items():
            self.averager.compressors[name] = controller.fallback if choice is None else found[choice].compressor
        return took

    def _place(self, name: str, params: Mapping[str, torch.Tensor]) -> Place:
        return Place(self.averager.rank, self.averager.size, name, params.get(name))

    def _fed(self, gradient: torch.Tensor, place: Place) -> torch.Tensor:
        """Return what is compressed in a gradient's place: with error feedback, if there is any."""
        feedback, memory = self.averager.feedback_of(gradient), self.averager.memories.setdefault(place.name, {})
        carried = Carried(gradient) if feedback is None else feedback.before(gradient, memory, place)
        return carried.corrected.to(gradient.dtype)

    def _time(self, measuring: float, samples: float) -> None:
        now = self.clock()
        known = self._ended is not None
        self._seconds = now - self._ended if self._ended is not None else 0.0
        self._measuring, self._samples = (measuring, samples) if known else (0.0, 0.0)
        self._ended = now

    # between steps

    def _plan(self, controller: Planner) -> Generator[Request, Any, None]:
        """At the end of a period decide, on one rank, and tell all."""
        self._n_summed += 1
        if (self.step + 1) % controller.period:
            return
        sums, n_steps = self._sums, self._n_summed
        if controller.source == "reduced":
            for name in self._shapes or {}:
                total = yield AllReduce(sums[name])
                sums[name] = total / self.averager.size
        numbers = torch.zeros(controller.n_numbers, dtype=torch.float64)
        if self.averager.rank == _DECIDES:
            numbers += torch.tensor(controller.decide({name: x / n_steps for name, x in sums.items()}))
        told = yield AllReduce(numbers)
        controller.apply(told.tolist())
        self._sums, self._n_summed = {}, 0

    def _add(self, tensors: Mapping[str, torch.Tensor], names: Iterable[str], controller: Planner) -> None:
        """Some of one more step's gradients, unless they are not finite; only where they are looked at."""
        if controller.source != "reduced" and self.averager.rank != _DECIDES:
            return
        for name in names:
            tensor = tensors[name].detach()
            tensor = torch.zeros_like(tensor) if not is_finite(tensor) else tensor
            tensor = tensor.to(wide(tensor.dtype))
            self._sums[name] = self._sums[name].add_(tensor) if name in self._sums else tensor.clone()

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

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, bit for bit but for times. Raises InvalidArgument for another version's, rank's or
        controller's."""
        if state.get("version") != 1:
            raise InvalidArgument(f"a state of version {state.get('version')}; this is version 1")
        self.averager.load_state_dict(state["averager"])
        if state["step"]:
            self._shapes = {name: tuple(shape) for name, shape in state["shapes"].items()}
            self.controller.start(self._shapes, self.averager.size)
        self.controller.load_state_dict(state["controller"])
        self.step, self._n_summed = int(state["step"]), int(state["n_summed"])
        self._sums = {name: tensor.clone() for name, tensor in state["sums"].items()}
        self._seconds, self._measuring, self._samples = map(float, state["times"])
        self._ended = None


def _change(names: Iterable[str]) -> InvalidArgument:
    return InvalidArgument(f"gradients that are compressed change from step to step: {sorted(names)}")


def ranks(
    size: int, plan: CompressionPlan | Compressor, controller: Controller, clock: Callable[[], float] = perf_counter
) -> list[Adaptive]:
    """Return ``size`` ranks in one process, each with a controller of its own, for
    :func:`~gcodec.averaging.simulate.run_conversations`."""
    plan = plan if isinstance(plan, CompressionPlan) else CompressionPlan(plan)
    return [Adaptive(Averager(plan, rank, size), copy.deepcopy(controller), clock) for rank in range(size)]


def packed_state(adaptive: Adaptive, names: Iterable[str]) -> dict[str, Any]:
    """Return this rank's state as strings, a string for each tensor, whatever has happened so far.

    A distributed checkpoint restores only what the new state has an entry for, so every tensor in ``names`` has one.
    """
    names, state = list(names), adaptive.state_dict()
    averager, sums = state.pop("averager"), state.pop("sums")
    tensors = averager.pop("tensors")
    return {
        "averager": pack_state(averager),
        "tensors": {name: pack_state(tensors.get(name, {})) for name in names},
        "adaptive": pack_state(state),
        "sums": {name: pack_state(sums.get(name)) for name in names},
    }


def load_packed_state(
    adaptive: Adaptive, state: Mapping[str, Any], params: Mapping[str, torch.Tensor]
) -> None:
    """Go on from :func:`packed_state`, bit for bit but for times.

    Args:
        adaptive: A rank that has made no step.
        state: What :func:`packed_state` returned on the same rank.
        params: Parameters by name; tensors of the state are put where these are.

    Raises:
        InvalidArgument: For a state of something else, or of another rank or controller.
    """
    if not state.keys() >= _ENTRIES:
        raise InvalidArgument(f"a state without a controller's {sorted(_ENTRIES - state.keys())}")
    devices = {name: param.device for name, param in params.items()}
    tensors = {name: unpack_state(text, devices.get(name)) for name, text in state["tensors"].items()}
    sums = {name: unpack_state(text, devices.get(name)) for name, text in state["sums"].items()}
    sums = {name: found for name, found in sums.items() if found is not None}
    averager = {**unpack_state(state["averager"]), "tensors": tensors}
    adaptive.load_state_dict({**unpack_state(state["adaptive"]), "averager": averager, "sums": sums})
