"""GPMIL: a Gaussian process of instances, whose largest labels the bag."""
