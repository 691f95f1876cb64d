"""Controllers: how much of which tensor is sent, decided in the course of training from what gradients look like.

    from gcodec.adaptive import Adaptive, GraVAC

Importing this imports torch, and never torch.distributed. docs/algorithms.md has a section for each.
"""

from __future__ import annotations

from .accordion import Accordion as Accordion
from .contract import Controller as Controller
from .contract import Measured as Measured
from .contract import Planner as Planner
from .contract import Selector as Selector
from .contract import Settings as Settings
from .costs import Bytes as Bytes
from .costs import Floats as Floats
from .costs import Prioritized as Prioritized
from .costs import Seconds as Seconds
from .driver import Adaptive as Adaptive
from .driver import ranks as ranks
from .families import Range as Range
from .gravac import GraVAC as GraVAC
from .gravac import gravac_bits as gravac_bits
from .kmeans import KMeans as KMeans
from .lgreco import LGreCo as LGreCo
from .optimizer import AdaptiveOptimizer as AdaptiveOptimizer
from .policies import Exponential as Exponential
from .policies import Geometric as Geometric
from .policies import Listed as Listed
from .thresholds import GlobalThreshold as GlobalThreshold
from .thresholds import HardThreshold as HardThreshold
