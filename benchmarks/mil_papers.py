"""The experiments of the classifiers' papers that the data allow, beside our defaults.

    python -m benchmarks.mil_papers [psi gpmil blrt figure1 vwsgp attention] [--repetitions N]
                                    [--jobs 1] [--records DIR] [--from-records]

Each experiment is a line of ``EXPERIMENTS``: sets with folds, and what is compared on them. In the
same run: the paper's settings, our defaults, and scikit-learn on statistics of each bag. Settings
are given, not searched; the papers' figures are those of their best settings. Writes
``benchmarks/results/mil_papers.json`` and, from it alone, ``docs/mil-papers.md``. Records are those
of ``benchmarks.mil_sets``: what it has measured is not measured again. The ten million rows of the
VWSGP paper: ``python -m benchmarks.vwsgp``. ``attention`` needs ``disagg[peers]``, and is left out
without it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.mil_attention import ATTENTION
from benchmarks.mil_contestants import find_contestant
from benchmarks.mil_data import require_folder
from benchmarks.mil_page import standard_error
from benchmarks.mil_runs import LIMIT_S, RECORDS, measure, score_records
from benchmarks.mil_scores import alike
from benchmarks.mil_sets import merged
from benchmarks.report import RESULTS, write_results

PAGE = Path(__file__).parents[1] / "docs" / "mil-papers.md"
BASELINES = ("extra_trees", "logistic", "gp_statistics")
#: psi-VGPMIL as its section 6 has it: no intercept, H = 100, one fit until it converges.
PSI = (
    "psi_vgpmil variance=0.5 lengthscale=1.0 start=0.5 intercept_sd=0.0 log_h=4.605 saturation=1e9 "
    "n_inducing=200 calibrate=none"
)
GAMMA = "density=gamma alpha=1.0 beta=4.0"


@dataclass(frozen=True)
class Printed:
    """A figure that a paper prints: what it calls it, the score, and what of ours it stands for."""

    words: str
    column: str
    value: float
    model: str


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper.

    Attributes
    ----------
    title, about : str
    sets, models : tuple of str
        As :mod:`benchmarks.mil_data` and :mod:`benchmarks.mil_contestants` name them.
    columns : tuple of str
        Scores that are shown.
    paper : dict of Printed
        From a set to what the paper prints.
    reasons : str
        Why ours differ.
    """

    title: str
    about: str
    sets: tuple[str, ...]
    models: tuple[str, ...]
    columns: tuple[str, ...]
    paper: dict[str, tuple[Printed, ...]] = field(default_factory=dict)
    reasons: str = ""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All pairs of a set and a contestant."""
        return [(name, model) for name in self.sets for model in self.models]


def _both(*scores: tuple[str, float, float]) -> tuple[Printed, ...]:
    """Return what the psi-VGPMIL paper prints of its two models, by score."""
    gamma = "psi_vgpmil density=gamma"
    return tuple(
        printed
        for column, polya, of_gamma in scores
        for printed in (
            Printed("PG", column, polya, "psi_vgpmil"),
            Printed("G", column, of_gamma, gamma),
        )
    )


TITLES = {
    "auc": "AUC",
    "average_precision": "average precision",
    "accuracy": "accuracy",
    "log_loss": "log loss",
    "calibration_error": "calibration error",
    "instance_auc": "AUC of instances",
    "seconds": "seconds a fold",
}
EXPERIMENTS = {
    "psi": Experiment(
        "psi-VGPMIL: Musk and digits (Castro-Macías et al. 2024, tables 4 to 7)",
        "Musk on its own folds. Bags of ten of scikit-learn's 8 x 8 digits stand in for MNIST: "
        "positive with one to four digits 2 or 9, five folds; PCA has 30 components. The paper's "
        "figures are those of its best of 18 settings, stopped early by validation bags.",
        ("Musk1", "Musk2", "digits raw", "digits pca"),
        (
            "psi_vgpmil",
            "psi_vgpmil density=gamma",
            PSI,
            f"{PSI} {GAMMA}",
            "pooled_gp",
            *BASELINES,
        ),
        ("auc", "accuracy", "log_loss", "instance_auc", "seconds"),
        {
            "Musk1": _both(("auc", 0.962, 0.967), ("accuracy", 0.881, 0.902)),
            "Musk2": _both(("auc", 0.949, 0.961), ("accuracy", 0.880, 0.897)),
            "digits raw": _both(("auc", 0.848, 0.863), ("instance_auc", 0.876, 0.884)),
            "digits pca": _both(("auc", 0.965, 0.966), ("instance_auc", 0.970, 0.972)),
        },
        "On Musk the paper's figures are not of held-out bags: in the program that its authors "
        "published the folds are mixed up. They are of the best of 18 settings, too, stopped early "
        "by validation bags; ours have one setting and end at the optimum of the bound. The rows "
        "of options are what the paper prints, without its search and its early stop. The digits "
        "are smaller pictures than the paper's.",
    ),
    "gpmil": Experiment(
        "GPMIL: Musk and images, both laws (Kim & De la Torre 2010, table 1)",
        "The exact model takes 5,000 instances at most: on Musk2 the sparse one stands in.",
        ("Musk1", "Musk2", "Elephant"),
        (
            "gpmil",
            "gpmil likelihood=witness",
            "gpmil likelihood=softmax calibrate=none",
            "gpmil likelihood=witness calibrate=none",
            "gpmil_s",
            "gpmil_s likelihood=witness",
            "pooled_gp",
            *BASELINES,
        ),
        ("accuracy", "auc", "log_loss", "seconds"),
        {
            name: (
                Printed("witness", "accuracy", witness, f"{model} likelihood=witness"),
                Printed("soft-max", "accuracy", softmax, model),
            )
            for name, model, witness, softmax in (
                ("Musk1", "gpmil", 0.895, 0.885),
                ("Musk2", "gpmil_s", 0.873, 0.879),
                ("Elephant", "gpmil", 0.838, 0.829),
            )
        },
        "The folds are not the paper's; one bag more or less of Musk1 is .01 of its accuracy. On "
        "Musk2 the sparse model stands in for the exact one; how much of the difference that is, "
        "is not known. The exact soft-max model takes one to four minutes a fold.",
    ),
    "blrt": Experiment(
        "BLRT: table 1 (Komárek & Somol 2018)",
        "The sets' own folds, as in the paper; those of Musk2 are not the paper's.",
        (
            *("Musk1", "Musk2", "Elephant", "CorelAfrican"),
            *("Mutagenesis1", "BrownCreeper", "Newsgroups2", "Protein"),
        ),
        ("blrt", *BASELINES),
        ("auc", "accuracy", "log_loss", "seconds"),
        {
            name: (Printed(f"table 1, deviation {deviation:.3f}", "auc", value, "blrt"),)
            for name, value, deviation in (
                ("Musk1", 0.968, 0.016),
                ("Musk2", 0.912, 0.018),
                ("Elephant", 0.958, 0.009),
                ("CorelAfrican", 0.962, 0.002),
                ("Mutagenesis1", 0.921, 0.013),
                ("BrownCreeper", 0.995, 0.000),
                ("Newsgroups2", 0.630, 0.040),
                ("Protein", 0.749, 0.023),
            )
        },
        "The paper's deviations are over repetitions. Its AUC pools the folds of a repetition or "
        "averages over them, which it does not say; ours averages. Draws of the trees differ.",
    ),
    "figure1": Experiment(
        "BLRT: figure 1 (Komárek & Somol 2018)",
        "Trees, impurity, thresholds, counts instead of shares, and a random forest on shares "
        "above eight fixed thresholds. The paper: 100 trees are better than 10, 500 are hardly "
        "better; Gini and information gain are alike; T = 16 may overfit; absolute counts and the "
        "forest on fixed shares are worse.",
        ("Musk1", "Elephant", "Newsgroups2", "Mutagenesis1", "BrownCreeper", "CorelAfrican"),
        (
            "blrt",
            "blrt n_trees=10",
            "blrt n_trees=100",
            "blrt criterion=gini",
            "blrt n_thresholds=16",
            "blrt variant=absolute",
            "blrt variant=relic",
            "counts_forest",
        ),
        ("auc", "log_loss", "seconds"),
    ),
    "vwsgp": Experiment(
        "VWSGP: 20 random halves (Kandemir et al. 2016, table 3)",
        "The protocol of table 3, average precision and accuracy over 20 random halves. Its images "
        "are not at hand: other sets stand in, so that there are no figures of the paper to meet.",
        ("Musk1 halves", "Elephant halves", "Musk2 halves", "BrownCreeper halves"),
        (
            "vwsgp",
            "vwsgp aggregate=sum variance=1.0 lengthscale=1.0 intercept_sd=0.0 accelerate=False "
            "calibrate=none",
            "gpmil_s",
            "pooled_gp",
            *BASELINES,
        ),
        ("average_precision", "accuracy", "auc", "log_loss", "seconds"),
    ),
    "attention": Experiment(
        "Attention models of torchmil (Ilse et al. 2018, table 1)",
        "Attention pooling, gated attention and a dual stream of the library torchmil, with the "
        "layers of Ilse et al. and one setting of the optimiser for all sets; a fifth of the "
        "training bags is set aside to choose the epoch. The figures of the paper are accuracies, "
        "means of five repetitions.",
        (
            *("Musk1", "Musk2", "Elephant", "CorelAfrican"),
            *("Mutagenesis1", "BrownCreeper", "Newsgroups2", "Protein"),
        ),
        (*ATTENTION, "pooled_gp", "vwsgp", "blrt", "extra_trees"),
        ("auc", "accuracy", "log_loss", "calibration_error", "seconds"),
        {
            name: (
                Printed("attention", "accuracy", attention, "abmil"),
                Printed("gated", "accuracy", gated, "gated_abmil"),
            )
            for name, attention, gated in (
                ("Musk1", 0.892, 0.900),
                ("Musk2", 0.858, 0.863),
                ("Elephant", 0.868, 0.857),
            )
        },
        "Ours have one setting of the optimiser for all sets, and a fifth of the training bags is "
        "spent on choosing the epoch.",
    ),
}


def page(result: dict[str, Any]) -> str:
    """Return the page of the results."""
    lines = [
        "# The papers' experiments",
        "",
        "`python -m benchmarks.mil_papers` runs what the data at hand allow of the classifiers'",
        "papers, beside our defaults and scikit-learn on the mean, the minimum and the maximum of",
        "each bag. It writes this page from `benchmarks/results/mil_papers.json`; do not edit it",
        "by hand. Options after a name are what differs from its defaults. Rows of a table are of",
        "the same repetitions: means with standard errors, where there is more than one, which are",
        "how far a figure would move with other folds of the same bags.",
        "[mil-benchmarks.md](mil-benchmarks.md) defines the scores. The main model's paper:",
        "[vbagg-paper.md](vbagg-paper.md).",
    ]
    for experiment in EXPERIMENTS.values():
        lines += ["", f"## {experiment.title}", "", experiment.about]
        for name in experiment.sets:
            lines += _table(experiment, name, result["scores"].get(name, {}))
        lines += _beside_the_paper(experiment, result["scores"])
    return "\n".join([*lines, ""])


def _table(experiment: Experiment, name: str, rows: dict[str, Any]) -> list[str]:
    """Return the table of a set, and what is missing from it."""
    lines = ["", f"**{name}**", ""]
    found = {model: rows[model] for model in experiment.models if "auc" in rows.get(model, {})}
    found = alike(found)
    if not found:
        return [*lines, "Not run yet."]
    columns = [c for c in experiment.columns if any(c in row for row in found.values())]
    lines.append(f"| | {' | '.join(TITLES[c] for c in columns)} | repetitions |")
    lines.append("|---" * (len(columns) + 2) + "|")
    for model, row in found.items():
        cells = [_cell(row, column) for column in columns]
        lines.append(f"| `{model}` | {' | '.join(cells)} | {row['repetitions']} |")
    missing = [model for model in experiment.models if model not in found]
    if missing:
        said = [f"`{m}` ({rows.get(m, {}).get('error', 'not run')})" for m in missing]
        lines += ["", f"No figures: {', '.join(said)}."]
    return lines


def _beside_the_paper(experiment: Experiment, scores: dict[str, Any]) -> list[str]:
    """Return what the paper prints beside ours, the difference, and the reasons."""
    if not experiment.paper:
        return []
    lines = ["", "| set | | score | paper | ours | difference |", "|---|---|---|---|---|---|"]
    for name, figures in experiment.paper.items():
        own = scores.get(name, {})
        rows = alike({m: own[m] for m in experiment.models if "auc" in own.get(m, {})})
        for each in figures:
            row = rows.get(each.model, {})
            ours, apart = "not run", ""
            if each.column in row:
                ours = f"{_cell(row, each.column)} (`{each.model}`)"
                apart = f"{row[each.column] - each.value:+.3f}"
            score = TITLES[each.column]
            lines.append(
                f"| {name} | {each.words} | {score} | {each.value:.3f} | {ours} | {apart} |"
            )
    return [*lines, "", f"**Why they differ.** {experiment.reasons}"]


def _cell(row: dict[str, Any], column: str) -> str:
    if column not in row:
        return "-"
    if column == "seconds":
        return f"{row[column]:.3g}"
    return f"{row[column]:.3f}{standard_error(row, column)}"


def main() -> None:
    """Measure, write the JSON and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT",
                        help=f"any of {', '.join(EXPERIMENTS)}; default: all")  # fmt: skip
    parser.add_argument("--repetitions", type=int, default=20, metavar="N",
                        help="at most; the sets have 5, random halves 20, digits 1")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS",
                        help="processor time of a fold (default: %(default)s)")  # fmt: skip
    parser.add_argument("--records", type=Path, default=RECORDS, metavar="DIR")
    parser.add_argument("--from-records", action="store_true", help="measure nothing")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    args = parser.parse_args()
    for name in args.experiments:
        if name not in EXPERIMENTS:
            parser.error(f"{name} is not one of {', '.join(EXPERIMENTS)}")
    require_folder()
    if not args.from_records:
        if "attention" in args.experiments and find_spec("torchmil") is None:
            parser.error("attention needs torchmil; run pip install -e '.[peers]'")
        for name in args.experiments or EXPERIMENTS:
            if name == "attention" and find_spec("torchmil") is None:
                continue
            pairs = EXPERIMENTS[name].pairs
            measure(pairs, args.repetitions, args.records, jobs=args.jobs, limit_s=args.limit)
    path = args.results / "mil_papers.json"
    before = json.loads(path.read_text()) if path.is_file() else {}
    pairs = [pair for each in EXPERIMENTS.values() for pair in each.pairs]
    scores = merged(before.get("scores", {}), score_records(pairs, args.records), pairs)
    models = sorted({model for _, model in pairs})
    abouts = {model: find_contestant(model).about for model in models}
    write_results(path, {"models": abouts, "scores": scores})
    text = page(json.loads(path.read_text()))
    print(text)
    if args.results == RESULTS:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
