"""The likelihoods that models and configurations can name."""

from __future__ import annotations

from models.core.errors import ParameterError
from models.likelihoods.area_effect import AreaEffect
from models.likelihoods.beta_binomial import BetaBinomial
from models.likelihoods.binomial import Binomial
from models.likelihoods.exponential import Exponential
from models.likelihoods.gamma import Gamma
from models.likelihoods.likelihood import Likelihood
from models.likelihoods.links import LINKS
from models.likelihoods.negative_binomial import NegativeBinomial
from models.likelihoods.normal import Normal
from models.likelihoods.poisson import Poisson

LIKELIHOODS: dict[str, Likelihood] = {}


def register(likelihood: Likelihood) -> Likelihood:
    """Let models and configurations name a likelihood; return it.

    Raises
    ------
    ParameterError
        If another one has the name already, or it names a link that does not exist.
    """
    known = LIKELIHOODS.get(likelihood.name)
    if known is not None and type(known) is not type(likelihood):
        msg = f"likelihood: {likelihood.name!r} is registered already; give another name"
        raise ParameterError(msg)
    if not likelihood.links or not set(likelihood.links) <= set(LINKS):
        msg = f"links: {likelihood.links} are not among {', '.join(LINKS)}; correct them"
        raise ParameterError(msg)
    LIKELIHOODS[likelihood.name] = likelihood
    return likelihood


def unregister(name: str) -> None:
    """Forget a likelihood that code outside the packages registered."""
    LIKELIHOODS.pop(name, None)


def find_likelihood(name: str, *, area_effect: bool = False) -> Likelihood:
    """Return the likelihood of that name, with an effect of each area if wanted.

    Raises
    ------
    ParameterError
        If there is none, or it takes no area effect.
    """
    if name not in LIKELIHOODS:
        msg = f"likelihood: {name!r} is not one of {', '.join(LIKELIHOODS)}"
        raise ParameterError(msg)
    base = LIKELIHOODS[name]
    if area_effect and not base.takes_area_effect:
        msg = f"area_effect: {name} responses cannot have an effect of each bag; leave it out"
        raise ParameterError(msg)
    if not area_effect:
        return base
    return base.with_area_effect() or AreaEffect(base)


for _likelihood in (
    Poisson(),
    NegativeBinomial(),
    Normal(),
    Exponential(),
    Gamma(),
    Binomial(),
    BetaBinomial(),
):
    register(_likelihood)
