"""Methods: weigh the losses, fork the features, merge the gradients. One file is one published method.

Every module of this package is imported, so that a new file is a new method; its class is exported here
under the spelling of its paper.

>>> import torch
>>> from mtlkit import Method
>>> from mtlkit.weighting import PCGrad
>>> Method([PCGrad(2)]).combine(torch.tensor([[1.0, 0.0], [-1.0, 1.0]]))
tensor([0.5000, 1.5000])
"""

import importlib
import pkgutil

from mtlkit.config.registry import methods as _methods
from mtlkit.method.aggregator import GradientAggregator
from mtlkit.method.create import create_method
from mtlkit.method.stats import Stats
from mtlkit.weighting.aligned_mtl import AlignedMTL
from mtlkit.weighting.cagrad import CAGrad
from mtlkit.weighting.config import ConFIG
from mtlkit.weighting.constant import Constant
from mtlkit.weighting.cosmos import COSMOS
from mtlkit.weighting.cr_mogm import CRMOGM
from mtlkit.weighting.db_mtl import DBMTL
from mtlkit.weighting.dualproj import DualProj
from mtlkit.weighting.dwa import DWA
from mtlkit.weighting.excess_mtl import ExcessMTL
from mtlkit.weighting.fairgrad import FairGrad
from mtlkit.weighting.famo import FAMO
from mtlkit.weighting.gls import GLS
from mtlkit.weighting.graddrop import GradDrop
from mtlkit.weighting.gradnorm import GradNorm
from mtlkit.weighting.gradvac import GradVac
from mtlkit.weighting.imtl_g import IMTLG
from mtlkit.weighting.imtl_l import IMTLL
from mtlkit.weighting.krum import Krum
from mtlkit.weighting.mean import Mean
from mtlkit.weighting.mgda import MGDA
from mtlkit.weighting.moco import MoCo
from mtlkit.weighting.modo import MoDo
from mtlkit.weighting.nash_mtl import NashMTL
from mtlkit.weighting.normalize import Normalize
from mtlkit.weighting.pbi import PBI
from mtlkit.weighting.pcd import PCD
from mtlkit.weighting.pcgrad import PCGrad
from mtlkit.weighting.random import Random
from mtlkit.weighting.rlw import RLW
from mtlkit.weighting.rotate import Rotate
from mtlkit.weighting.scale import Scale
from mtlkit.weighting.sdmgrad import SDMGrad
from mtlkit.weighting.si import SI
from mtlkit.weighting.stch import STCH
from mtlkit.weighting.sum import Sum
from mtlkit.weighting.trimmed_mean import TrimmedMean
from mtlkit.weighting.upgrad import UPGrad
from mtlkit.weighting.uw import UW

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

_methods.alias("vanilla", "sum")
_methods.alias("scale_only", "scale")
_methods.alias("rotograd", "rotate+scale")
_methods.alias("rotate_only", "rotate+sum")

__all__ = [
    "COSMOS",
    "CRMOGM",
    "DBMTL",
    "DWA",
    "FAMO",
    "GLS",
    "IMTLG",
    "IMTLL",
    "MGDA",
    "PBI",
    "PCD",
    "RLW",
    "SI",
    "STCH",
    "UW",
    "AlignedMTL",
    "CAGrad",
    "ConFIG",
    "Constant",
    "DualProj",
    "ExcessMTL",
    "FairGrad",
    "GradDrop",
    "GradNorm",
    "GradVac",
    "GradientAggregator",
    "Krum",
    "Mean",
    "MoCo",
    "MoDo",
    "NashMTL",
    "Normalize",
    "PCGrad",
    "Random",
    "Rotate",
    "SDMGrad",
    "Scale",
    "Stats",
    "Sum",
    "TrimmedMean",
    "UPGrad",
    "create_method",
]
