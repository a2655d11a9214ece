"""What a comparison says: its headline, and its lines for a terminal."""

from __future__ import annotations

from typing import Any

from pipeline.comparison.differences import in_words
from pipeline.comparison.periods import periods_line
from pipeline.comparison.scores import scores_lines

N_NAMED = 3  # areas that the headline names


def headline(report: dict[str, Any]) -> str:
    """Return what changed in one line."""
    areas, total = report["areas"], report["total"].get("expected")
    n = areas["n_common"]
    if areas["n_counts_rose"] is None:
        words = f"{areas['n_rose']} of {n} areas rose and {areas['n_fell']} fell"
        words += f" with a probability of {report['sure']:g} or more"
    else:
        rose, fell = areas["n_counts_rose"], areas["n_counts_fell"]
        of, noun = f"{n} areas", report["words"]["noun"]
        if lacking := n - areas["n_counts"]:
            of = f"{areas['n_counts']} areas with a {noun} in both "
            of += f"({lacking} lack one, or have no people)"
        rose = f"{rose} rose{_named_few(areas['counts_rose'])}"
        fell = f"{fell} fell{_named_few(areas['counts_fell'])}"
        words = (
            f"observed {report['words']['rates']} of {of}: {rose} and {fell} by more than chance"
        )
    if total:
        # Areas that lack a count have an expected one, too.
        n_total, n_told = report["total"]["n_areas"], areas["n_counts"]
        of_all = "in all" if n_told in (None, n_total) else f"in all {n_total} areas"
        words += f"; {of_all}, {report['words']['expected']} {total['a']:,.0f} -> {total['b']:,.0f}"
        if total.get("change_probability") is not None:
            words += f" (probability of a rise {total['change_probability']:.2f})"
        observed = report["total"].get("observed")
        if observed:
            words += f", {report['words']['observed']} {observed['a']:,.0f} -> {observed['b']:,.0f}"
    return f"{words}; by {report['method']['areas']}"


def lines(report: dict[str, Any]) -> list[str]:
    """Return the comparison as a few lines for a terminal."""
    pixels, areas, method = report["pixels"], report["areas"], report["method"]
    unit = report["unit"]
    found = [
        f"A: {_named(report['a'])}",
        f"B: {_named(report['b'])}",
        f"Differs: {in_words(report['differed'])}",
        f"Method: {method['pixels']} by pixel, {method['areas']} by area"
        + (f" ({method['why']})" if method["why"] else ""),
        headline(report)[0].upper() + headline(report)[1:],
        f"Pixels: {pixels['n_pix']:,} in both; {pixels['n_rose']:,} rose, {pixels['n_fell']:,} "
        f"fell; mean difference {pixels['mean_difference']:.4g}, mean absolute "
        f"{pixels['mean_absolute_difference']:.4g} ({unit})",
    ]
    if report.get("periods"):
        found.append(periods_line(report["periods"]))
    found += scores_lines(report["scores"])
    for word, key in (("Rose most", "largest_rises"), ("Fell most", "largest_falls")):
        shown = [
            f"{each['id']} {each['difference']:+.3g} (probability {each['probability']:.2f})"
            for each in areas[key][:3]
        ]
        if shown:
            found.append(f"{word}: {', '.join(shown)}")
    for letter in "ab":
        only = areas[f"only_in_{letter}"]
        if only:
            more = f" and {len(only) - 5} more" if len(only) > 5 else ""
            found.append(f"Only in {letter.upper()}: {', '.join(only[:5])}{more}")
    return found


def _named(side: dict[str, Any]) -> str:
    parts = [side["name"], side["period"], side["version"], f"({side['directory']})"]
    return " ".join(str(part) for part in parts if part)


def _named_few(names: list[str]) -> str:
    few = ", ".join(names[:N_NAMED])
    if not names:
        return ""
    return f" ({few}{f' and {len(names) - N_NAMED} more' if len(names) > N_NAMED else ''})"
