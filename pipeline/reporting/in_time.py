"""What the kernel of a series says of space and time: the parts that stay, drift and come back."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from models.gp.kernel_text import AREA
from models.temporal.markov import MarkovKernel, Matern12, Matern32, Matern52, Season
from models.temporal.time_text import STILL, SpaceTimeText
from pipeline.reporting.words import number

_SPACE = re.compile(r"(\w+)\(space\)")
_OF_TIME = re.compile(r"time\[(\d+)\]\.(.+)")
_WHOSE = {AREA: "each area has of its own", "constant": "all areas share"}
_DRIFTS: dict[str, MarkovKernel] = {
    "matern12": Matern12(),
    "matern32": Matern32(),
    "matern52": Matern52(),
}


@dataclass(frozen=True)
class PartsInTime:
    """The parts of a kernel of space and time, and what their parameters mean.

    Attributes
    ----------
    text : SpaceTimeText
    step : str
        Length of a period: the unit of all times, such as ``month``.
    """

    text: SpaceTimeText
    step: str

    def meaning(self, name: str, value: float) -> str:
        """Return what a parameter says in a sentence; empty for others than those of time.

        Parameters
        ----------
        name : str
            As :meth:`models.temporal.space_time.SpaceTime.named` gives it.
        value : float
        """
        of_time = _OF_TIME.fullmatch(name)
        if of_time is not None:
            return self._of_time(int(of_time[1]), of_time[2], value)
        term, _, parameter = name.rpartition(".")
        at = self._terms().get(term)
        if parameter != "variance" or at is None:
            return ""
        what = self._what(at)
        return f"{what[:1].upper()}{what[1:]} varies by about {number(value**0.5)} before the link."

    def _terms(self) -> dict[str, int]:
        """Return the number of each term that has a name, as kernels name their parameters."""
        found: dict[str, int] = {}
        times: dict[str, int] = {}
        for at, term in enumerate(self.text.terms):
            own = _SPACE.fullmatch(term)
            name = term if own is None else f"{own[1]}_space"
            if own is not None or term in _WHOSE:
                times[name] = times.get(name, 0) + 1
                found[name if times[name] == 1 else f"{name}_{times[name]}"] = at
        return found

    def _what(self, at: int) -> str:
        """Return what a term is: whose it is, and how it goes on in time."""
        whose = _WHOSE.get(self.text.terms[at], "neighbouring places share")
        time = self.text.time_of[at]
        if time == STILL:
            return f"what {whose}, alike in all {self.step}s,"
        if isinstance(self.text.times[time], Season):
            return f"the season that {whose}"
        return f"what {whose}, drifting in time,"

    def _of_time(self, time: int, name: str, value: float) -> str:
        first = self.text.time_of.index(time)
        whose, size = _WHOSE.get(self.text.terms[first], "neighbouring places share"), number(value)
        kind, _, parameter = name.partition(".")
        if parameter == "scale":
            zero = np.zeros(1)
            alike = float(_DRIFTS[kind].covariance(zero, np.ones(1))[0])
            return (
                f"Two {self.step}s that are {size} {self.step}s apart have a correlation of "
                f"{number(alike)} in the drift of what {whose}."
            )
        if parameter == "damping":
            return (
                f"The season keeps its shape: that of {size} {self.step}s later has a correlation "
                f"of {number(math.exp(-1.0))} with it."
            )
        if parameter == "ratio":
            return (
                f"Each harmonic of the season has {size} times the variance of the one before: "
                "near 0, a year is a single wave."
            )
        return f"This part in time has {size} times the variance of the first of its bracket."
