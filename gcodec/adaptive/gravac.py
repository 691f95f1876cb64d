"""GraVAC: the compression factor that the loss of information allows and that throughput rewards (Tyagi and Swany,
IEEE CLOUD 2023, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ..compressors import Frames
from ..compressors.casts import Dense
from ..compressors.contract import Compressor, check_share, check_whole
from ..errors import InvalidArgument
from .contract import Measured, Selector, Settings, Shapes
from .losses import at_factor
from .policies import Exponential, Listed, ScalingPolicy

DENOMINATORS = ("fed", "raw")
METRICS = ("squared", "plain")


@dataclass
class GraVAC(Selector):
    """Each step tries two compression factors (values over floats sent), the least and a candidate, and sends the
    harshest that keeps enough; gradients as they are where neither does. Now and then the candidate rises.

    ``compressor``: any with a knob; one that chooses values is refined rather than run twice (``nested``). ``least``
    and ``most``: theta_min and theta_max. ``epsilon``: the least gain at which a factor is sent, the gain being the
    share of squared norms that is kept, over all ranks and tensors. ``window``: steps between checks, at which the
    candidate rises. ``omega``: what counts as equal, as a share: of gains, where theta_min rises to the candidate; of
    throughputs, where exploration ends. ``policy``: the candidates. ``weight`` of a new gain in its moving average;
    None: W / 100 for W ranks. ``denominator`` of the gain: "fed", gradients with error feedback, as in the text, or
    "raw", without, where a gain may exceed 1. ``metric``: of "squared" norms, as in the text, or of "plain" ones, the
    root of that, as in the published code. ``dense``: what is sent at a factor of 1. ``settle``: once all candidates
    have been tried, go on with the best of those that keep enough, where the paper stays with the last one: unless that
    keeps enough, theta_min is then all that is sent.

    Times reach a step late those whose throughput they are: see :class:`~gcodec.adaptive.contract.Measured`.
    """

    kind: ClassVar[str] = "GraVAC"
    compressor: Compressor
    least: float = 10.0
    most: float = 1000.0
    epsilon: float = 0.7
    window: int = 500
    omega: float = 0.01
    policy: ScalingPolicy = Exponential()  # noqa: RUF009 - frozen
    weight: float | None = None
    denominator: str = "fed"
    metric: str = "squared"
    nested: bool = True
    dense: Compressor = Dense()  # noqa: RUF009 - frozen
    settle: bool = False
    changing: ClassVar[tuple[str, ...]] = ("floor", "candidate", "step", "ideal", "gains", "throughputs", "log")
    floor: float = field(default=0.0, init=False, repr=False)  #: theta_min, as of now
    candidate: float = field(default=0.0, init=False, repr=False)  #: theta_s * theta_min
    step: int = field(default=0, init=False, repr=False)
    ideal: float = field(default=0.0, init=False, repr=False)  #: theta_ideal; 0: still exploring
    gains: dict[float, float] = field(default_factory=dict, init=False, repr=False)  #: moving averages, by factor
    throughputs: dict[float, float] = field(default_factory=dict, init=False, repr=False)  #: T_compress, by factor
    log: list[float] = field(default_factory=list, init=False, repr=False)  #: the factor of every step

    def __post_init__(self) -> None:
        check_whole("window", self.window)
        check_share("epsilon", self.epsilon)
        if not 1 <= self.least <= self.most or not self.omega >= 0:
            raise InvalidArgument(f"least={self.least}, most={self.most}: not in order from 1, or omega={self.omega}")
        if self.denominator not in DENOMINATORS or self.metric not in METRICS:
            raise InvalidArgument(
                f"denominator={self.denominator!r}, metric={self.metric!r}; of {DENOMINATORS}, {METRICS}"
            )
        if self.weight is not None:
            check_share("weight", self.weight)
        self.floor, self.candidate = self.least, self.policy.candidates(self.least, self.most)[0]

    def start(self, shapes: Shapes, size: int) -> None:
        super().start(shapes, size)
        self._by_factor: dict[float, Settings] = {}

    @property
    def fallback(self) -> Compressor:
        return self.dense

    @property
    def factors(self) -> tuple[float, ...]:
        """The factors that a step tries: theta_min and the candidate, or one if they are the same."""
        return (self.floor,) if self.candidate == self.floor else (self.floor, self.candidate)

    def probes(self) -> Sequence[Settings]:
        return [self._at(factor) for factor in self.factors]

    def choose(self, measured: Measured) -> int | None:
        """Decide an iteration, lines 7 to 27 of Algorithm 1."""
        self._update_throughput(measured)
        factors = self.factors
        for factor, kept in zip(factors, measured.kept, strict=True):
            self._update_gain(factor, kept, measured.fed if self.denominator == "fed" else measured.raw)
        finite = measured.fed < float("inf")
        enough = [n for n, factor in enumerate(factors) if finite and self.gains.get(factor, 0) >= self.epsilon]
        choice = enough[-1] if enough else None
        self.log.append(1.0 if choice is None else factors[choice])
        self.step += 1
        if self.step % self.window == 0 and not self.ideal:
            self._check()
        return choice

    def _at(self, factor: float) -> Settings:
        if factor not in self._by_factor:
            self._by_factor[factor] = {
                name: at_factor(self.compressor, factor, shape, self.dense) for name, shape in self.shapes.items()
            }
        return self._by_factor[factor]

    def _update_gain(self, factor: float, kept: float, whole: float) -> None:
        """EWMA of the gain, a factor's own: it begins with the first gain that the factor has."""
        if not 0 < whole < float("inf"):
            return
        weight = min(self.size / 100, 1.0) if self.weight is None else self.weight
        gain = kept / whole if self.metric == "squared" else math.sqrt(max(kept / whole, 0.0))
        self.gains[factor] = gain + (1 - weight) * (self.gains.get(factor, gain) - gain)

    def _update_throughput(self, measured: Measured) -> None:
        """UpdateStep, for the step before: samples per second times gain."""
        if not self.log or not measured.seconds > 0:
            return
        factor = self.log[-1]
        seconds = measured.seconds - (measured.measuring if factor == 1 else 0.0)
        gain = 1.0 if factor == 1 else self.gains[factor]
        if seconds > 0:
            self.throughputs[factor] = measured.samples / seconds * gain

    def _check(self) -> None:
        """CheckGraVAC: theta_min rises to the candidate just tried, where that keeps enough and has lost hardly more;
        then the two highest throughputs end the exploration, if they are equal, or the next candidate follows."""
        evaluated = self.candidate
        mild, harsh = self.gains.get(self.floor, 0.0), self.gains.get(evaluated, 0.0)
        if mild > 0 and harsh >= self.epsilon and abs(mild - harsh) <= self.omega * mild:
            self.floor = evaluated
        best = sorted(self.throughputs, key=lambda factor: (self.throughputs[factor], factor))[-2:]
        if len(best) == 2:
            second, first = (self.throughputs[factor] for factor in best)
            if abs(first - second) <= self.omega * second:
                self.ideal = self.candidate = min(best)
                self.floor = min(self.floor, self.ideal)
                return
        later = [factor for factor in self.policy.candidates(self.least, self.most) if factor > evaluated]
        if self.settle and self.most in self.gains:
            self.candidate = self._settled(evaluated)
        else:
            self.candidate = later[0] if later else evaluated

    def _settled(self, evaluated: float) -> float:
        """The factor of the highest throughput, from theta_min on, among those that kept enough when last tried; if
        none did, the candidate as it is."""
        enough = [factor for factor, gain in self.gains.items() if gain >= self.epsilon and factor >= self.floor]
        return max(enough, key=lambda factor: (self.throughputs.get(factor, 0.0), factor), default=evaluated)


def gravac_bits(
    bits: Sequence[int] = (16, 12, 9, 7, 5, 4, 3, 2, 1), epsilon: float = 0.9999, window: int = 500, omega: float = 0.01
) -> GraVAC:
    """GraVAC over gcodec's own frames: mantissa bits in place of densities, and lossless frames in place of dense
    gradients.

    ``bits``: the mildest setting, then the candidates, falling. The gain of k bits is about 1 - 4^-k / 23, so
    ``epsilon`` is close to 1: 0.9999 asks for 5 bits, 0.99 for 1 or 2. Factors in the log are nominal, 32 / (k + 9):
    what frames really save shows in the throughput. Raises InvalidArgument.
    """
    if len(bits) < 2 or sorted(set(bits), reverse=True) != list(bits):
        raise InvalidArgument(f"bits={bits!r} do not fall")
    factors = [32 / (k + 9) for k in bits]
    policy = Listed(tuple(factors[1:]))
    return GraVAC(Frames(bits[0]), factors[0], factors[-1], epsilon, window, omega, policy, dense=Frames())
