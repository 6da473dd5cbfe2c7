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
from mtlkit.method import GradientAggregator
from mtlkit.method.create import create_method
from mtlkit.method.stats import Stats
from mtlkit.weighting.adatask import AdaTask
from mtlkit.weighting.aligned_mtl import AlignedMTL
from mtlkit.weighting.balancer import Balancer
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
from mtlkit.weighting.go4align import GO4Align
from mtlkit.weighting.graddrop import GradDrop
from mtlkit.weighting.gradnorm import GradNorm
from mtlkit.weighting.gradvac import GradVac
from mtlkit.weighting.igb import IGB
from mtlkit.weighting.imtl_g import IMTLG
from mtlkit.weighting.imtl_l import IMTLL
from mtlkit.weighting.krum import Krum
from mtlkit.weighting.ldc import LDC
from mtlkit.weighting.lr_annealing import LRAnnealing
from mtlkit.weighting.match_primary import MatchPrimary
from mtlkit.weighting.mean import Mean
from mtlkit.weighting.mgda import MGDA
from mtlkit.weighting.moco import MoCo
from mtlkit.weighting.modo import MoDo
from mtlkit.weighting.nash_mtl import NashMTL
from mtlkit.weighting.normalize import Normalize
from mtlkit.weighting.pbi import PBI
from mtlkit.weighting.pcd import PCD
from mtlkit.weighting.pcgrad import PCGrad
from mtlkit.weighting.pivrg import PIVRG
from mtlkit.weighting.random import Random
from mtlkit.weighting.recap import RECAP
from mtlkit.weighting.relobralo import ReLoBRaLo
from mtlkit.weighting.rlw import RLW
from mtlkit.weighting.rotate import Rotate
from mtlkit.weighting.scale import Scale
from mtlkit.weighting.sdmgrad import SDMGrad
from mtlkit.weighting.si import SI
from mtlkit.weighting.softadapt import SoftAdapt
from mtlkit.weighting.stch import STCH
from mtlkit.weighting.sum import Sum
from mtlkit.weighting.trimmed_mean import TrimmedMean
from mtlkit.weighting.upgrad import UPGrad
from mtlkit.weighting.uw import UW
from mtlkit.weighting.uw_so import UWSO

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
    "IGB",
    "IMTLG",
    "IMTLL",
    "LDC",
    "MGDA",
    "PBI",
    "PCD",
    "PIVRG",
    "RECAP",
    "RLW",
    "SI",
    "STCH",
    "UW",
    "UWSO",
    "AdaTask",
    "AlignedMTL",
    "Balancer",
    "CAGrad",
    "ConFIG",
    "Constant",
    "DualProj",
    "ExcessMTL",
    "FairGrad",
    "GO4Align",
    "GradDrop",
    "GradNorm",
    "GradVac",
    "GradientAggregator",
    "Krum",
    "LRAnnealing",
    "MatchPrimary",
    "Mean",
    "MoCo",
    "MoDo",
    "NashMTL",
    "Normalize",
    "PCGrad",
    "Random",
    "ReLoBRaLo",
    "Rotate",
    "SDMGrad",
    "Scale",
    "SoftAdapt",
    "Stats",
    "Sum",
    "TrimmedMean",
    "UPGrad",
    "create_method",
]
