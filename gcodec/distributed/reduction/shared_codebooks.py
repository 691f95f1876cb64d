"""Codebooks that all ranks share, one per parameter, counted while encoding and renewed beside training.

GComp (SoCC '24, Figure 8 and "Dynamic adjustment of the Huffman table") renews its table every 50 iterations. Here, at
the end of every step, the ranks begin to sum a few numbers; at the end of the next one they read the sums, and where
these say that a refresh is due, begin to sum their histograms; at the end of the step after that each rank builds the
same codebooks from the same sums, and uses them from then on. Nothing waits for a sum that was not begun a step before,
and as all of it happens in one lane, "from then on" is the same message on every rank::

    end of step s        begin to sum bits paid, entropy and symbols
    end of step s + 1    read these sums; if they say so, begin to sum histograms
    end of step s + 2    read these, build the codebooks; they hold from the next step on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import InvalidArgument, check_field_types
from ...format import shipped
from ...format.change_codebook import ChangeCodebook
from ...format.codebook import Codebook, read_inline
from ...kernels.entropy import codebook_fit
from ...kernels.sample import code_costs
from ...options import EncoderOptions
from ...plan.codebooks import kept_costs, n_bins_of
from ...plan.plan import FramePlan
from ...plan.request import FixedCodebooks
from ...stream import CodebookCycle, Version
from ..transport.message import agreement_of
from .piece_cache import PieceCache

FIRST_ID = 1 << 16  #: ids below belong to codebooks that come with gcodec and to streams
_MAX_CODEBOOKS = 8  #: in a frame
MISFIT = 0.5  #: bits per symbol beyond the entropy from which a frame has a codebook of its own
#: What frames by shared codebooks consist of: coded blocks whose values are rounded, as ranks round their own values.
_CODING = EncoderOptions(columns=False, prediction=False, wide_heads=False, exact_if_smaller=False)
COUNTING = FixedCodebooks((), (), True)  #: plans without codebooks, for their counts


@dataclass(frozen=True)
class Refresh:
    """Policy that says when codebooks are renewed.

    Attributes:
        interval: Steps from one refresh to the next; GComp's 50.
        trigger: Bits per symbol by which codes may exceed the entropy more than they did when new, over all ranks.
            Beyond that they are renewed early, but not before a tenth of the interval.

    Raises:
        InvalidArgument: An attribute is out of its range.
    """

    interval: int = 50
    trigger: float = 0.1

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.interval < 2:
            raise InvalidArgument(f"interval must be at least 2, not {self.interval}")
        if self.trigger <= 0:
            raise InvalidArgument(f"trigger must be positive, not {self.trigger}")

    @property
    def min_age(self) -> int:
        """The age in steps before which codebooks are not renewed."""
        return max(2, self.interval // 10)


class Layer:
    """Counts symbols for the codebook of one parameter.

    Attributes:
        cycle: The codebook's life cycle, with its histogram.
        recent: What was counted in the current step.
    """

    def __init__(self, head_bits: int, n_levels: int, refresh: Refresh) -> None:
        self.cycle = CodebookCycle(head_bits, n_levels, interval=refresh.interval, trigger=refresh.trigger)
        self.recent = np.zeros_like(self.cycle.histogram)

    @property
    def form(self) -> tuple[int, int]:
        """Head bits and levels of its frames."""
        return self.cycle.head_bits, self.cycle.n_levels


class Spent(NamedTuple):
    """The cost of a step's symbols.

    Attributes:
        paid: Bits that they take by the shared codebooks.
        entropy: Bits that they would have taken at the entropy of what was counted.
        symbols: Their number.
        taken: Bits that they took: where the shared codebooks do not suit a frame, its own takes about the entropy.
    """

    paid: float
    entropy: float
    symbols: float
    taken: float


class SharedCodebooks:
    """Keeps the shared codebooks of a hook, by parameter number: the order in which parameters were first seen.

    Its methods must be called in the same order on all ranks, but for those that count.

    Args:
        refresh: When codebooks are renewed.

    Attributes:
        options: How frames are planned that use these codebooks.
        piece_cache: What is known of the pieces of buffers as long as the codebooks hold: plans, which are used again
            between steps in which symbols are counted, and which pieces are smaller with predicted blocks.
        layers: The counts and the codebook of each parameter, by number.
        paid: Bits that this step's symbols take so far by these codebooks.
        taken: Bits that they have taken so far, as of :class:`Spent`.
        digest: Stands for the codebooks in use; the same on all ranks.
        n_unsuited: Frames so far that these codebooks did not suit.
        unmade: True if there are layers that have not been counted for a codebook yet.
    """

    def __init__(self, refresh: Refresh) -> None:
        self.refresh, self.options = refresh, _CODING
        self.piece_cache = PieceCache()
        self.layers: dict[int, Layer] = {}
        self.paid = self.taken = 0.0
        self.digest = 0
        self.n_unsuited = 0
        self._by_hash: dict[int, Codebook] = {}
        self.unmade = False
        self._taken: dict[int, tuple[int, int]] = {}  #: forms of the layers whose histograms are being summed
        self._for_frames: dict[bytes, FixedCodebooks | None] = {}  #: by owners, as long as the codebooks hold

    def prepare(self, numbers: Sequence[int], head_bits: int, n_levels: int) -> None:
        """Begin to count for parameters that are new, or whose frames have another form than before."""
        for number in numbers:
            layer = self.layers.get(number)
            if layer is None or layer.form != (head_bits, n_levels):
                self.layers[number], self.unmade = Layer(head_bits, n_levels, self.refresh), True
                self._for_frames.clear()

    def for_frame(self, owners: np.ndarray) -> FixedCodebooks | None:
        """Return the codebooks for a frame, or None where there are none yet.

        Args:
            owners: The number of the parameter that each block belongs to, int64[n_blocks].
        """
        key = owners.tobytes()
        if key not in self._for_frames:
            self._for_frames[key] = self._gather(owners)
        return self._for_frames[key]

    def _gather(self, owners: np.ndarray) -> FixedCodebooks | None:
        numbers, counts = np.unique(owners, return_counts=True)
        # If there are more codebooks than a frame may have, those of the parameters with most blocks go first.
        ranked = sorted(zip(-counts, numbers.tolist(), strict=True))
        versions = [(number, self.layers[number].cycle.current) for _, number in ranked]
        chosen = [(number, version.codebook) for number, version in versions if version is not None][:_MAX_CODEBOOKS]
        if not chosen:
            return None
        records = tuple(book.reference(FIRST_ID + number) for number, book in chosen)
        return FixedCodebooks(tuple(book for _, book in chosen), records, True)

    def find(self, codebook_id: int, digest: int) -> Codebook | ChangeCodebook | None:
        """Return the codebook that a frame names, or None if there is no such codebook.

        Args:
            digest: Its hash.
        """
        return self._by_hash.get(digest) if codebook_id >= FIRST_ID else shipped.find(codebook_id, digest)

    def count(self, owners: np.ndarray, plan: FramePlan) -> bool:
        """Add the symbols of a frame to the histograms of the parameters that its blocks belong to.

        Args:
            owners: The number of the parameter that each block belongs to, int64[n_blocks].
            plan: The plan of the frame, which has counted them.

        Returns:
            True if the plan's codebooks suit the frame: they come close enough to the entropy.
        """
        whole, numbers = plan.histogram, set(owners.tolist())
        for number in numbers:
            of_layer = whole if len(numbers) == 1 else plan.counts[owners == number].sum(axis=0, dtype=np.uint64)
            self.layers[number].recent += of_layer
        if not plan.codebooks:
            return True
        bits, n_symbols = np.empty((2, len(plan.counts)), np.int64)
        codebook_fit.add_costs(plan.counts, kept_costs(tuple(plan.codebooks)), plan.choice, 0, bits, n_symbols)
        paid, at_entropy = int(bits.sum()), int(code_costs.entropy_fixed(whole)) / 256
        suits = paid - at_entropy <= MISFIT * int(n_symbols.sum())
        self.paid += paid
        self.taken += paid if suits else at_entropy
        self.n_unsuited += not suits
        return suits

    def end_step(self) -> Spent:
        """Return what this step's symbols took, and add what was counted to the histograms."""
        entropy = symbols = 0.0
        for layer in self.layers.values():
            entropy += int(code_costs.entropy_fixed(layer.recent)) / 256
            symbols += float(layer.recent.sum())
            layer.cycle.histogram >>= np.uint64(2)  # earlier steps count a quarter, so that a change soon shows
            layer.cycle.count(layer.recent)
            layer.recent[:] = 0
        spent = Spent(self.paid, entropy, symbols, self.taken)
        self.paid = self.taken = 0.0
        return spent

    def take(self) -> np.ndarray:
        """Return all histograms end to end, int64, to be summed over the ranks; counting starts again."""
        self._taken, self.unmade = {number: layer.form for number, layer in self.layers.items()}, False
        parts = [self.layers[number].cycle.take() for number in sorted(self.layers)]
        return np.concatenate([np.zeros(0, np.uint64), *parts]).astype(np.int64)

    def renew(self, numbers: Sequence[int], histograms: np.ndarray, step: int) -> None:
        """Build new codebooks, which are the same on all ranks.

        Layers that have had another form since they were counted are left out: mode or type are others now.

        Args:
            numbers: The layers that were counted, in ascending order.
            histograms: Their histograms, summed over all ranks, end to end: int64.
            step: The step from which the codebooks hold.
        """
        at = 0
        for number in numbers:
            layer = self.layers[number]
            form = self._taken.get(number, layer.form)
            size = n_bins_of(form[1])
            summed = histograms[at : at + size]
            at += size
            if form == layer.form and summed[2:].any():
                layer.cycle.schedule(summed.astype(np.uint64), step, True)
            layer.cycle.advance(step)
        self._remember()

    def _remember(self) -> None:
        """Put what depends on the codebooks in use in agreement with them."""
        self._for_frames.clear()
        self.piece_cache.forget()
        versions = [layer.cycle.current for layer in self.layers.values()]
        self._by_hash = {version.codebook.hash: version.codebook for version in versions if version is not None}
        self.digest = agreement_of(*sorted(self._by_hash))

    def state_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state that all ranks have in common and the state of this rank: arrays and numbers."""
        shared: dict[str, Any] = {}
        counts: dict[str, Any] = {"paid": self.paid, "taken": self.taken}
        for number, layer in self.layers.items():
            version, key = layer.cycle.current, str(number)
            shared[key] = {
                "head_bits": layer.cycle.head_bits,
                "n_levels": layer.cycle.n_levels,
                "version": 0 if version is None else version.number,
                "step": 0 if version is None else version.step,
                "codebook": np.frombuffer(b"" if version is None else version.codebook.record, np.uint8),
            }
            counts[key] = {
                "histogram": layer.cycle.histogram.astype(np.int64),
                "recent": layer.recent.astype(np.int64),
            }
        return shared, counts

    def load_state_dict(self, shared: dict[str, Any], counts: dict[str, Any] | None) -> None:
        """Go on from what :meth:`state_dict` returned.

        Args:
            shared: The state that all ranks have in common.
            counts: The state of this rank; None if there is none: counting starts again.

        Raises:
            Corruption: A codebook is damaged.
        """
        self.layers.clear()
        self._taken.clear()
        for key, saved in shared.items():
            layer = self.layers[int(key)] = Layer(int(saved["head_bits"]), int(saved["n_levels"]), self.refresh)
            if saved["version"]:
                record = saved["codebook"].astype(np.uint8).tobytes()
                book, _ = read_inline(record, 0, layer.cycle.n_levels, layer.cycle.head_bits)
                layer.cycle.current = Version(int(saved["version"]), int(saved["step"]), book, True)
                layer.cycle.step = int(saved["step"])
            if counts is not None:
                layer.cycle.histogram[:] = counts[key]["histogram"].astype(np.uint64)
                layer.recent[:] = counts[key]["recent"].astype(np.uint64)
        self.paid = 0.0 if counts is None else float(counts["paid"])
        self.taken = 0.0 if counts is None else float(counts.get("taken", self.paid))  # not in states from before
        self._remember()
