"""GraVAC finds the compression factor that the loss of information allows and that throughput rewards.

Tyagi and Swany, IEEE CLOUD 2023, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..compressors import Frames
from ..compressors.casts import Dense
from ..compressors.contract import Compressor, check_share, check_whole
from ..errors import InvalidArgument, check_choice
from .contract import Measured, Selector, Settings, Shapes
from .losses import at_factor
from .policies import Exponential, Listed, ScalingPolicy

DENOMINATORS = ("fed", "raw")
METRICS = ("squared", "plain")


@dataclass
class GraVAC(Selector):
    """Each step tries two compression factors, theta_min and a candidate, and sends the harsher one that keeps enough.

    A factor is values over floats sent. Its gain is the share of squared norms that it keeps, over all ranks and
    tensors. Where neither factor reaches ``epsilon``, gradients are sent dense. At every check the candidate rises, and
    the moving averages of both factors' gains begin anew, together: they are then of the same steps, and comparable.
    A step's time is known, and counted for its factor's throughput, one step later: see
    :class:`~gcodec.adaptive.contract.Measured`.

    Attributes:
        compressor: Any compressor with a knob; one that chooses values is refined rather than run twice (``nested``).
        least: Lowest factor, theta_min at the start; at least 1.
        most: Highest factor, theta_max.
        epsilon: Min gain at which a factor is sent, in (0, 1].
        window: Steps between checks.
        omega: Relative difference that counts as none: of gains, where theta_min rises to the candidate; of
            throughputs, where exploration ends.
        policy: Gives the candidates.
        weight: Weight of a new gain in its moving average, in (0, 1]; None for W / 100 with W ranks, as in the paper,
            but at least 3 / window, so that the average is one of the window's gains rather than of its first.
        denominator: Denominator of the gain: "fed", gradients with error feedback, as in the text; or "raw", without,
            where a gain may exceed 1.
        metric: Gain of "squared" norms, as in the text, or of "plain" ones, its root, as in the published code.
        nested: Let each probe choose among the values that the one before has chosen; otherwise among all.
        dense: Setting that is sent at a factor of 1.
        settle: Go on with the best of the candidates that keep enough, once all have been tried. The paper stays with
            the last one: unless that keeps enough, theta_min is then all that is sent.
        floor: Current theta_min.
        candidate: Current candidate, theta_s * theta_min.
        step: Steps so far.
        ideal: theta_ideal; 0 while exploring.
        gains: Moving average of each factor's gains, as it was when the factor was last tried.
        anew: True where the averages of the factors tried begin anew with the next step's gains.
        throughputs: T_compress of each factor, samples per second times gain.
        log: Factor of every step.
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
    changing: ClassVar[tuple[str, ...]] = ("floor", "candidate", "step", "ideal", "gains", "anew", "throughputs", "log")
    floor: float = field(default=0.0, init=False, repr=False)
    candidate: float = field(default=0.0, init=False, repr=False)
    step: int = field(default=0, init=False, repr=False)
    ideal: float = field(default=0.0, init=False, repr=False)
    gains: dict[float, float] = field(default_factory=dict, init=False, repr=False)
    anew: bool = field(default=True, init=False, repr=False)
    throughputs: dict[float, float] = field(default_factory=dict, init=False, repr=False)
    log: list[float] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("window", self.window)
        check_share("epsilon", self.epsilon)
        if not 1 <= self.least <= self.most < math.inf:
            raise InvalidArgument(
                f"1 <= least <= most must hold, and most be finite, not least={self.least}, most={self.most}"
            )
        if not self.omega >= 0:
            raise InvalidArgument(f"omega must be at least 0, not {self.omega}")
        check_choice("denominator", self.denominator, DENOMINATORS)
        check_choice("metric", self.metric, METRICS)
        if self.weight is not None:
            check_share("weight", self.weight)
        self.floor, self.candidate = self.least, self.policy.candidates(self.least, self.most)[0]

    def start(self, shapes: Shapes, size: int) -> None:
        super().start(shapes, size)
        self._by_factor: dict[float, Settings] = {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Args:
            state: What :meth:`~gcodec.adaptive.contract.Controller.state_dict` returned.

        Raises:
            InvalidArgument: The state is another controller's, or has a factor, other than 1 for dense, outside of
                ``least`` ... ``most``.
        """
        super().load_state_dict(state)
        for factor in self.factors:
            if factor != 1 and not self.least <= factor <= self.most:
                raise InvalidArgument(
                    f"the state has a factor of {factor:g}, but least={self.least:g} and most={self.most:g}: make the "
                    "controller as it was when the state was saved, or load no state"
                )

    @property
    def fallback(self) -> Compressor:
        return self.dense

    @property
    def factors(self) -> tuple[float, ...]:
        """The factors that a step tries: theta_min and the candidate, or a single one if they are the same."""
        return (self.floor,) if self.candidate == self.floor else (self.floor, self.candidate)

    def probes(self) -> Sequence[Settings]:
        return [self._at(factor) for factor in self.factors]

    def choose(self, measured: Measured) -> int | None:
        """Decide an iteration, lines 7 to 27 of Algorithm 1."""
        self._update_throughput(measured)
        factors = self.factors
        self._update_gains(measured.kept, measured.fed if self.denominator == "fed" else measured.raw)
        finite = measured.fed < float("inf")
        enough = [n for n, factor in enumerate(factors) if finite and self.gains.get(factor, 0) >= self.epsilon]
        choice = enough[-1] if enough else None
        self.log.append(1.0 if choice is None else factors[choice])
        self.step += 1
        if self.step % self.window == 0 and not self.ideal:
            self._check()
            self.anew = self.anew or self.factors != factors
        return choice

    def _at(self, factor: float) -> Settings:
        if factor not in self._by_factor:
            self._by_factor[factor] = {
                name: at_factor(self.compressor, factor, shape, self.dense) for name, shape in self.shapes.items()
            }
        return self._by_factor[factor]

    def _update_gains(self, kept: Sequence[float], whole: float) -> None:
        """Update the moving averages (EWMA) of the gains of the factors tried, which begin with a window's first gains.

        One that went on from earlier windows would be of other gradients than the candidate's: beside a candidate of
        a calmer time, theta_min could seem to keep less than a factor four times as high.
        """
        if not 0 < whole < float("inf"):
            return
        weight = min(max(self.size / 100, 3 / self.window), 1.0) if self.weight is None else self.weight
        for factor, kept_square in zip(self.factors, kept, strict=True):
            gain = kept_square / whole if self.metric == "squared" else math.sqrt(max(kept_square / whole, 0.0))
            before = gain if self.anew else self.gains.get(factor, gain)
            self.gains[factor] = gain + (1 - weight) * (before - gain)
        self.anew = False

    def _update_throughput(self, measured: Measured) -> None:
        """Update the throughput of the step before, samples per second times gain (the paper's UpdateStep)."""
        if not self.log or not measured.seconds > 0:
            return
        factor = self.log[-1]
        seconds = measured.seconds - (measured.measuring if factor == 1 else 0.0)
        gain = 1.0 if factor == 1 else self.gains[factor]
        if seconds > 0:
            self.throughputs[factor] = measured.samples / seconds * gain

    def _check(self) -> None:
        """Move theta_min and the candidate (the paper's CheckGraVAC).

        theta_min rises to the candidate just tried, where that keeps enough and has lost hardly more. Then the two
        highest throughputs end the exploration, if they are equal, or the next candidate follows.
        """
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
        higher = [factor for factor in self.policy.candidates(self.least, self.most) if factor > evaluated]
        if self.settle and self.most in self.gains:
            self.candidate = self._settled(evaluated)
        else:
            self.candidate = higher[0] if higher else evaluated

    def _settled(self, evaluated: float) -> float:
        """Return the factor of the highest throughput, from theta_min on, among those that kept enough when last tried.

        If none did, it is the candidate as it is.
        """
        enough = [factor for factor, gain in self.gains.items() if gain >= self.epsilon and factor >= self.floor]
        return max(enough, key=lambda factor: (self.throughputs.get(factor, 0.0), factor), default=evaluated)


def gravac_bits(
    bits: Sequence[int] = (16, 12, 9, 7, 5, 4, 3, 2, 1), epsilon: float = 0.9999, window: int = 500, omega: float = 0.01
) -> GraVAC:
    """Return GraVAC over gcodec's own frames: mantissa bits in place of densities, lossless frames in place of dense
    gradients.

    Factors in the log are nominal, 32 / (k + 9) for k bits: what frames really save shows in the throughput.

    Args:
        bits: The mildest setting, then the candidates, falling.
        epsilon: Min gain at which a setting is sent. That of k bits is about 1 - 4^-k / 23, so epsilon is close to 1:
            0.9999 asks for 5 bits, 0.99 for 1 or 2.
        window: Steps between checks.
        omega: Relative difference that counts as none, as for :class:`GraVAC`.

    Raises:
        InvalidArgument: ``bits`` do not fall, or are no numbers of mantissa bits.
    """
    if not isinstance(bits, list | tuple):
        raise InvalidArgument(f"bits must be a tuple of falling numbers, not {bits!r:.80}")
    for k in bits:
        check_whole("bits", k)
    if len(bits) < 2 or sorted(set(bits), reverse=True) != list(bits):
        raise InvalidArgument(f"bits must be two or more falling numbers, not {bits!r}")
    factors = [32 / (k + 9) for k in bits]
    policy = Listed(tuple(factors[1:]))
    return GraVAC(Frames(bits[0]), factors[0], factors[-1], epsilon, window, omega, policy, dense=Frames())
