"""Models of bags: plain arrays in, posterior out, independent of geography.

Models are imported when they are first asked for: all of them, with what they need of other
libraries, take longer than ``disagg check`` of a small map.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.core import errors
from models.core.block import BagBlock, Bags
from models.core.errors import FormatError
from models.core.persist import read_meta
from models.training.estimator import Estimator
from models.training.registry import CLASSES, announce, register, unregister

if TYPE_CHECKING:
    from models.aggregate.bag_pixel import BagPixel, Dasymetric
    from models.aggregate.constant import Constant
    from models.aggregate.network import Network
    from models.aggregate.nystrom import Nystrom
    from models.aggregate.vbagg import VBAgg
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

#: Module, class and kind, empty where a configuration cannot name it.
_MODELS = (
    ("models.aggregate.vbagg", "VBAgg", "vbagg"),
    ("models.temporal.space_time", "SpaceTime", "space_time"),
    ("models.aggregate.nystrom", "Nystrom", "nystrom"),
    ("models.aggregate.network", "Network", "network"),
    ("models.aggregate.bag_pixel", "BagPixel", "bag_pixel"),
    ("models.aggregate.constant", "Constant", "constant"),
    ("models.aggregate.bag_pixel", "Dasymetric", ""),
    ("models.mil.pooled.pooled_gp", "PooledGP", "pooled_gp"),
    ("models.mil.variational.psi_vgpmil", "PsiVGPMIL", "psi_vgpmil"),
    ("models.mil.variational.psi_vgpmil_svi", "PsiVGPMILSVI", "psi_vgpmil_svi"),
    ("models.mil.variational.vwsgp", "VWSGP", "vwsgp"),
    ("models.mil.variational.vwsgp_svi", "VWSGPSVI", "vwsgp_svi"),
    ("models.mil.gpmil.gpmil", "GPMIL", "gpmil"),
    ("models.mil.gpmil.gpmil_sparse", "GPMILS", "gpmil_s"),
    ("models.mil.trees.blrt", "BLRT", "blrt"),
)
#: Module of what else is imported when it is asked for.
_OTHERS = {
    "Probability": "models.likelihoods.probability",
    "ProbabilityDraws": "models.likelihoods.probability",
    "BagDataset": "models.mil.data.bag_dataset",
    "bag_ids": "models.mil.data.bags_in",
    "InstanceTransformer": "models.mil.data.instances",
    "BagScorer": "models.mil.data.scoring",
    "PeriodModel": "models.temporal.at_period",
    "Period": "models.temporal.periods",
    "PeriodSource": "models.temporal.periods",
}

for _each in _MODELS:
    announce(*_each)


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for."""
    if name in CLASSES and name in __all__:
        return CLASSES[name]
    if name not in _OTHERS:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_OTHERS[name]), name)


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
