"""An optimizer around an optimizer, which averages gradients before each step.

It is GraVAC's GravacOptimizer (section III of the paper), for any controller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch

from ..averaging.state import pack_state, unpack_state
from ..compressors.contract import AllReduce, Request
from ..compressors.outcome import is_finite
from ..errors import InvalidArgument, check_state, naming_damaged_state
from ..truncation.optimizers import check_takes_averages
from .driver import Adaptive, load_packed_state, packed_state

Communicate = Callable[[Generator[Request, Any, Any]], Any]


class AdaptiveOptimizer(torch.optim.Optimizer):
    """Averages the gradients over ranks, compressed as a controller says, and steps the optimizer inside.

        adaptive = Adaptive(Averager(CompressionPlan(TopK(0.1)), rank, size), GraVAC(TopK(0.1)))
        optimizer = AdaptiveOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                      adaptive, communicate)

    The model is not under DDP: its gradients are this rank's own until the step. Learning-rate schedulers and the rest
    take this in place of the optimizer: parameter groups and state are the same objects. The controller is told the
    learning rate of the first parameter group.

    A ``torch.amp.GradScaler`` takes it, too. Each rank divides its gradients by its own scale before they are averaged,
    and where the gradients of one rank have overflowed, all ranks leave out the step of the optimizer inside.

    Args:
        optimizer: The optimizer inside.
        named_parameters: Parameters with their names, all of the optimizer's among them.
        adaptive: Averages the gradients.
        communicate: Has a conversation with the other ranks, and returns its result (``compressors.alone`` where there
            are none).
        samples: Samples per step and rank.

    Raises:
        InvalidArgument: An argument is of another type, a parameter of the optimizer has no name, the plan's feedback
            must not be combined with the optimizer's momentum, or the optimizer needs a closure (LBFGS) or sparse
            gradients (SparseAdam).
    """

    #: Read by gradient scalers: one then calls :meth:`step` even if this rank's gradients have overflowed, as the other
    #: ranks wait for it, and says by the attributes ``grad_scale`` and ``found_inf`` what is left to do.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        adaptive: Adaptive,
        communicate: Communicate,
        samples: float = 1.0,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(f"optimizer must be a torch.optim.Optimizer, not a {type(optimizer).__name__}")
        check_takes_averages(optimizer)
        if not isinstance(adaptive, Adaptive):
            raise InvalidArgument(f"adaptive must be a gcodec.adaptive.Adaptive, not a {type(adaptive).__name__}")
        if not callable(communicate):
            raise InvalidArgument(f"communicate must be a function, such as compressors.alone, not {communicate!r:.80}")
        self.optimizer, self.adaptive, self.communicate = optimizer, adaptive, communicate
        self.samples = samples
        try:
            self._params = dict(named_parameters)
        except (TypeError, ValueError):
            raise InvalidArgument("named_parameters must be pairs, as model.named_parameters() has them") from None
        named = {id(param) for param in self._params.values()}
        unnamed = [param for group in optimizer.param_groups for param in group["params"] if id(param) not in named]
        if unnamed:
            raise InvalidArgument(
                f"named_parameters must have all parameters of the optimizer; {len(unnamed)} are missing, the first of "
                f"shape {tuple(unnamed[0].shape)}"
            )
        feedback = adaptive.averager.plan.feedback
        if feedback is not None:
            feedback.check(optimizer)

    def step(self, closure: Any = None) -> Any:
        """Average the gradients, then step.

        A parameter without a gradient counts as one of zeros, for other ranks may have a gradient of it. Where no rank
        has one, and error feedback has nothing left of it, the optimizer inside leaves the parameter as it is.

        Args:
            closure: None.

        Returns:
            What the optimizer's ``step`` returns; None where scaled gradients have overflowed on some rank.

        Raises:
            InvalidArgument: There is a closure, whose gradients would not be averaged, or a gradient scaler is to
                unscale float16 gradients, whose small values would be lost.
        """
        if closure is not None:
            raise InvalidArgument("closure must be None: its gradients would not be averaged")
        params = {name: param for name, param in self._params.items() if param.requires_grad}
        gradients = {
            name: torch.zeros_like(param) if param.grad is None else param.grad for name, param in params.items()
        }
        is_scaled = "found_inf" in vars(self)
        if is_scaled:
            gradients = self._unscaled(gradients)
        rate = float(self.param_groups[0]["lr"])
        averages, unused = self.communicate(self._averaged(gradients, params, rate))
        for name, average in averages.items():
            params[name].grad = None if name in unused else average
        if is_scaled and not all(is_finite(average) for average in averages.values()):
            return None
        return self.optimizer.step()

    def _averaged(
        self, gradients: dict[str, torch.Tensor], params: dict[str, torch.nn.Parameter], rate: float
    ) -> Generator[Request, Any, tuple[dict[str, torch.Tensor], set[str]]]:
        """Return the conversation about a step's gradients, which returns the averages, by name, and the names of those
        parameters of which no rank has a gradient.

        Ranks need not ask each other about averages that are not all zeros, and all ranks have the same averages.
        """
        averages = yield from self.adaptive.average(gradients, params, rate=rate, samples=self.samples)
        if not averages:
            return averages, set()
        where = next(iter(averages.values())).device
        used = torch.stack([average.any().to(where) for average in averages.values()]).tolist()
        zeros = [name for name, is_used in zip(averages, used, strict=True) if not is_used]
        if not zeros:
            return averages, set()
        owners = torch.tensor([float(params[name].grad is not None) for name in zeros], device=where)
        n_ranks = yield AllReduce(owners)
        return averages, {name for name, n in zip(zeros, n_ranks.tolist(), strict=True) if n == 0}

    def _unscaled(self, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the gradients without the scale of the gradient scaler that calls ``step``.

        If it has found one that is not finite, all are NaN: then all averages are, on every rank, so that no rank takes
        the step, and no residual counts as sent what the step would have used.
        """
        if float(self.found_inf):
            return {name: torch.full_like(gradient, math.nan) for name, gradient in gradients.items()}
        if self.grad_scale is None:  # the user has unscaled them
            return gradients
        narrow = [name for name, gradient in gradients.items() if gradient.dtype == torch.float16]
        if narrow:
            raise InvalidArgument(
                f"a gradient scaler needs gradients in float32, as those of parameters in float32 under autocast, not "
                f"in float16, as of {narrow[0]!r}"
            )
        inverse = 1 / float(self.grad_scale)
        return {name: gradient.mul_(inverse) for name, gradient in gradients.items()}

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
        return {"version": 1, "optimizer": whole, self._rank_key: packed_state(self.adaptive, self._params)}

    @naming_damaged_state()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state, bit for bit.

        Args:
            state_dict: What :meth:`state_dict` returned on the same rank.

        Raises:
            InvalidArgument: The state is of another version, rank, controller or model.
        """
        check_state(state_dict)
        rank_state, inner = state_dict.get(self._rank_key), state_dict.get("optimizer", {})
        names = list(inner.get("state", {}))
        if state_dict.get("version") != 1 or rank_state is None or sorted(names) != sorted(self._stepped):
            raise InvalidArgument(
                f"the state must be of version 1 with {self._rank_key!r}, for parameters {self._stepped}, not of "
                f"version {state_dict.get('version')} with {list(state_dict)}, for {names}"
            )
        groups = unpack_state(inner["groups"])
        for group, current in zip(groups, self.optimizer.param_groups, strict=False):
            group |= {key: tuple(group[key]) for key, x in current.items() if isinstance(x, tuple) and key in group}
        states = {number: unpack_state(inner["state"][name]) for number, name in enumerate(self._stepped)}
        load_packed_state(self.adaptive, rank_state, self._params)
        self.optimizer.load_state_dict(
            {"state": {number: state for number, state in states.items() if state is not None}, "param_groups": groups}
        )

    @property
    def _rank_key(self) -> str:
        """The key of this rank's entry in a state."""
        return f"rank{self.adaptive.averager.rank}"

    @property
    def _stepped(self) -> list[str]:
        """The names of the optimizer's parameters, in the order in which its state numbers them."""
        names = {id(param): name for name, param in self._params.items()}
        return [names[id(param)] for group in self.optimizer.param_groups for param in group["params"]]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise InvalidArgument: parameters of a new group would have no names."""
        raise InvalidArgument("parameter groups cannot be added, for their parameters have no names: make a new one")

    def __getattr__(self, name: str) -> Any:
        """Return the inner optimizer's parameter groups, state and defaults."""
        if name == "optimizer":  # not made yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"AdaptiveOptimizer({self.optimizer!r}, {self.adaptive.controller!r})"
