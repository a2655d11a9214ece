"""Multiple-instance classifiers: psi-VGPMIL, VWSGP, GPMIL, BLRT.

May import models.gp and what lies below it.
"""
