"""A Gaussian process of pooled instances."""
