"""Models of bags: plain arrays in, posterior out, independent of geography."""

from __future__ import annotations

import os
from pathlib import Path

from models.aggregate.bag_pixel import BagPixel, Dasymetric
from models.aggregate.constant import Constant
from models.aggregate.network import Network
from models.aggregate.nystrom import Nystrom
from models.aggregate.vbagg import VBAgg
from models.core import errors
from models.core.block import BagBlock, Bags
from models.core.errors import FormatError
from models.core.persist import read_meta
from models.likelihoods.probability import Probability, ProbabilityDraws
from models.mil.data.bag_dataset import BagDataset
from models.mil.data.bags_in import bag_ids
from models.mil.data.instances import InstanceTransformer
from models.mil.data.scoring import BagScorer
from models.mil.gpmil.gpmil import GPMIL
from models.mil.gpmil.gpmil_sparse import GPMILS
from models.mil.pooled.pooled_gp import PooledGP
from models.mil.trees.blrt import BLRT
from models.mil.variational.psi_vgpmil import PsiVGPMIL
from models.mil.variational.psi_vgpmil_svi import PsiVGPMILSVI
from models.mil.variational.vwsgp import VWSGP
from models.mil.variational.vwsgp_svi import VWSGPSVI
from models.temporal.at_period import PeriodModel
from models.temporal.periods import Period, PeriodSource
from models.temporal.space_time import SpaceTime
from models.training.estimator import Estimator
from models.training.registry import CLASSES, register, unregister

__all__ = [
    "BLRT",
    "GPMIL",
    "GPMILS",
    "VWSGP",
    "VWSGPSVI",
    "BagBlock",
    "BagDataset",
    "BagPixel",
    "BagScorer",
    "Bags",
    "Constant",
    "Dasymetric",
    "InstanceTransformer",
    "Network",
    "Nystrom",
    "Period",
    "PeriodModel",
    "PeriodSource",
    "PooledGP",
    "Probability",
    "ProbabilityDraws",
    "PsiVGPMIL",
    "PsiVGPMILSVI",
    "SpaceTime",
    "VBAgg",
    "bag_ids",
    "errors",
    "load",
    "register",
    "unregister",
]

for _model in (
    *(VBAgg, SpaceTime, Nystrom, Network, BagPixel, Constant, Dasymetric),
    *(PooledGP, PsiVGPMIL, PsiVGPMILSVI, VWSGP, VWSGPSVI, GPMIL, GPMILS, BLRT),
):
    register(_model)


def load(path: str | os.PathLike[str]) -> Estimator:
    """Read a model that ``model.save(path)`` wrote.

    Raises
    ------
    models.core.errors.FormatError
        If it is damaged, or of an unknown class or version.
    """
    meta = read_meta(Path(path))
    if meta["class"] not in CLASSES:
        msg = f"{path}: class {meta['class']} is unknown; register it, or use {', '.join(CLASSES)}"
        raise FormatError(msg)
    return CLASSES[meta["class"]].restore(Path(path), meta)
