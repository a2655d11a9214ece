"""Errors of the models; each is also a built-in exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class ModelError(Exception):
    """Any error of the models."""


class BagsError(ModelError, ValueError):
    """The bags given to a model are unusable; the message gives the cause and the remedy."""


class ParameterError(ModelError, ValueError):
    """A model's parameter has an impossible value."""


class UnsupportedError(ModelError, NotImplementedError):
    """The model does not support the request; the message names an alternative."""


class NumericalError(ModelError, ArithmeticError):
    """A bound or gradient is not finite; the message names the likely cause."""


class FormatError(ModelError, ValueError):
    """A saved model cannot be read: damaged, or of an unknown version."""


if TYPE_CHECKING:
    from sklearn import exceptions

    class NotFittedError(ModelError, exceptions.NotFittedError):
        """A model that is not fitted cannot predict."""

else:

    def __getattr__(name: str) -> Any:
        """Define ``NotFittedError`` when it is first asked for: scikit-learn starts slowly."""
        if name != "NotFittedError":
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        from sklearn import exceptions

        about = {"__module__": __name__, "__doc__": "A model that is not fitted cannot predict."}
        found = type(name, (ModelError, exceptions.NotFittedError), about)
        return globals().setdefault(name, found)
