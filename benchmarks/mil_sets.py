"""All classifiers with their defaults on eight multiple-instance sets, beside scikit-learn.

    python -m benchmarks.mil_sets [--models NAME ...] [--sets SET ...] [--repetitions 5]
                                  [--jobs 1] [--records DIR] [--from-records] [--few]

The sets are in ``mil`` of ``DISAGG_SHARED_DATA``; each has 5 repetitions of 10 folds. Each fold has
a record in DIR, which stays valid until the model's code or the set changes: run it again to go on.
A model that fails on the first fold of a set, or takes more than ``--limit`` seconds of processor
time for it, is not tried on the others. Writes ``benchmarks/results/mil_sets.json`` and, from it
alone, ``docs/mil-benchmarks.md``; figures of earlier runs stay until there are newer ones.
With ``--few`` each repetition learns from 42 bags drawn from a set (of which the commoner label is
thinned to four fifths at most) and predicts the others: ten at most, to ``mil_few.json``.
``benchmarks/mil_scores.py`` defines the scores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.mil_contestants import contestants, find_contestant
from benchmarks.mil_data import FEW, N_DRAWS, SETS, load_labelled, require_folder
from benchmarks.mil_page import PAGE, summary_lines, write_page
from benchmarks.mil_runs import LIMIT_S, RECORDS, measure, score_records, settings_of
from benchmarks.report import RESULTS, write_results

N_REPETITION = 5


def merged(
    before: dict[str, dict[str, Any]],
    now: dict[str, dict[str, Any]],
    pairs: list[tuple[str, str]],
) -> dict[str, dict[str, Any]]:
    """Return the figures of both for pairs (set, contestant).

    Newer code wins, and of the same code more repetitions.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, model in pairs:
        old, new = (each.get(name, {}).get(model) for each in (before, now))
        if old and new and old["code"] == new["code"]:
            new = max(old, new, key=lambda row: row.get("repetitions", 0))
        if new or old:
            found.setdefault(name, {})[model] = new or old
    return found


def outdated(scores: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Return the sets on which a model's figures are those of other code than today's."""
    found: dict[str, list[str]] = {}
    for name, rows in scores.items():
        for model, row in rows.items():
            if row["code"] != settings_of(name, model):
                found.setdefault(model, []).append(name)
    return found


def describe(name: str) -> dict[str, Any]:
    """Return a set's size and its share of positive bags."""
    bags = load_labelled(name).bags
    return {
        "bags": bags.n_bag,
        "instances": bags.n_pix,
        "features": bags.x.shape[1],
        "positive": round(float(bags.y.mean()), 3),
    }


def main() -> None:
    known = list(contestants())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", metavar="NAME", default=known,
                        help=f"default: all of {', '.join(known)}")  # fmt: skip
    parser.add_argument("--sets", nargs="+", metavar="SET", choices=SETS, default=list(SETS),
                        help=f"default: all of {', '.join(SETS)}")  # fmt: skip
    parser.add_argument("--few", action="store_true", help="learn from 42 bags of each set")
    parser.add_argument("--repetitions", type=int, choices=range(1, N_DRAWS + 1),
                        default=N_REPETITION)  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS",
                        help="processor time of a fold (default: %(default)s)")  # fmt: skip
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="DIR")
    parser.add_argument("--from-records", action="store_true", help="measure nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--page", type=Path, metavar="FILE",
                        help="write the page here; default: docs/mil-benchmarks.md with the "
                        "default --results, else none")  # fmt: skip
    args = parser.parse_args()
    require_folder()
    try:
        abouts = {name: find_contestant(name).about for name in args.models}
    except ValueError as error:
        parser.error(f"--models: {error}")
    ending, file = (FEW, "mil_few.json") if args.few else ("", "mil_sets.json")
    every = [name + ending for name in SETS]
    pairs = [(name + ending, model) for name in args.sets for model in args.models]
    if not args.from_records:
        measure(pairs, args.repetitions, args.records, jobs=args.jobs, limit_s=args.limit)
    path = args.results / file
    before = json.loads(path.read_text()) if path.is_file() else {}
    kept = [(name, model) for name in every for model in known]
    scores = merged(before.get("scores", {}), score_records(kept, args.records), kept)
    result = {
        "models": {name: find_contestant(name).about for name in known},
        "sets": {name: describe(name) for name in every},
        "outdated": outdated(scores),
        "scores": scores,
    }
    write_results(path, result)
    if set(abouts) <= set(known):
        print("\n".join(summary_lines(result)))
    else:
        asked = {**result, "models": abouts, "scores": score_records(pairs, args.records)}
        print("\n".join(summary_lines(asked)))
    if not args.few and (args.page or args.results == RESULTS):
        write_page(path, args.page or PAGE)


if __name__ == "__main__":
    main()
