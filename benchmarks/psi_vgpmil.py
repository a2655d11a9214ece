"""psi-VGPMIL: why figures of Musk1 differ from the printed ones, and the constant of its prior.

    python -m benchmarks.psi_vgpmil [reasons prior] [--results DIR]

``reasons`` takes single steps from the printed settings of the paper (Castro-Macias et al. 2024) to
others, in and out of the sample, and follows G-VGPMIL sweep by sweep. ``prior`` is the Monte Carlo
estimate of ``log Z`` (20). ``python -m benchmarks.mil_papers psi`` has the experiments of section
6. Writes ``psi_vgpmil.json`` and keeps the parts that are not run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from benchmarks.mil_data import load_set
from benchmarks.report import RESULTS, read_results, write_results
from models import PsiVGPMIL
from models.backend.blas import one_blas_thread
from models.core.block import BagBlock
from models.gp.kernel_text import parse_kernel
from models.mil.variational.psi_prior import PriorDraws, log_z
from models.mil.variational.sigmoid_densities import Gamma
from models.training.executor import BagsSource, ThreadExecutor
from models.training.loop import start_training, train

Settings = dict[str, Any]
PRINTED: Settings = {
    "variance": 0.5,
    "intercept_sd": 0.0,
    "log_h": float(np.log(100.0)),
    "saturation": 1e9,
    "tolerance": 1e-6,
    "n_draws": 100,
}
RULES = ("any", "largest")
ALPHA, BETA = (0.5, 1.0), (1.0, 2.5, 4.0)
N_FOLD = 5  # folds of the single steps


def gammas(base: Settings) -> list[Settings]:
    """Return the settings with each of the paper's parameters of the gamma density."""
    return [{**base, "density": "gamma", "alpha": a, "beta": b} for a, b in product(ALPHA, BETA)]


class Fit:
    """A fit that can be scored after every sweep."""

    def __init__(self, settings: Settings, bags: BagBlock, seed: int) -> None:
        self.model = PsiVGPMIL(**settings, seed=seed)
        self._source = BagsSource(bags, seed)
        self._training = start_training(self.model, self._source, **self.model.loop_params("start"))

    def sweep(self) -> bool:
        """Make one sweep; return whether another follows."""
        with ThreadExecutor(self.model, self._source, 1) as executor:
            how = self.model.loop_params("train")
            how["max_epochs"] = self._training.epoch + 1
            train(self.model, self._source, executor, self._training, **how)
        self.model.adopt(self._training)
        return not self._training.converged

    def probabilities(self, bags: BagBlock, rule: str) -> np.ndarray:
        """Return the mean probability of each bag by a rule: (n_bag,)."""
        self.model.bag_rule = rule
        return self.model.predict_bags(bags).mean


def folds(bags: BagBlock, n_fold: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield masks of training and test bags, stratified."""
    cut = StratifiedKFold(n_fold, shuffle=True, random_state=seed)
    for _, test in cut.split(np.zeros(bags.n_bag), bags.y):
        mask = np.zeros(bags.n_bag, bool)
        mask[test] = True
        yield ~mask, mask


def averaged(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return mean and standard deviation over folds."""
    return {
        name: [
            round(float(np.mean([row[name] for row in rows])), 4),
            round(float(np.std([row[name] for row in rows])), 4),
        ]
        for name in rows[0]
    }


def fitted(settings: Settings, sweeps: int, bags: BagBlock, seed: int) -> Fit:
    """Fit for a number of sweeps, or fewer if it converges."""
    fit = Fit(settings, bags, seed)
    for _ in range(sweeps):
        if not fit.sweep():
            break
    return fit


def reasons() -> dict[str, Any]:
    """Change one thing at a time on Musk1: AUC in and out of the sample, 2 x 5 folds."""
    bags, _ = load_set("Musk1")
    base = {**PRINTED, "n_inducing": 200}
    steps: dict[str, tuple[Settings, int]] = {
        "printed, to convergence": ({}, 60),
        "H = 1e12": ({"log_h": float(np.log(1e12))}, 60),
        "3 sweeps": ({}, 3),
        "variance 5": ({"variance": 5.0}, 60),
        "intercept": ({"intercept_sd": 3.0}, 60),
        "variance 5, intercept": ({"variance": 5.0, "intercept_sd": 3.0}, 60),
        "length-scale 1/2": ({"lengthscale": 0.5}, 60),
        "all three": ({"variance": 5.0, "intercept_sd": 3.0, "lengthscale": 0.5}, 60),
        "all three, H = 1e12": (
            {
                "variance": 5.0,
                "intercept_sd": 3.0,
                "lengthscale": 0.5,
                "log_h": float(np.log(1e12)),
            },
            60,
        ),
        "kernel learnt, intercept": ({"intercept_sd": 3.0, "learn_kernel": True}, 150),
    }
    table: dict[str, Any] = {}
    for name, (change, sweeps) in steps.items():
        rows = []
        for repeat in range(2):
            for keep, test in folds(bags, N_FOLD, repeat):
                training, fresh = bags.select(keep), bags.select(test)
                fit = fitted({**base, **change}, sweeps, training, repeat)
                rows.append(
                    {
                        f"{where}, {rule}": float(
                            roc_auc_score(part.y, fit.probabilities(part, rule))
                        )
                        for where, part in (("held out", fresh), ("in sample", training))
                        for rule in RULES
                    }
                )
        table[name] = averaged(rows)
        print(name, {k: v[0] for k, v in table[name].items()}, flush=True)
    return {"single steps": table, "bag size": size_effect(bags), "gamma": follow_sweeps(bags)}


def size_effect(bags: BagBlock) -> dict[str, float]:
    """Correlate the probability of negative held-out bags with the logarithm of their size."""
    settings = {**PRINTED, "n_inducing": 200, "variance": 5.0, "intercept_sd": 3.0}
    p: dict[str, list[float]] = {rule: [] for rule in RULES}
    size: list[float] = []
    for keep, test in folds(bags, N_FOLD, 0):
        fit, fresh = fitted(settings, 60, bags.select(keep), 0), bags.select(test)
        none = fresh.y == 0
        size += np.log(np.diff(fresh.offsets))[none].tolist()
        for rule in RULES:
            p[rule] += fit.probabilities(fresh, rule)[none].tolist()
    return {rule: round(float(np.corrcoef(p[rule], size)[0, 1]), 3) for rule in RULES}


def follow_sweeps(bags: BagBlock) -> dict[str, Any]:
    """Follow PG and G sweep by sweep at the paper's settings: how large f grows, and its effect.

    Means over 5 folds of Musk1: the root mean square of the means of f, held-out AUC by both rules.
    """
    rows: dict[str, Any] = {}
    variants: dict[str, Settings] = {"PG": {}}
    variants |= {f"G {each['alpha']} {each['beta']}": each for each in gammas({})}
    looks = (1, 2, 3, 5, 8, 12, 20, 40)
    for name, variant in variants.items():
        seen: dict[int, list[list[float]]] = {sweep: [] for sweep in looks}
        for keep, test in folds(bags, N_FOLD, 0):
            training, fresh = bags.select(keep), bags.select(test)
            settings = {**PRINTED, "n_inducing": 200, "tolerance": 1e-300, **variant}
            fit, going = Fit(settings, training, 0), True
            for sweep in range(1, looks[-1] + 1):
                going = going and fit.sweep()
                if sweep in looks:
                    size = np.sqrt((fit.model.predict_pixels(training.x).m ** 2).mean())
                    auc = [roc_auc_score(fresh.y, fit.probabilities(fresh, r)) for r in RULES]
                    seen[sweep].append([float(size), *auc])
        held = "alpha" not in variant or variant["alpha"] > np.sqrt(variant["beta"] / 2)
        table = [
            [sweep, *np.round(np.mean(row, axis=0), 3).tolist()] for sweep, row in seen.items()
        ]
        rows[name] = {"held near 0": bool(held), "sweep, rms f, auc any, auc largest": table}
        print(name, held, table, flush=True)
    return rows


def prior_constant() -> dict[str, Any]:
    """Estimate log Z (eq. 20) of the gamma density, and bound it from below.

    Uniform settings: 2 features, variance 1/2, length-scale root 2. The bound is that of a Gaussian
    with the prior's covariance and a mean ``K a 1``, the best of some ``a``: Jensen's inequality.
    """
    kernel, density = parse_kernel("rbf", 2, has_coords=False), Gamma(1.0, 4.0)
    theta, rng = np.log([0.5, np.sqrt(2.0)]), np.random.default_rng(0)
    nodes, weight = np.polynomial.hermite_e.hermegauss(40)
    weight = weight / weight.sum()
    found: dict[str, Any] = {}
    for n in (10, 50, 200, 800):
        z = rng.normal(size=(n, 2))
        k = kernel.matrix(theta, z, z)
        sd = np.sqrt(np.diag(k))[:, None]
        below = []
        for a in np.linspace(0.0, 0.5, 51):
            mean = a * k.sum(axis=1)
            tilt = density.tilt(mean[:, None] + sd * nodes) @ weight
            below.append(float(tilt.sum() - 0.5 * a * mean.sum()))
        drawn = {
            str(draws): log_z(PriorDraws(kernel, theta, 0.0, draws, 1).totals(z, density))
            for draws in (64, 20_000)
        }
        found[str(n)] = {"by draws": drawn, "at least": max(below)}
        print(n, found[str(n)], flush=True)
    return found


def main() -> None:
    """Run the requested parts and write the JSON."""
    parts = {"reasons": reasons, "prior": prior_constant}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(parts)}; default: all")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = options.results / "psi_vgpmil.json"
    result = read_results(path)
    for name in options.parts or parts:
        if name not in parts:
            parser.error(f"{name} is not one of {', '.join(parts)}")
        print(f"-- {name}")
        with one_blas_thread():
            result[name] = parts[name]()
        write_results(path, result)


if __name__ == "__main__":
    main()
