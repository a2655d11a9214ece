"""Multiple-instance classifiers: psi-VGPMIL, VWSGP, GPMIL, BLRT.

May import models.aggregate and what lies below it.
"""
