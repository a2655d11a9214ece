"""Which area a name may be: proposals for a crosswalk, with their scores and reasons."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from geo.core.columns import folded

LEAST = 0.8  # score from which a name is proposed
CLEAR = 0.05  # by which the next best has to be worse
#: Words that say what kind of an area it is, and are left out by some tables.
_KINDS = re.compile(
    r"\b(district|province|region|county|counties|department|departement|departamento|commune|"
    r"comuna|municipality|municipio|municipalite|city|town|ville|cidade|state|prefecture|prefeitura|"
    r"sub\s?county|zone|zona|governorate|block|ward|health|sanitaire|saude|salud|area|"
    r"thanh pho|tinh|quan|huyen|of|de|du|da|do|la|le)\b"
)


@dataclass(frozen=True)
class Area:
    """An area as a name may mean it.

    Attributes
    ----------
    id, name : str
    parent : str
        Name of the area that holds it; empty where that is not known.
    """

    id: str
    name: str
    parent: str = ""


def propose(names: Sequence[tuple[str, str]], areas: Sequence[Area]) -> list[dict[str, object]]:
    """Propose an area for each name.

    Parameters
    ----------
    names : sequence of (str, str)
        Names that are no ids, with their parents, which may be empty.
    areas : sequence of Area
        Those that no other name has.

    Returns
    -------
    list of dict
        Of each name ``name``, ``parent``, ``area_id`` and ``area_name`` (blank where no area is
        near, or several are), ``score`` from 0 to 1, ``reason``. No area has two names.
    """
    lines = [_best(name, parent, areas) for name, parent in names]
    claims: dict[object, list[dict[str, object]]] = {}
    for line in lines:
        if line["area_id"]:
            claims.setdefault(line["area_id"], []).append(line)
    for rivals in claims.values():
        rivals.sort(key=lambda line: -float(str(line["score"])))
        for line in rivals[1:]:
            better = rivals[0]["name"]
            line |= {"area_id": "", "reason": f"{line['area_name']} is nearer to {better}"}
    return lines


def _best(name: str, parent: str, areas: Sequence[Area]) -> dict[str, object]:
    inside = [each for each in areas if parent and folded(each.parent) == folded(parent)]
    scored = sorted(
        ((*_score(name, area), area) for area in inside or areas), key=lambda each: -each[0]
    )
    line: dict[str, object] = {"name": name, "parent": parent, "area_id": "", "area_name": ""}
    if not scored:
        return {**line, "score": 0.0, "reason": "no area is left"}
    score, reason, area = scored[0]
    line["score"] = round(score, 2)
    if score < LEAST:
        return {**line, "reason": f"none is near; the nearest is {area.name}"}
    if len(scored) > 1 and scored[1][0] > score - CLEAR:
        return {**line, "reason": f"{area.name} and {scored[1][2].name} are as near"}
    if inside:
        reason += ", in the same parent"
    return {**line, "area_id": area.id, "area_name": area.name, "reason": reason}


def _score(name: str, area: Area) -> tuple[float, str]:
    """Return how near a name is, from 0 to 1, and by what."""
    given, known = name.strip(), area.name.strip()
    if given in (known, area.id):
        return 1.0, "the same name"
    if folded(given) == folded(known):
        return 0.99, "but for capitals, accents and punctuation"
    short, other = bare(given), bare(known)
    if short and short == other:
        return 0.95, "but for words such as district"
    if short and other and sorted(short.split()) == sorted(other.split()):
        return 0.93, "the same words in another order"
    ratio = difflib.SequenceMatcher(None, short, other, autojunk=False).ratio()
    return 0.9 * ratio if ratio < 1 else 0.9, f"{round(100 * ratio)} % of the letters are alike"


def bare(name: str) -> str:
    """Return a name without accents, capitals, punctuation and words for a kind of area."""
    plain = unicodedata.normalize("NFKD", name.casefold().replace("\u0111", "d"))
    text = re.sub(r"[^\w\s]|_", " ", "".join(c for c in plain if not unicodedata.combining(c)))
    short = " ".join(_KINDS.sub(" ", text).split())
    return short or " ".join(text.split())


def parent_column(parents: set[str], columns: Mapping[str, Sequence[str | None]]) -> str | None:
    """Return the column of the areas that has half of the parents of a table; None if none does.

    Parameters
    ----------
    parents : set of str
    columns : mapping
        Texts of the areas by the name of their column.
    """
    wanted = {folded(each) for each in parents}
    share = {
        name: len(wanted & {folded(text) for text in texts if text}) / max(len(wanted), 1)
        for name, texts in columns.items()
    }
    best = max(share, key=lambda name: share[name], default=None)
    return best if best is not None and share[best] >= 0.5 else None
