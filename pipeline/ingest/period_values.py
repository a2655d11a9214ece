"""Suspicions about the unit of a file of some period: its values stand apart from all others."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from geo.core.errors import name_first
from pipeline.ingest.period_sample import LayerPeriods
from pipeline.ingest.raster_suspicions import Suspicion

N_NAMED = 5
N_FILE = 5  # from which one can stand apart
N_AREA = 200  # areas that are compared: what a file is shows in any of them
FEW = 0.1  # share of the files; more of them are how the layer is
N_BESIDE = 2  # files before, and after, that a file is compared with
N_YEARS = 3  # files of the same season, from which these alone are
FACTOR, FACTOR_JUMPS = 5.0, 2.0  # times more or less; times the logarithm of any other jump
N_SHORT, SHORT_JUMPS = 12, 3.0  # files, with fewer of which other jumps say less: times then
SHIFT, SHIFT_JUMPS = 0.5, 4.0  # share of what is usual; times any other jump
ALIKE = 0.5  # of a jump: areas differ by less, and the files beside by more
LIKE, WIDER = 0.1, 1.5  # of a factor, or times what is usual: areas differ by less than one
BASE = 0.05  # share of a high value that is added before logarithms: a dry month is no jump
HIGH = 0.75  # quantile of the files of an area
KELVIN, NEAR = 273.15, 0.1  # and share of it within which a shift is it


def value_suspicions(layers: Iterable[LayerPeriods]) -> list[Suspicion]:
    """Return a suspicion about each layer of which few files are in another unit.

    The values of each area are compared with those of the same season in other years; with fewer
    than three of these, also with the two files before and after. A file is suspicious

    * if the median area has 5 times more or less, and the logarithm of that is twice any other jump
      of the layer (3 times with fewer than 12 files), or
    * if it has more or less by half of what is usual, by 4 times any other jump, and by more than
      the other files span.

    Areas have to differ alike, and the files just before and after by half as much at least.

    Parameters
    ----------
    layers : iterable of LayerPeriods
    """
    found = []
    for layer in layers:
        odd = _odd(layer)
        if not odd:
            continue
        each = [f"{layer.labels[t]} ({text})" for t, text in odd.items()]
        text = f"values look like another unit in {name_first(each, N_NAMED)}"
        remedy = "bring the file to the unit of the others, such as with gdal_calc.py"
        place = f"{layer.key} ({layer.paths[next(iter(odd))]})"
        found.append(Suspicion("scale", place, text, remedy))
    return found


def _odd(layer: LayerPeriods) -> dict[int, str]:
    """Return the files that stand apart, and what is said of each."""
    n_area, n = layer.mean.shape
    if n < N_FILE:
        return {}
    value = layer.mean[np.unique(np.linspace(0, n_area - 1, min(n_area, N_AREA)).astype(int))]
    value = value[np.isfinite(value).any(axis=1)]
    if value.size == 0:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of areas without a value
        usual, high = np.nanmedian(value, axis=1), np.nanquantile(value, HIGH, axis=1)
        shifted, times = dict[int, _Jump](), dict[int, _Jump]()
        least = SHIFT * float(np.median(np.abs(usual)))
        if least > 0:
            shifted = _apart(layer, value, least, SHIFT_JUMPS, ALIKE)
            level = np.nanmedian(value - usual[:, None], axis=0)
            span = np.nanmax(np.delete(level, [*shifted])) - np.nanmin(np.delete(level, [*shifted]))
            shifted = {t: jump for t, jump in shifted.items() if abs(jump.size) > span}
        amounts = (high > 0) & (np.nanmin(value, axis=1) >= 0)
        if 2 * amounts.sum() > amounts.size:
            logs = np.log(value[amounts] + BASE * high[amounts, None])
            jumps = FACTOR_JUMPS if n >= N_SHORT else SHORT_JUMPS
            times = _apart(layer, logs, float(np.log(FACTOR)), jumps, LIKE)
        odd, told = [*shifted, *times], dict[int, str]()
        for t in sorted(set(odd)):
            expected = _expected(layer, value, t, odd)
            both = np.isfinite(value[:, t] - expected)
            own, other = np.median(value[both, t]), np.median(expected[both])
            text = f"{own:.3g}, by other periods about {other:.3g}: "
            if t in shifted and (t not in times or shifted[t].share <= times[t].share):
                told[t] = text + _shift(shifted[t].size)
            else:
                above = both & (expected > 0)
                told[t] = text + _ratio(float(np.median(value[above, t] / expected[above])))
    return told


@dataclass(frozen=True)
class _Jump:
    """From what is expected: the median of the areas, and the range of their middle half."""

    size: float
    unlike: float

    @property
    def share(self) -> float:
        """How much areas differ by, of the jump."""
        return self.unlike / abs(self.size)


def _apart(
    layer: LayerPeriods, x: np.ndarray, least: float, times: float, alike: float
) -> dict[int, _Jump]:
    """Return the few files whose jumps are ``times`` those of all others, and ``least``.

    Areas differ by less than the share ``alike`` of it, or than 1.5 times as much as usual.
    """
    n, odd = x.shape[1], list[int]()
    found: dict[int, _Jump] = {}
    size, unlike = _jumps(layer, x, odd)
    for _ in range(max(1, int(FEW * n))):
        rest = np.abs(np.where(np.isin(np.arange(n), odd), 0.0, size))
        if rest.max() < least:
            break
        odd.append(int(np.argmax(rest)))
        size, unlike = _jumps(layer, x, odd)
        others = np.abs(np.delete(size, odd)).max()
        if np.abs(size[odd]).min() > max(times * others, least):
            found = {t: _Jump(float(size[t]), float(unlike[t])) for t in odd}
    usual = WIDER * float(np.median(np.delete(unlike, odd)))
    return {
        t: jump
        for t, jump in found.items()
        if jump.unlike <= min(max(usual, alike * abs(jump.size)), ALIKE * abs(jump.size))
        and _stands_alone(x, t, jump.size, [*found])
    }


def _jumps(layer: LayerPeriods, x: np.ndarray, odd: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the jump of each file, and how unlike it is in the areas; 0 of an unknown one."""
    size, unlike = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for t in range(x.shape[1]):
        apart = x[:, t] - _expected(layer, x, t, odd)
        apart = apart[np.isfinite(apart)]
        if apart.size:
            low, size[t], high = np.quantile(apart, [0.25, 0.5, 0.75])
            unlike[t] = high - low
    return size, unlike


def _expected(layer: LayerPeriods, x: np.ndarray, t: int, odd: Sequence[int]) -> np.ndarray:
    """Return what other files than the odd ones make expected of a file, (n_area,)."""
    sound = np.setdiff1d(np.arange(x.shape[1]), [t, *odd])
    years = sound[layer.same_season(t)[sound]]
    if years.size < N_YEARS:
        beside = [sound[sound < t][-N_BESIDE:], sound[sound > t][:N_BESIDE]]
        years = np.union1d(years, np.concatenate(beside))
    found: np.ndarray = np.nanmedian(x[:, years], axis=1)
    return found


def _stands_alone(x: np.ndarray, t: int, size: float, odd: Sequence[int]) -> bool:
    """Return whether the sound files just before and after differ from a file as it jumps."""
    sound = np.setdiff1d(np.arange(x.shape[1]), odd)
    beside = [*sound[sound < t][-1:], *sound[sound > t][:1]]
    steps = [float(np.nanmedian(x[:, t] - x[:, other])) * np.sign(size) for other in beside]
    return all(step >= ALIKE * abs(size) for step in steps)


def _shift(size: float) -> str:
    if abs(abs(size) - KELVIN) < NEAR * KELVIN:
        return "kelvin?" if size > 0 else "degrees Celsius among kelvin?"
    return f"{abs(size):.3g} {'more' if size > 0 else 'less'}"


def _ratio(ratio: float) -> str:
    if ratio == 0:
        return "nothing"
    rounded = float(f"{max(ratio, 1 / ratio):.2g}")
    return f"{rounded:,.10g} times {'more' if ratio > 1 else 'less'}"
