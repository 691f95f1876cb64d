"""An optimizer around an optimizer, which averages gradients before each step: the paper's GravacOptimizer
(section III), for any controller."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch

from ..averaging.state import pack_state, unpack_state
from ..compressors.contract import Request
from ..errors import InvalidArgument
from .driver import Adaptive, load_packed_state, packed_state

Communicate = Callable[[Generator[Request, Any, Any]], Any]


class AdaptiveOptimizer(torch.optim.Optimizer):
    """Averages the gradients over ranks, compressed as the controller of ``adaptive`` says, and steps ``optimizer``.

        adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1)), rank, size), GraVAC(TopK(0.1)))
        optimizer = AdaptiveOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                      adaptive, communicate)

    The model is not under DDP: its gradients are this rank's own until the step. ``communicate``: has a conversation
    with the other ranks, and returns what it comes to (``compressors.alone`` where there are none). Learning-rate
    schedulers and the rest take this in the place of ``optimizer``: parameter groups and state are the same objects.

    The controller hears the learning rate of the first parameter group, and ``samples`` per step and rank. Raises
    InvalidArgument for a parameter of the optimizer without a name, or for a momentum that the plan must not be
    combined with.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        adaptive: Adaptive,
        communicate: Communicate,
        samples: float = 1.0,
    ) -> None:
        self.optimizer, self.adaptive, self.communicate = optimizer, adaptive, communicate
        self.samples = samples
        self._params = dict(named_parameters)
        known = {id(param) for param in self._params.values()}
        if any(id(param) not in known for group in optimizer.param_groups for param in group["params"]):
            raise InvalidArgument("the optimizer has parameters that are not in named_parameters")
        feedback = adaptive.averager.plan.feedback
        if feedback is not None:
            feedback.check(optimizer)

    def step(self, closure: Any = None) -> Any:
        """Average, then step. A parameter without gradient counts as one of zeros, for others may have one.

        Raises InvalidArgument for a closure, whose gradients would not be averaged.
        """
        if closure is not None:
            raise InvalidArgument("a closure computes gradients that nobody averages")
        params = {name: param for name, param in self._params.items() if param.requires_grad}
        gradients = {
            name: torch.zeros_like(param) if param.grad is None else param.grad for name, param in params.items()
        }
        rate = float(self.param_groups[0]["lr"])
        conversation = self.adaptive.average(gradients, params, rate=rate, samples=self.samples)
        for name, average in self.communicate(conversation).items():
            params[name].grad = average
        return self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's checkpoint needs, as strings and numbers.

        It has the optimizer's state, which all ranks have alike, and under ``"rank<r>"`` what only this one has.

        ``torch.load`` takes it with ``weights_only=True``, and a distributed checkpoint in place, of this object
        itself: ``{"optimizer": optimizer}``. (``get_optimizer_state_dict`` of torch.distributed.checkpoint makes a step
        of its own to see what there is.)
        """
        inner = self.optimizer.state_dict()
        state = {name: pack_state(inner["state"].get(number)) for number, name in enumerate(self._stepped)}
        whole = {"groups": pack_state(inner["param_groups"]), "state": state}
        return {"version": 1, "optimizer": whole, self._own: packed_state(self.adaptive, self._params)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from :meth:`state_dict` of the same rank, bit for bit. Raises InvalidArgument for another version's,
        rank's, controller's or model's."""
        own, inner = state_dict.get(self._own), state_dict.get("optimizer", {})
        names = list(inner.get("state", {}))
        if state_dict.get("version") != 1 or own is None or sorted(names) != sorted(self._stepped):
            raise InvalidArgument(
                f"a state of version {state_dict.get('version')} with {list(state_dict)}, of {names}: "
                f"this is version 1, {self._own}, of {self._stepped}"
            )
        groups = unpack_state(inner["groups"])
        for group, now in zip(groups, self.optimizer.param_groups, strict=False):
            group |= {key: tuple(group[key]) for key, one in now.items() if isinstance(one, tuple) and key in group}
        known = {number: unpack_state(inner["state"][name]) for number, name in enumerate(self._stepped)}
        load_packed_state(self.adaptive, own, self._params)
        self.optimizer.load_state_dict(
            {"state": {number: one for number, one in known.items() if one is not None}, "param_groups": groups}
        )

    @property
    def _own(self) -> str:
        return f"rank{self.adaptive.averager.rank}"

    @property
    def _stepped(self) -> list[str]:
        """Names of the optimizer's parameters, in the order in which its state numbers them."""
        names = {id(param): name for name, param in self._params.items()}
        return [names[id(param)] for group in self.optimizer.param_groups for param in group["params"]]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises InvalidArgument: names are known from the start."""
        raise InvalidArgument("a new parameter group has no names: make a new AdaptiveOptimizer")

    def __getattr__(self, name: str) -> Any:
        """Parameter groups, state and defaults are the inner optimizer's."""
        if name == "optimizer":  # not made yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"AdaptiveOptimizer({self.optimizer!r}, {self.adaptive.controller!r})"
