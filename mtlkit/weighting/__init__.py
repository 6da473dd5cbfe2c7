"""Methods: weigh the losses, fork the features, merge the gradients. One file per published method.

Every module of this package is imported, so a new file is a new method. The classes are exported under
the spelling of their papers.

>>> import torch
>>> from mtlkit import Method
>>> from mtlkit.weighting import PCGrad
>>> Method([PCGrad(2)]).combine(torch.tensor([[1.0, 0.0], [-1.0, 1.0]]))
tensor([0.5000, 1.5000])
"""

import importlib
import pkgutil

from mtlkit.config.registry import methods as _methods
from mtlkit.method import GradientAggregator as GradientAggregator
from mtlkit.method.create import create_method as create_method
from mtlkit.method.stats import Stats as Stats
from mtlkit.weighting.adatask import AdaTask as AdaTask
from mtlkit.weighting.aligned_mtl import AlignedMTL as AlignedMTL
from mtlkit.weighting.balancer import Balancer as Balancer
from mtlkit.weighting.cagrad import CAGrad as CAGrad
from mtlkit.weighting.config import ConFIG as ConFIG
from mtlkit.weighting.constant import Constant as Constant
from mtlkit.weighting.cosmos import COSMOS as COSMOS
from mtlkit.weighting.cr_mogm import CRMOGM as CRMOGM
from mtlkit.weighting.db_mtl import DBMTL as DBMTL
from mtlkit.weighting.dualproj import DualProj as DualProj
from mtlkit.weighting.dwa import DWA as DWA
from mtlkit.weighting.excess_mtl import ExcessMTL as ExcessMTL
from mtlkit.weighting.fairgrad import FairGrad as FairGrad
from mtlkit.weighting.famo import FAMO as FAMO
from mtlkit.weighting.gls import GLS as GLS
from mtlkit.weighting.go4align import GO4Align as GO4Align
from mtlkit.weighting.graddrop import GradDrop as GradDrop
from mtlkit.weighting.gradnorm import GradNorm as GradNorm
from mtlkit.weighting.gradvac import GradVac as GradVac
from mtlkit.weighting.igb import IGB as IGB
from mtlkit.weighting.imtl_g import IMTLG as IMTLG
from mtlkit.weighting.imtl_l import IMTLL as IMTLL
from mtlkit.weighting.krum import Krum as Krum
from mtlkit.weighting.ldc import LDC as LDC
from mtlkit.weighting.lr_annealing import LRAnnealing as LRAnnealing
from mtlkit.weighting.match_primary import MatchPrimary as MatchPrimary
from mtlkit.weighting.mean import Mean as Mean
from mtlkit.weighting.mgda import MGDA as MGDA
from mtlkit.weighting.moco import MoCo as MoCo
from mtlkit.weighting.modo import MoDo as MoDo
from mtlkit.weighting.nash_mtl import NashMTL as NashMTL
from mtlkit.weighting.normalize import Normalize as Normalize
from mtlkit.weighting.pbi import PBI as PBI
from mtlkit.weighting.pcd import PCD as PCD
from mtlkit.weighting.pcgrad import PCGrad as PCGrad
from mtlkit.weighting.pivrg import PIVRG as PIVRG
from mtlkit.weighting.random import Random as Random
from mtlkit.weighting.recap import RECAP as RECAP
from mtlkit.weighting.relobralo import ReLoBRaLo as ReLoBRaLo
from mtlkit.weighting.rlw import RLW as RLW
from mtlkit.weighting.rotate import Rotate as Rotate
from mtlkit.weighting.scale import Scale as Scale
from mtlkit.weighting.sdmgrad import SDMGrad as SDMGrad
from mtlkit.weighting.si import SI as SI
from mtlkit.weighting.softadapt import SoftAdapt as SoftAdapt
from mtlkit.weighting.stch import STCH as STCH
from mtlkit.weighting.sum import Sum as Sum
from mtlkit.weighting.trimmed_mean import TrimmedMean as TrimmedMean
from mtlkit.weighting.upgrad import UPGrad as UPGrad
from mtlkit.weighting.uw import UW as UW
from mtlkit.weighting.uw_so import UWSO as UWSO

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

_methods.alias("imtl", "imtl_l+imtl_g")
_methods.alias("vanilla", "sum")
_methods.alias("scale_only", "scale")
_methods.alias("rotograd", "rotate+scale")
_methods.alias("rotate_only", "rotate+sum")

__all__ = ["create_method", *(name for name, value in vars().copy().items() if isinstance(value, type))]
