"""A small network on one machine: a network namespace for each worker, all on a bridge, every link of limited rate.

    with Bed(4, "1gbit") as bed:
        ...                     # `bed.inside(rank)` begins a command line that runs in a worker's namespace

Each worker has one interface, ``INTERFACE``, a veth pair whose other end is a port of the bridge. Both ends have a
token bucket (``tc tbf``), so what a worker sends and what it receives are limited apart, as on a switch. There is no
added latency and no loss. Needs root, ``ip`` and ``tc``; :func:`obstacle` says what is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from types import TracebackType

from gcodec.errors import GcodecError

INTERFACE = "eth0"  #: of every worker, in its own namespace
UNSHAPED = "unshaped"
RATES = ("100mbit", "500mbit", "1gbit", "2gbit", UNSHAPED)
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
#: Bytes that a bucket holds at least. TCP hands over up to 64 KiB at a time; what does not fit into the bucket as a
#: whole is cut into packets by the kernel, which takes ten times the processor and misses the rate.
_LEAST_BURST = 1 << 17
_BURST_SECONDS, _QUEUE_SECONDS, _QUEUE_BURSTS = 1e-3, 10e-3, 4


class BedError(GcodecError):
    """The network could not be made."""


def bits_per_second(rate: str) -> float:
    """Return the bits per second of a rate as ``tc`` writes it, such as ``"100mbit"``; infinite for ``UNSHAPED``.
    Raises BedError."""
    if rate == UNSHAPED:
        return float("inf")
    match = re.fullmatch(r"([\d.]+)([kmg]bit)", rate)
    if match is None:
        raise BedError(f"{rate!r} is no rate: {', '.join(RATES)} are")
    return float(match[1]) * _UNITS[match[2]]


def obstacle() -> str | None:
    """Return why there can be no bed on this machine, or None."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} here (package iproute2)"
    try:
        with Bed(1, RATES[0]):
            return None
    except BedError as error:
        return f"this machine does not allow it: {error}"


def clean_up_when_told_to_end() -> None:
    """Make SIGTERM an exception like Ctrl-C, so that a bed is taken away before the process ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class Bed:
    """Namespaces on a bridge, ``size`` of them, that exist while the context lasts. Beds do not see each other."""

    _made = 0

    def __init__(self, size: int, rate: str = UNSHAPED) -> None:
        Bed._made += 1
        self.size, self.rate = size, rate
        self._prefix = f"gcodec-{os.getpid()}-{Bed._made}-"
        self._switch = self._prefix + "switch"

    def __enter__(self) -> Bed:
        try:
            _run("ip", "netns", "add", self._switch)
            self._on_switch("ip", "link", "add", "bridge0", "type", "bridge")
            self._on_switch("ip", "link", "set", "bridge0", "up")
            for rank in range(self.size):
                self._connect(rank)
            self.shape(self.rate)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def namespace(self, rank: int) -> str:
        """Return the name of a worker's namespace."""
        return f"{self._prefix}{rank}"

    def address(self, rank: int) -> str:
        """Return a worker's IPv4 address. Networks of different beds may have the same: they are not connected."""
        return f"10.83.0.{rank + 1}"

    def inside(self, rank: int) -> list[str]:
        """Return the words to put before a command so that it runs in a worker's namespace, as the same process."""
        return ["ip", "netns", "exec", self.namespace(rank)]

    def shape(self, rate: str) -> None:
        """Change the rate of every link; what is under way at this moment may be lost and sent again."""
        bits = bits_per_second(rate)
        for rank in range(self.size):
            _limit(self.inside(rank), INTERFACE, bits)
            _limit(["ip", "netns", "exec", self._switch], f"port{rank}", bits)
        self.rate = rate

    def close(self) -> None:
        """Take everything away again, what is still running in a namespace included."""
        for name in [*map(self.namespace, range(self.size)), self._switch]:
            for process in _run("ip", "netns", "pids", name, tolerant=True).split():
                _run("kill", "-9", process, tolerant=True)
            _run("ip", "netns", "del", name, tolerant=True)

    def _connect(self, rank: int) -> None:
        name, inside, port = self.namespace(rank), self.inside(rank), f"port{rank}"
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", INTERFACE, "netns", name, "type", "veth", "peer", "name", port, "netns", self._switch)
        self._on_switch("ip", "link", "set", port, "master", "bridge0", "up")
        _run(*inside, "ip", "address", "add", f"{self.address(rank)}/24", "dev", INTERFACE)
        for device in ("lo", INTERFACE):
            _run(*inside, "ip", "link", "set", device, "up")

    def _on_switch(self, *command: str) -> None:
        _run("ip", "netns", "exec", self._switch, *command)


def _limit(inside: list[str], device: str, bits: float) -> None:
    """Let a device send no faster than that."""
    _run(*inside, "tc", "qdisc", "del", "dev", device, "root", tolerant=True)
    if bits == float("inf"):
        return
    burst = int(max(_LEAST_BURST, bits / 8 * _BURST_SECONDS))
    queue = int(max(_QUEUE_BURSTS * burst, bits / 8 * _QUEUE_SECONDS))
    limits = ["rate", f"{bits:.0f}bit", "burst", str(burst), "limit", str(queue)]
    _run(*inside, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limits)


def _run(*command: str, tolerant: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not tolerant:
        raise BedError(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout
