"""Variational models of instance labels: psi-VGPMIL, VWSGP."""
