"""Definitions of the numbers about the distributed part, as docs/benchmarks/distributed.md has them."""

from __future__ import annotations

from bench.cluster.model import PIECES

DEFINITIONS = """\
Workers are network namespaces of one machine, joined by a bridge; both ends of every link have a token bucket of the
rate that a row names. There is no added latency and no loss. All workers share the machine's cores, so with 2 workers
on 2 cores each has one, with 4 a half: codec and wire are listed apart.

* **time**: median over rounds of the slowest rank's seconds. Methods take turns within a round, in the same processes.
* **wire bytes**: what the kernel counts as sent at a worker's interface, mean over workers: every header and
  acknowledgment is in it, but packets that the kernel sends as one batch count one set of headers.
* **encode** (with choosing levels and rounding), **levels** of it, **decode**: per all-reduce on one rank, whose one
  thread for it shares a core with the network's. By the clock, means over ranks. Codec and network overlap.
* In the CSV files also: **normalized**, a time divided by that of Gloo's fp32 all-reduce in the same run; **ratio**,
  what a ring all-reduce of fp32 has to send, 2 (N - 1) / N · S, over the wire bytes; **processor** time of one rank,
  all its threads and what the kernel does for them; **wait** for the network or other ranks; **wire**, the time of the
  same messages, of the same sizes, in the same exchange, without encoding and decoding; **line share**, wire bytes · 8
  / wire / rate. TCP over Ethernet carries 1448 bytes of data in 1514, and the bucket counts all of them, so 0.956 is
  the most there can be; short exchanges, and fast links, have a smaller share.
* **Gloo fp16, bf16**: as PyTorch's hooks do: cast, all-reduce, cast back. **gcodec** is the DDP hook in the middle of a
  training: codebooks are shared and are being counted for; the bypass is off unless a row says otherwise.
* **zlib, zstd, shuffle+zstd**: in the codec's place in the same exchange. **no codec**: a copy in its place.
* **deviation**: after the optimizer's next step, the most by which any parameter differs from what exact gradients
  would make of it, in half ulps at the magnitude of what the update adds to. The bound is 1 for all contributions
  together and, with 4 workers, 1 more for their average ([what is guaranteed](../training/guarantees.md)).
* **gradients** of the all-reduce: of models trained by SGD with momentum ([recording.md](../recording.md)), at recorded
  parameters from step 100 on; every rank has batches of its own. Every result was checked on every rank before timing:
  lossless ones bit for bit, near-lossless ones against the bound, all for being the same on all ranks."""

MODEL = f"""\
**Model, not measurement.** A dense ring takes 2 (N - 1) a + 2 (N - 1) / N · S b, a tree 2 a log2 N + 2 S b log2 N:
seconds, where S is bytes, a what a message costs before its first byte (half of a 4-byte all-reduce of two workers) and
b = 8 / rate. The compressed all-reduce takes W = ring(S / ratio) on the wire and C = S / E + 2 (N - 1) / N · S / D in
the codec, with measured E and D (bytes per second, one core per worker) and ratio: at best max(W, C) + min(W, C) /
{PIECES}, which is shown. Compressing wins without any overlap below the break-even rate, 8 · 2 (N - 1) / N ·
(1 - 1 / ratio) · S / C bit/s."""
