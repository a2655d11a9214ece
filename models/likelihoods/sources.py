r"""Responses of several sources under one surface: areas, and points beside them.

Areas count cases, surveys find positives among people tested, facilities count what reaches them.
Each bag has one source, with a law and a scale of its own (:mod:`models.likelihoods.scaled`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import roots_hermitenorm

from models.backend.arrays import namespace
from models.core.block import BagBlock
from models.core.errors import BagsError, ParameterError
from models.core.protocol import Summary, override
from models.likelihoods.area_effect import AREA_SD, AreaEffect
from models.likelihoods.constant import OneRate
from models.likelihoods.likelihood import Likelihood, Params, Terms, exponential
from models.likelihoods.registry import find_likelihood
from models.likelihoods.scaled import SCALE, Scaled

NODES, WEIGHTS = roots_hermitenorm(24)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


class SeveralSources(Likelihood):
    """Areas under their law, bags of other sources under theirs.

    ``bag_data`` has two rows: the source of each bag, and what its law needs. Where areas have
    suppressed counts (:mod:`models.likelihoods.censored`) their margins are a third.

    Parameters
    ----------
    areas : Likelihood
        With its area effect, if any. Its attributes are those of the whole.
    others : dict of Likelihood
        Law of each other source by its name, in the order of their numbers from 1 on.
    displaced : sequence of str
        Sources whose bags are of one pixel of theirs, in proportion to the weights unknown which.
    """

    name = "several_sources"

    def __init__(
        self, areas: Likelihood, others: Mapping[str, Likelihood], displaced: Sequence[str] = ()
    ) -> None:
        self.areas, self.others, self._displaced = areas, dict(others), tuple(displaced)
        self._laws, self._names = (areas, *self.others.values()), ("", *self.others)
        self.describe_as(areas)
        own = {
            _named(name, source): replace(parameter, source=source)
            for source, law in self.others.items()
            for name, parameter in law.parameters.items()
        }
        # The areas' own come last, where they are looked for.
        self.parameters = {**own, **areas.parameters}

    def __str__(self) -> str:
        """Return the names of its laws."""
        return " + ".join(str(law) for law in self._laws)

    def with_areas(self, areas: Likelihood) -> SeveralSources:
        """Return the same sources beside another law of the areas."""
        return SeveralSources(areas, self.others, self._displaced)

    def law_data(self, number: int, bag_data: Any) -> Any:
        """Return what one source's law takes for the data of bags: the areas' with margins."""
        return bag_data[1:] if number == 0 and bag_data.shape[0] > 2 else bag_data[1]

    def law_params(self, number: int, params: Params, own: Any = None) -> dict[str, Any]:
        """Return the parameters of one source's law under the law's own names.

        ``own`` are the places of its bags, where parameters may differ by bag.
        """
        source = self._names[number]
        found = {name: params[_named(name, source)] for name in self._laws[number].parameters}
        if own is None:
            return found
        return {
            name: each[..., own] if isinstance(each, np.ndarray) and each.shape[-1] > 1 else each
            for name, each in found.items()
        }

    @override
    def data_of(self, block: BagBlock) -> Any:
        given = block.weight, block.offsets, block.trials, block.squares
        xp = namespace(block.weight)
        if block.source is None:
            return self.bag_data(*given)
        own = xp.ones(block.source.shape)
        for number, law in enumerate(self._laws):
            if bool((block.source == number).any()):
                own = xp.where(block.source == number, law.bag_data(*given), own)
        return xp.stack([block.source.astype(own.dtype), own])

    @override
    def bag_data(self, weight: Any, offsets: Any, trials: Any, squares: Any = None) -> Any:
        own = self.areas.bag_data(weight, offsets, trials, squares)
        return namespace(own).stack([0.0 * own, own])

    @override
    def without_factor(self, params: Params) -> tuple[Likelihood, float]:
        parts = [
            law.without_factor(self.law_params(number, params))
            for number, law in enumerate(self._laws)
        ]
        if all(base is law for (base, _), law in zip(parts, self._laws, strict=True)):
            return self, 0.0
        areas, *others = (base for base, _ in parts)
        laws = dict(zip(self.others, others, strict=True))
        return SeveralSources(areas, laws, self._displaced), parts[0][1]

    @override
    def factor_variance(self, params: Params, bag_data: Any) -> Any:
        found = 0.0 * bag_data[0]
        for number, law in enumerate(self._laws):
            variance = law.without_factor(self.law_params(number, params))[1]
            found = found + variance * (bag_data[0] == number)
        return found

    @override
    def factor_deviation(self, sd: Any, mean: Any) -> Any:
        return self.areas.factor_deviation(sd, mean)

    @override
    def log_scale(self, params: Params, bag_data: Any) -> Any:
        if self.averages:  # it multiplies their odds
            return None
        found = 0.0 * bag_data[0]
        for number in range(len(self._laws)):
            scale = self.law_params(number, params).get(SCALE, 0.0)
            found = found + scale * (bag_data[0] == number)
        return found

    @override
    def displaced(self, bag_data: Any) -> Any:
        found = None
        for source in self._displaced:
            own = bag_data[0] == self._names.index(source)
            found = own if found is None else found | own
        return found

    @override
    def by_factor(self, slope: Any, bag_data: Any) -> dict[str, Any]:
        return {
            _named(name, source): each
            for number, (source, law) in enumerate(zip(self._names, self._laws, strict=True))
            for name, each in law.by_factor(
                slope * (bag_data[0] == number), self.law_data(number, bag_data)
            ).items()
        }

    @override
    def starting_scale(self, sample: Summary) -> tuple[float, float, dict[str, float]]:
        self.check_responses(sample)
        base, level, own = self.areas.starting_scale(sample.of(0))
        return base, level, {**self.start(sample), **own}

    @override
    def units(self, sample: Summary) -> dict[str, float]:
        base, level, _ = self.areas.starting_scale(sample.of(0))
        found = {}
        for number, (source, law) in enumerate(self.others.items(), start=1):
            scaled = law.base if isinstance(law, AreaEffect) else law
            if isinstance(scaled, Scaled):
                eta, mean = level if self.averages else base, _pooled(law, sample, number)
                # Without bags: probabilities whose odds, or hazard, are about those of the areas.
                unit = 0.0 if self.averages or not law.needs_trials else -float(np.log(eta))
                unit = unit if mean is None else scaled.scale_at(eta, mean)
                found[_named(SCALE, source)] = unit
        return {**self.areas.units(sample.of(0)), **found}

    @override
    def cases_at_one(self, sample: Summary, base: float) -> float | None:
        return self.areas.cases_at_one(sample.of(0), base)

    @override
    def check_responses(self, sample: Summary) -> None:
        numbers = np.zeros(1, np.int64) if sample.source is None else np.unique(sample.source)
        if numbers.max() >= len(self._laws) or numbers[0] != 0:
            msg = (
                f"source has the numbers {numbers.tolist()}; 0 are the areas, which there must be, "
                f"and {len(self.others)} other sources are declared"
            )
            raise BagsError(msg)
        for number in numbers.tolist():
            self._laws[number].check_responses(sample.of(number))

    @override
    def constant(self, y: np.ndarray, exposure: np.ndarray, bag_data: Any) -> OneRate:
        return self.areas.constant(y, exposure, self.law_data(0, bag_data))

    @override
    def terms(
        self, y: np.ndarray, eta: np.ndarray, params: Params, bag_data: Any, order: int = 1
    ) -> Terms:
        xp, source = namespace(eta), bag_data[0]
        found: dict[str, Any] = {}
        by: dict[str, dict[str, Any]] = {
            key: {name: xp.zeros(eta.shape) for name in self.parameters}
            for key in (("by",) if order == 1 else ("by", "by_d2"))
        }
        for number, law in enumerate(self._laws):
            own = xp.flatnonzero(source == number)
            if own.size == 0:
                continue
            known = self.law_params(number, params, own)
            data = self.law_data(number, bag_data)[..., own]
            at = law.terms(y[own], eta[..., own], known, data, order)
            for key in ("value", "d1") if order == 1 else ("value", "d1", "d2", "d3"):
                found.setdefault(key, xp.zeros(eta.shape))[..., own] = getattr(at, key)
            for key, slopes in by.items():
                for name, slope in getattr(at, key).items():
                    slopes[_named(name, self._names[number])][..., own] = slope
        return Terms(**found, **by)

    @override
    def told(self, y: Any, params: Params, bag_data: Any) -> Any:
        xp, parts = namespace(y), []
        for number, law in enumerate(self._laws):
            own = xp.flatnonzero(bag_data[0] == number)
            known = self.law_params(number, params, own)
            parts.append((own, law.told(y[own], known, self.law_data(number, bag_data)[..., own])))
        # Of one draw of the parameters, or of each.
        found = xp.ones((*max((at.shape[:-1] for _, at in parts), key=len), y.shape[0]))
        for own, at in parts:
            found[..., own] = at
        return found

    @override
    def draw(
        self, eta: np.ndarray, params: Params, bag_data: Any, rng: np.random.Generator
    ) -> np.ndarray:
        drawn = np.empty(eta.shape)
        for number, law in enumerate(self._laws):
            own = np.flatnonzero(bag_data[0] == number)
            if own.size:
                known = self.law_params(number, params, own)
                data = self.law_data(number, bag_data)[..., own]
                drawn[..., own] = law.draw(eta[..., own], known, data, rng)
        return drawn

    def expected(self, eta: np.ndarray, params: Params, bag_data: Any) -> np.ndarray:
        """Return the expected response of each bag at aggregates (..., n_bag)."""
        found = np.array(eta, dtype=np.float64)
        for number, law in enumerate(self._laws):
            own = np.flatnonzero(bag_data[0] == number)
            mean, known = eta[..., own], self.law_params(number, params, own)
            if isinstance(law, AreaEffect) and isinstance(law.base, Scaled):
                tau = exponential(known[AREA_SD], mean)
                at = (mean * np.exp(tau * node - 0.5 * tau**2) for node in NODES)
                parts = zip(WEIGHTS, at, strict=True)
                mean = sum(weight * law.base.mean(each, known) for weight, each in parts)
            elif isinstance(law, Scaled):
                mean = law.mean(mean, known)
            found[..., own] = mean * (bag_data[1][own] if law.needs_trials else 1.0)
        return found


def several_sources(areas: Likelihood, others: Mapping[str, Mapping[str, Any]]) -> SeveralSources:
    """Put sources beside areas.

    Parameters
    ----------
    areas : Likelihood
    others : dict of dict
        By the name of the source: ``likelihood``; ``offset``, whether its scale is learnt;
        ``effect``, whether its bags differ by a log-normal factor; and ``displaced``, whether each
        of them is of one of its pixels, unknown which. Offset and effect are true by default, the
        latter of Poisson and binomial responses beside counts: other laws have a spread of their
        own. Positives among people tested are the default: ``binomial`` beside counts,
        ``beta_binomial`` beside proportions.

    Raises
    ------
    ParameterError
        If areas or a source have no counts, or laws do not go together.
    """
    laws = {name: _law(name, areas, each) for name, each in others.items()}
    displaced = [name for name, each in others.items() if each.get("displaced", False)]
    return SeveralSources(areas, laws, displaced)


def _law(name: str, areas: Likelihood, given: Mapping[str, Any]) -> Likelihood:
    """Return the law of a source."""
    wrong, proportions = None, areas.needs_trials
    if not name.isidentifier() or set(given) - {"likelihood", "offset", "effect", "displaced"}:
        msg = (
            f"sources: {name}: {dict(given)}; give a word, and its likelihood, offset, effect and "
            "displaced"
        )
        raise ParameterError(msg)
    chosen = given.get("likelihood", "beta_binomial" if proportions else "binomial")
    law, scaled = find_likelihood(chosen), given.get("offset", True)
    for where, each in (("areas", areas), (name, law)):
        if not each.counts:
            wrong = (
                f"the {each} likelihood of {where} is not of counts; points beside areas need "
                "counts, or positives among people tested"
            )
    if wrong is None and proportions and not law.needs_trials:
        wrong = (
            f"{name}: {law} counts beside proportions of areas have no common rate; give positives "
            "among people tested, or counts of areas"
        )
    elif wrong is None and law.needs_trials and law.parameters and not proportions:
        wrong = (
            f"{name}: {law} beside counts of areas; give binomial, whose clusters differ by a "
            "log-normal factor of the rate"
        )
    elif wrong is None and not scaled and law.needs_trials != proportions:
        wrong = f"{name}: the scale between {law} and {areas} is unknown; leave `offset: false` out"
    if wrong is not None:
        msg = f"sources: {wrong}"
        raise ParameterError(msg)
    effect = not (proportions or law.parameters) and given.get("effect", True)
    law = Scaled(law, proportions=proportions) if scaled else law
    return AreaEffect(law) if effect else law


def _named(name: str, source: str) -> str:
    return f"{name}.{source}" if source else name


def _pooled(law: Likelihood, sample: Summary, number: int) -> float | None:
    """Return the mean of a source's law by its totals; None where it has no bag."""
    if sample.source is None or not (sample.source == number).any():
        return None
    own = sample.of(number)
    if law.needs_trials:
        tested = 0.0 if own.trials is None else float(own.trials.sum())
        return (float(own.y.sum()) + 0.5) / (tested + 1.0)
    return (float(own.y.sum()) + 0.5) / float(own.weight.sum())
