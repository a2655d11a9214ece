"""The columns of the tables of levels: their meaning and unit, for aliases and the glossary."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.config.no_spread import without_spread
from pipeline.config.schema import Config


@dataclass(frozen=True)
class Column:
    """Meaning of a column.

    Attributes
    ----------
    name, meaning, unit : str
        ``unit`` is empty for texts.
    """

    name: str
    meaning: str
    unit: str = ""


_ENDS = {"_lower": "lower end of the {interval} interval", "_upper": "upper end of it"}
_RATE = "{quantity} of the area: its expected {total} over its {weight_unit}"


_OF_SPREAD = re.compile(r"_(lower|upper)$|^p_above_")


def _with_ends(name: str, meaning: str, unit: str) -> list[tuple[str, str, str]]:
    ends = [(name + end, f"{name}: {text}, from joint draws", unit) for end, text in _ENDS.items()]
    return [(name, meaning, unit), *ends]


_RECONCILED = "after each draw was scaled to the given totals (reconciled)"
_FIXED = [
    ("id", "identifier of the area", ""),
    ("name", "name of the area", ""),
    ("people", "{weight_unit} in mapped pixels, border pixels by their share", "{weight_unit}"),
    ("mapped", "share of the area's surface in pixels that have a {quantity}", "1"),
    (
        "extrapolating",
        "share of the {weight_unit} in pixels where a covariate is outside its range in training",
        "1",
    ),
    ("tested", "people tested; empty unless known for the whole area", "people"),
    (
        "observed",
        "reported {total} of the training areas inside; empty unless known for the whole area",
        "{total}",
    ),
    ("observed_why", "why the reported {total} are not known; empty where they are", ""),
    ("observed_rate", "observed {quantity}", "{rate_unit}"),
    *_with_ends("cases", "{expected}: sum of the map, without the noise of a count", "{total}"),
    *_with_ends("rate", _RATE, "{rate_unit}"),
    *_with_ends(
        "rank",
        "rank of the {quantity} within the level: 1 is the highest; empty where most of the "
        "{weight_unit} of the area are outside the map",
        "1",
    ),
    ("target_order", "place of the area if areas are taken by falling mean {quantity}", "1"),
    (
        "target_people",
        "share of the level's {weight_unit} in the areas up to this one, in that order",
        "1",
    ),
    *_with_ends("target_cases", "share of the level's {total} in these areas", "1"),
    ("target_total", "{total} that the reconciled columns add up to; empty: none", "{total}"),
    *_with_ends("reconciled_cases", f"expected {{total}} {_RECONCILED}", "{total}"),
    *_with_ends("reconciled_rate", f"{{quantity}} {_RECONCILED}", "{rate_unit}"),
    *_with_ends("reconciled_factor", "reconciled {total} over the plain ones of a draw", "1"),
]


def threshold_columns(threshold: float) -> tuple[str, str]:
    """Return the columns of the probability and of the people above a threshold."""
    return f"p_above_{threshold:g}", f"people_above_{threshold:g}"


def describe_columns(config: Config, names: Iterable[str]) -> list[Column]:
    """Return the meaning of each of some columns, in the order of the tables.

    Parameters
    ----------
    config : Config
    names : iterable of str
        Columns of any table; others than ours are left out.
    """
    response = config.response_kind
    texts = list(_FIXED)
    at = next(n for n, each in enumerate(texts) if each[0] == "rank")
    for threshold in reversed(list(dict.fromkeys(config.output.exceedance))):
        probability, people = threshold_columns(threshold)
        limit = f"{threshold:g} {response.rate_unit}"
        texts[at:at] = [
            (probability, f"probability that the area's {{quantity}} is above {limit}", "1"),
            *_with_ends(
                people,
                f"expected {{weight_unit}} in pixels whose {{quantity}} is above {limit}, a mean "
                "over the draws: where few draws have many, it is above its own interval",
                "{weight_unit}",
            ),
        ]
    wanted, spread = set(names), config.model.has_spread
    return [
        Column(
            name,
            without_spread(response.fill(meaning), spread=spread or not _OF_SPREAD.search(name)),
            response.fill(unit),
        )
        for name, meaning, unit in texts
        if name in wanted
    ]
