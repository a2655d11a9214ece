"""Multiple-instance classifiers: psi-VGPMIL, VWSGP, GPMIL, BLRT.

May import models.gp and the layers below it.
"""
