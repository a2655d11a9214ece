"""Declared parameters: what is refused, and what the message says."""

from __future__ import annotations

import re

import pytest

from models import BLRT, GPMILS, VWSGPSVI, PsiVGPMIL, VBAgg
from models.core.errors import ParameterError
from models.training.parameters import Range


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (VBAgg(n_inducing=0), "n_inducing: 0 is not auto or a whole number of at least 1"),
        (VBAgg(n_inducing="many"), "n_inducing: 'many' is not auto or a whole number"),
        (VBAgg(integrate=3), "integrate: 3 is not auto, none or an even number from 2 to 1000"),
        (VBAgg(integrate="all"), "integrate: 'all' is not auto, none or an even number"),
        (BLRT(n_features=0), "n_features: 0 is not a whole number of at least 1"),
        (VBAgg(n_inducing=float("nan")), "n_inducing: nan is not"),
        (VBAgg(n_paths=7), "n_paths: 7 is not an even number from 2 to 9998"),
        (VBAgg(priors="strong"), "priors: 'strong' is not one of none, weak"),
        (GPMILS(coldest=0.0), "coldest: 0.0 is not a number above 0"),
        (PsiVGPMIL(start=1.0), "start: 1.0 is not auto or a number between 0 and 1"),
        (PsiVGPMIL(log_h=float("inf")), "log_h: inf is not a number above 0"),
        (VWSGPSVI(likelihood="normal"), "likelihood: 'normal' is not one of logistic, probit"),
        (BLRT(n_features=2.5), "n_features: 2.5 is not a whole number of at least 1"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_right(model, says):
    with pytest.raises(ParameterError, match=re.escape(says)):
        model.check_params()


def test_an_optional_parameter_may_be_none_and_ends_belong_to_a_range():
    BLRT(n_features=None).check_params()
    VBAgg(n_paths=9998).check_params()
    VBAgg(n_inducing="auto", integrate=4).check_params()
    VBAgg(n_inducing=3, integrate="none").check_params()
    assert Range(0, 1).holds(0)
    assert Range(0, 1).holds(1)
    assert not Range(0, 1, above=True).holds(0)
    assert not Range(0, 1, below=True).holds(1)
    assert not Range(2, even=True).holds(3)


def test_what_a_subclass_redeclares_comes_last():
    names = list(VWSGPSVI().get_params())
    assert names[-5:] == ["likelihood", "steps", "batch_bags", "learning_rate", "tolerance"]
    assert "learn_variance" not in names
