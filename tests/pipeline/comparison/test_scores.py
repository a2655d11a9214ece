"""Scores of held-out areas of two runs: beside the paired comparison by area, and refused."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pipeline.comparison.scores import compare_scores, scores_lines
from pipeline.evaluation.verdict import paired_gain

FOLD = np.repeat([0, 1, 2], [3, 2, 4])
LOG_DENSITY = -np.random.default_rng(1).gamma(4.0, 1.0, (2, FOLD.size))


def evaluation(values, fold=FOLD):
    """Return what an evaluation says of the log densities of held-out areas."""
    folds = [values[fold == k] for k in np.unique(fold)]
    rows = [{"n_areas": own.size, "nll": -own.mean()} for own in folds]
    model = {"nll": -values.mean(), "intervals": {"0.9": {"coverage": 0.5}}}
    return {"held_out": {"area": {"model": model, "by_fold": rows}, "block": {"skipped": "few"}}}


def sides(tmp_path, *evaluations):
    found = []
    for name, each in zip("ab", evaluations, strict=True):
        (tmp_path / name).mkdir()
        if each is not None:
            (tmp_path / name / "evaluation.json").write_text(json.dumps(each))
        found.append(SimpleNamespace(directory=tmp_path / name, label=f"run {name}"))
    return found


def observed(other=0.0):
    counts = np.r_[np.nan, np.arange(8.0)]
    return pd.DataFrame({"observed_a": counts, "observed_b": counts + other})


def test_the_gain_is_that_of_areas_paired_by_fold(tmp_path):
    """The second route has the density of each area, which the evaluation does not keep."""
    a, b = LOG_DENSITY
    found = compare_scores(*sides(tmp_path, evaluation(a), evaluation(b)), observed())
    assert list(found) == ["area"]  # what one has skipped is not compared
    by_area = paired_gain(b, a, FOLD)
    assert found["area"]["gain"] == pytest.approx(by_area["gain"])
    assert found["area"]["standard_error"] == pytest.approx(by_area["standard_error"])
    assert found["area"]["nll"] == {"a": pytest.approx(-a.mean()), "b": pytest.approx(-b.mean())}
    assert found["area"]["coverage"] == {"0.9": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("shift", "said"), [(3.0, "B predicts better by 3"), (-3.0, "A predicts better by 3")]
)
def test_the_better_run_is_named(tmp_path, shift, said):
    a = LOG_DENSITY[0]
    shifted = a + shift + 0.1 * LOG_DENSITY[1]
    shifted -= (shifted - a).mean() - shift
    found = compare_scores(*sides(tmp_path, evaluation(a), evaluation(shifted)), observed())
    (line,) = scores_lines(found)
    assert line.startswith(f"Held out by area: {said} +- ")
    assert line.endswith("90 % intervals cover 50 % in A and 50 % in B")


def test_a_run_beside_itself_shows_no_difference(tmp_path):
    own = evaluation(LOG_DENSITY[0])
    (line,) = scores_lines(compare_scores(*sides(tmp_path, own, own), observed()))
    assert "no clear difference, +0 +- 0 nats an area for B" in line


def test_other_folds_have_no_standard_error(tmp_path):
    a, b = LOG_DENSITY
    other = evaluation(b, np.repeat([0, 1, 2], [2, 3, 4]))
    found = compare_scores(*sides(tmp_path, evaluation(a), other), observed())
    assert found["area"]["standard_error"] is None
    assert "nats an area" in scores_lines(found)[0]


@pytest.mark.parametrize(
    ("second", "shift", "why"),
    [
        (None, 0.0, "run b has no evaluation: run `disagg evaluate`"),
        (evaluation(LOG_DENSITY[1]), 1.0, "the observed counts differ"),
        ({"held_out": {}}, 0.0, "no scheme was held out in both"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, second, shift, why):
    found = compare_scores(*sides(tmp_path, evaluation(LOG_DENSITY[0]), second), observed(shift))
    (line,) = scores_lines(found)
    assert line.startswith(f"Held out: not compared, {why}")
