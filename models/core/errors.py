"""Errors of the models; each is also a built-in exception."""

from __future__ import annotations

from sklearn import exceptions


class ModelError(Exception):
    """Any error of the models."""


class BagsError(ModelError, ValueError):
    """The bags given to a model are unusable; the message gives the cause and the remedy."""


class ParameterError(ModelError, ValueError):
    """A model's parameter has an impossible value."""


class NotFittedError(ModelError, exceptions.NotFittedError):
    """A model that is not fitted cannot predict."""


class UnsupportedError(ModelError, NotImplementedError):
    """The model does not support the request; the message names an alternative."""


class NumericalError(ModelError, ArithmeticError):
    """A bound or gradient is not finite; the message names the likely cause."""


class FormatError(ModelError, ValueError):
    """A saved model cannot be read: damaged, or of an unknown version."""
