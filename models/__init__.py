"""Models of bags: plain arrays in, posterior out; knows nothing of geography."""

from __future__ import annotations

import os
from pathlib import Path

from models.bag_pixel import BagPixel, Dasymetric
from models.base import Estimator
from models.block import BagBlock, Bags
from models.blrt import BLRT
from models.constant import Constant
from models.errors import FormatError
from models.gpmil import GPMIL
from models.gpmil_sparse import GPMILS
from models.network import Network
from models.nystrom import Nystrom
from models.persist import read_meta
from models.probability import Probability, ProbabilityDraws
from models.psi_vgpmil import PsiVGPMIL
from models.psi_vgpmil_svi import PsiVGPMILSVI
from models.vbagg import VBAgg
from models.vwsgp import VWSGP
from models.vwsgp_svi import VWSGPSVI

__all__ = [
    "BLRT",
    "GPMIL",
    "GPMILS",
    "VWSGP",
    "VWSGPSVI",
    "BagBlock",
    "BagPixel",
    "Bags",
    "Constant",
    "Dasymetric",
    "Network",
    "Nystrom",
    "Probability",
    "ProbabilityDraws",
    "PsiVGPMIL",
    "PsiVGPMILSVI",
    "VBAgg",
    "load",
]

CLASSES: dict[str, type[Estimator]] = {
    kind.__name__: kind
    for kind in (
        VBAgg,
        Nystrom,
        Network,
        BagPixel,
        Dasymetric,
        Constant,
        VWSGP,
        VWSGPSVI,
        BLRT,
        PsiVGPMIL,
        PsiVGPMILSVI,
        GPMIL,
        GPMILS,
    )
}


def load(path: str | os.PathLike[str]) -> Estimator:
    """Read a model that ``model.save(path)`` wrote.

    Raises
    ------
    models.errors.FormatError
        If it is damaged, or of an unknown class or version.
    """
    meta = read_meta(Path(path))
    if meta["class"] not in CLASSES:
        msg = f"{path}: holds a {meta['class']}; known are {', '.join(CLASSES)}"
        raise FormatError(msg)
    return CLASSES[meta["class"]].restore(Path(path), meta)
