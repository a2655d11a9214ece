"""Bags of instances, labels, the base of classifiers, and fits inside folds."""
