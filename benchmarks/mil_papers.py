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
from benchmarks.mil_runs import LIMIT_S, RECORDS, measure, score_records
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
class Experiment:
    """An experiment of a paper.

    Attributes
    ----------
    title, about : str
    sets, models : tuple of str
        As :mod:`benchmarks.mil_data` and :mod:`benchmarks.mil_contestants` name them.
    columns : tuple of str
        Scores that are shown.
    paper : dict
        From a set to what the paper prints, as text.
    """

    title: str
    about: str
    sets: tuple[str, ...]
    models: tuple[str, ...]
    columns: tuple[str, ...]
    paper: dict[str, str] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All pairs of a set and a contestant."""
        return [(name, model) for name in self.sets for model in self.models]


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
            "Musk1": "AUC .962 (PG) and .967 (G), accuracy .881 and .902",
            "Musk2": "AUC .949 (PG) and .961 (G), accuracy .880 and .897",
            "digits raw": "MNIST: AUC .848 (PG) and .863 (G), of instances .876 and .884",
            "digits pca": "MNIST: AUC .965 (PG) and .966 (G), of instances .970 and .972",
        },
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
            "Musk1": "accuracy .895 (witness) and .885 (soft-max)",
            "Musk2": "accuracy .873 (witness) and .879 (soft-max)",
            "Elephant": "accuracy .838 (witness) and .829 (soft-max)",
        },
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
            "Musk1": "AUC .968 (.016)",
            "Musk2": "AUC .912 (.018)",
            "Elephant": "AUC .958 (.009)",
            "CorelAfrican": "AUC .962 (.002)",
            "Mutagenesis1": "AUC .921 (.013)",
            "BrownCreeper": "AUC .995 (.000)",
            "Newsgroups2": "AUC .630 (.040)",
            "Protein": "AUC .749 (.023)",
        },
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
            "Musk1": "accuracy .892 (attention) and .900 (gated)",
            "Musk2": "accuracy .858 (attention) and .863 (gated)",
            "Elephant": "accuracy .868 (attention) and .857 (gated)",
        },
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
        "by hand. Options after a name are what differs from its defaults.",
        "[mil-benchmarks.md](mil-benchmarks.md) defines the scores.",
    ]
    for experiment in EXPERIMENTS.values():
        lines += ["", f"## {experiment.title}", "", experiment.about]
        for name in experiment.sets:
            lines += _table(experiment, name, result["scores"].get(name, {}))
    return "\n".join([*lines, ""])


def _table(experiment: Experiment, name: str, rows: dict[str, Any]) -> list[str]:
    """Return the table of a set, and what is missing from it."""
    paper = f" (paper: {experiment.paper[name]})" if name in experiment.paper else ""
    lines = ["", f"**{name}**{paper}", ""]
    found = {model: rows[model] for model in experiment.models if "auc" in rows.get(model, {})}
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


def _cell(row: dict[str, Any], column: str) -> str:
    if column not in row:
        return "-"
    if column == "seconds":
        return f"{row[column]:.3g}"
    spread = f" ({row[f'{column}_sd']:.3f})" if f"{column}_sd" in row else ""
    return f"{row[column]:.3f}{spread}"


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
