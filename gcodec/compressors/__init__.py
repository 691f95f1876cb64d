"""Compressors: algorithms that turn a gradient into little to send, all under one contract (``contract``).

    from gcodec.compressors import DGC, GradZip

Importing this imports torch. docs/algorithms.md has a section for each.
"""

from __future__ import annotations

from .acpsgd import ACPSGD as ACPSGD
from .casts import Cast as Cast
from .contract import AllGather as AllGather
from .contract import AllReduce as AllReduce
from .contract import AllToAll as AllToAll
from .contract import Compressor as Compressor
from .contract import Outcome as Outcome
from .contract import Place as Place
from .contract import alone as alone
from .dense import Dense as Dense
from .dgc import DGC as DGC
from .frames import Frames as Frames
from .gradzip import GradNA as GradNA
from .gradzip import GradZip as GradZip
from .powersgd import PowerSGD as PowerSGD
from .qsgd import QSGD as QSGD
from .randomk import RandomK as RandomK
from .redsync import RedSync as RedSync
from .sparcml import SparCML as SparCML
from .sparse import Sparsifier as Sparsifier
from .topk import TopK as TopK
