"""Suspicions about a raster: undeclared nodata, a scale, the unit of the population."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from geo.core.errors import Problem
from geo.sources.source import Description, Source
from pipeline.ingest.raster_sample import RasterSample

#: Numbers that programs and data sets write for missing pixels.
SENTINELS = frozenset(
    {-99.0, -999.0, -3000.0, -28672.0, 255.0, 65535.0, 4294967295.0}
    | {sign * (10.0**n - 1) for n in (4, 5) for sign in (-1, 1)}
    | {32767.0, -32767.0, -32768.0, 2147483647.0, -2147483648.0}
)
HUGE = 1e19  # no measurement is as large; 1e20 and 3.4e38 are numbers of missing pixels
N_SENTINEL = 3  # pixels from which a sentinel counts
N_REPEATED, SHARE_REPEATED = 20, 0.001  # pixels from which any other number does
N_REST = 20  # values beside which a number can stand apart
MAX_PER_KM2 = 1e6  # people; the densest slums have a fifth of it
MEAN_PER_KM2, OVER_KM2 = 5_000, 10_000  # people; no region of this size is as dense
FEWEST_PER_KM2 = 0.01  # people; Greenland, the emptiest country, has 0.026
SPARSE_PER_KM2, TOWN_PER_KM2 = 1.0, 30.0  # people; where there are fewer, a town has more
FINE_KM2, COARSE_KM2 = 0.01, 10.0  # surface of a pixel: with less or more a town says nothing
MISSING_INDEX = -3000.0  # of MODIS and VIIRS vegetation indices, which are stored times 10,000

_INDEX = re.compile(r"(?<![a-z])(ndvi|evi2?|savi|msavi|fapar|fpar|albedo)(?![a-z])|m[oy]d13|vnp13")
_TEMPERATURE = re.compile(r"(?<![a-z])(lst|temp(erature)?|tmp|tmean|tmin|tmax|tavg|tas)(?![a-z])")
DENSITY = re.compile(
    r"densit|per[ _]?(km2|sq|square)|/ ?(km2|km\^2|km²|sq|ha)(?![a-z])|km-2|km\^-2"
    r"|(?<![a-z])(popd|pd)(?![a-z])"
)
_AMOUNT = re.compile(r"(?<![a-z])(ppp|people per pixel|persons? per pixel|popcount|count)(?![a-z])")
_MANY = re.compile(r"thousand|million|(?<![\d.])1000 (people|persons|inhabitants)|10\^[36]|'000")


@dataclass(frozen=True)
class Suspicion:
    """Something that is valid but probably a mistake.

    Attributes
    ----------
    code : str
        One of ``pipeline.config.check_schema.CODES``.
    place, found, remedy : str
        As in :class:`geo.core.errors.Problem`.
    grave : bool
        Whether a run stops unless the user accepts it: its rates would be wrong by orders.
    """

    code: str
    place: str
    found: str
    remedy: str
    grave: bool = False

    def problem(self) -> Problem:
        """Return the problem that a grave suspicion is."""
        key = self.place.partition(" (")[0]
        accept = f"if it is right, set check: {{accept: ['{self.code}:{key}']}}"
        return Problem(self.place, self.found, f"{self.remedy}; {accept}")

    def __str__(self) -> str:
        return f"{self.place}: {self.found}; {self.remedy} [{self.code}]"


@dataclass(frozen=True)
class _Spike:
    value: float
    n: int
    n_inside: int
    low: float
    high: float


def raster_suspicions(key: str, path: str, source: Source, sample: RasterSample) -> list[Suspicion]:
    """Return the suspicions about any raster: undeclared nodata, and a scale.

    Parameters
    ----------
    key : str
        ``population`` or ``covariates.<name>``.
    path : str
    source : Source
    sample : RasterSample
    """
    place = f"{key} ({path})"
    found = []
    about = source.describe()
    stored = {name: about.stored(getattr(sample, name)) for name in ("inside", "outside")}
    spikes = _spikes(stored["inside"], stored["outside"])
    for spike in spikes:
        numbers = [*about.nodata, *(each.value for each in spikes)]
        value = f"{numbers[0]:.17g}" if len(numbers) == 1 else _listed(numbers)
        found.append(
            Suspicion(
                "nodata",
                place,
                f"{spike.value:.9g} in {spike.n:,} pixels ({spike.n_inside:,} of them in areas), "
                f"far from all others ({spike.low:.6g} to {spike.high:.6g})",
                f"if these are missing, set {key}.nodata: {value}",
            )
        )
    inside = stored["inside"]
    for spike in spikes:
        inside = inside[inside != spike.value]
    wrong = _scale(_words(key, path, about), about, inside) if inside.size >= N_REST else None
    if wrong is not None:
        found.append(Suspicion("scale", place, wrong[0], wrong[1].format(key=key)))
    return found


def population_suspicions(
    path: str,
    source: Source,
    *,
    density: bool,
    total: float,
    km2: float,
    densest: float,
    pixel: float,
) -> list[Suspicion]:
    """Return the suspicions about the unit of the population.

    Parameters
    ----------
    path : str
    source : Source
    density : bool
        Whether the configuration says that the raster is per km2.
    total, km2 : float
        People in the areas; surface of the areas. NaN if unknown.
    densest : float
        People per km2 of the densest pixel, as the configuration reads it; NaN if unknown.
    pixel : float
        Surface of a pixel, km2; NaN if unknown.
    """
    place = f"population ({path})"
    about = source.describe()
    words = _words("population", path, about)
    found = []
    says_density, says_amount = DENSITY.search(words), _AMOUNT.search(words)
    if says_density and not density:
        text = f"is read as people per pixel, but its name or unit says {says_density[0]!r}"
        remedy = "if it is people per km2, set population.density: true"
        found.append(Suspicion("density", place, text, remedy))
    elif says_amount and not says_density and density:
        text = f"is read as people per km2, but its name or unit says {says_amount[0]!r}"
        remedy = "if it is people per pixel, remove population.density"
        found.append(Suspicion("density", place, text, remedy))
    elif densest > MAX_PER_KM2:
        text = f"has pixels with up to {densest:,.0f} people per km2, which no place has"
        other = "per pixel (population.density: false)" if density else "per km2 (density: true)"
        found.append(Suspicion("density", place, text, f"check whether it is people {other}"))
    elif km2 > OVER_KM2 and total / km2 > MEAN_PER_KM2:
        text = (
            f"has {total / km2:,.0f} people per km2 on average over {km2:,.0f} km2, "
            "more than any region"
        )
        other = "per pixel (population.density: false)" if density else "per km2 (density: true)"
        found.append(Suspicion("density", place, text, f"check whether it is people {other}"))
    elif few := _too_few(total, km2, densest, pixel):
        other = "" if density else ", or per km2 (population.density: true)"
        remedy = f"check whether it is in thousands (population.scale: 1000){other}"
        found.append(Suspicion("thousands", place, few, remedy, grave=True))
        return found
    many = _MANY.search(f"{about.unit} {about.description}".lower())
    if many and about.scale == 1.0:
        factor = "1000000" if "million" in many[0] or "6" in many[0] else "1000"
        text = f"is read as people, but its unit says {many[0]!r}"
        remedy = f"if so, set population.scale: {factor}; if not, set population.units: people"
        found.append(Suspicion("thousands", place, text, remedy, grave=True))
    return found


def _too_few(total: float, km2: float, densest: float, pixel: float) -> str:
    """Return why people look like thousands of them; empty if they do not, or it is not known.

    Even empty countries have towns: a pixel of some kilometres with dozens of people per km2.
    """
    mean = total / km2 if km2 > 0 else float("nan")
    said = f"has {mean:.2g} people per km2 on average over {km2:,.0f} km2"
    if km2 > OVER_KM2 and 0 < mean < FEWEST_PER_KM2:
        return f"{said}, fewer than any country"
    if not 0 < mean < SPARSE_PER_KM2:
        return ""
    if pixel >= FINE_KM2 and densest * pixel < 1:
        return f"{said}, and no pixel with one person"
    if km2 > OVER_KM2 and pixel <= COARSE_KM2 and densest < TOWN_PER_KM2:
        return f"{said}, and none of its pixels more than {densest:.2g}"
    return ""


def _words(key: str, path: str, about: Description) -> str:
    """Return what names a raster, in lower case."""
    name = PurePath(path).name
    return " ".join([key, name, about.description, about.unit]).lower()


def _listed(numbers: list[float]) -> str:
    return "[" + ", ".join(f"{value:.17g}" for value in dict.fromkeys(numbers)) + "]"


def _spikes(inside: np.ndarray, outside: np.ndarray) -> list[_Spike]:
    """Return the numbers at either end that stand apart from all others."""
    number, times = np.unique(np.concatenate([inside, outside]), return_counts=True)
    found: list[_Spike] = []
    first, last = 0, number.size - 1
    while last - first >= 5 and len(found) < 4:
        span = slice(first, last + 1)
        low = _stands_apart(number[span], times[span], 1)
        high = _stands_apart(-number[span][::-1], times[span][::-1], -1)
        if not (low or high):
            break
        at = first if low else last
        first, last = (first + 1, last) if low else (first, last - 1)
        value = float(number[at])
        n_inside = int((inside == value).sum())
        found.append(_Spike(value, int(times[at]), n_inside, 0.0, 0.0))
    return [
        _Spike(s.value, s.n, s.n_inside, float(number[first]), float(number[last])) for s in found
    ]


def _stands_apart(number: np.ndarray, times: np.ndarray, sign: int) -> bool:
    """Return whether the first of ascending numbers stands apart from all others.

    A known number of missing pixels does if the gap to the next is wider than a hundredth of the
    range of the others, and either than three times the span of their lowest twentieth, or than
    four times any gap in it while the number is five times as frequent as any in it. Another
    number has to be frequent, and the gap wider than the range of the others and than 20 of their
    standard deviations, estimated from their quartiles.
    """
    value, rest, n = float(number[0]), number[1:], int(times[0])
    n_rest = int(times[1:].sum())
    if n_rest < N_REST or rest.size < 5:
        return False
    if abs(value) >= HUGE and abs(rest[-1]) < HUGE and abs(rest[0]) < HUGE:
        return True
    gap, spread = float(rest[0] - value), float(rest[-1] - rest[0])
    below = np.cumsum(times[1:]) / n_rest
    fifth, lower, upper = (
        float(rest[np.searchsorted(below, share)]) for share in (0.05, 0.25, 0.75)
    )
    if sign * value in SENTINELS:
        tail = int(np.searchsorted(rest, fifth, side="right"))
        widest = float(np.diff(rest[: max(tail, 2)]).max())
        sparse = gap > 4 * widest and n >= 5 * int(times[1 : tail + 1].max())
        apart = gap > 3 * (fifth - float(rest[0])) or sparse
        return n >= N_SENTINEL and gap > 0.01 * spread and apart
    frequent = n >= max(N_REPEATED, SHARE_REPEATED * (n + n_rest))
    return frequent and rest.size >= 20 and gap > spread and gap > 20 * (upper - lower) / 1.349


def _scale(words: str, about: Description, values: np.ndarray) -> tuple[str, str] | None:
    """Return the multiple of a unit that the values are, and the remedy, for known quantities."""
    if about.scale != 1.0 or about.offset != 0.0:
        return None
    low, middle, high = (float(v) for v in np.quantile(values, [0.01, 0.5, 0.99]))
    span = f"has values of {low:.6g} to {high:.6g} (1 % and 99 % of its pixels)"
    integer = np.dtype(about.dtype).kind in "iu"
    stored_so = integer and about.nodata[:1] == (MISSING_INDEX,) and 1_000 < high <= 10_000
    index = _INDEX.search(words) or stored_so
    if index and middle > 20:
        if high > 300 and high <= 10_000:
            return (
                f"{span}: ten thousand times an index, which is at most 1",
                "set {key}.scale: 0.0001",
            )
        return f"{span}: an index is at most 1", "set {key}.scale as its documentation says"
    if _TEMPERATURE.search(words):
        if low > 11_000 and high < 17_500:
            remedy = "set {key}.scale: 0.02 and offset: -273.15, for degrees Celsius"
            return f"{span}: fiftieths of a kelvin, as MODIS stores them", remedy
        if low > 2_200 and high < 3_500:
            remedy = "set {key}.scale: 0.1 and offset: -273.15, for degrees Celsius"
            return f"{span}: tenths of a kelvin", remedy
        celsius = 130 < middle < 200 or (335 < middle < 450 and low > 130)
        if integer and celsius and high < 600:
            return f"{span}: tenths of a degree Celsius", "set {key}.scale: 0.1"
    return None
