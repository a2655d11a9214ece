"""What can go wrong in a model; every error is also a built-in one."""

from __future__ import annotations


class ModelError(Exception):
    """Any error of the models."""


class BagsError(ModelError, ValueError):
    """The bags given to a model are unusable; the message says why and what to do."""


class ParameterError(ModelError, ValueError):
    """A model's parameter has an impossible value."""


class NotFittedError(ModelError, AttributeError):
    """A prediction was asked of a model that has not been fitted."""


class UnsupportedError(ModelError, NotImplementedError):
    """A model was asked what it cannot say; the message names what can."""


class NumericalError(ModelError, ArithmeticError):
    """A bound or gradient is not finite; the message names the likely cause."""


class FormatError(ModelError, ValueError):
    """A saved model cannot be read: damaged, or of an unknown version."""
