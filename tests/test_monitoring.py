"""Alerts, scrape configuration and dashboard name metrics and labels that runs really write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pipeline.config.schema import Config
from pipeline.publishing.metrics import OUTCOMES, RunMetrics, record_run

ROOT = Path(__file__).parents[1]
MONITORING = ROOT / "infra" / "monitoring"
#: Of node_exporter's textfile collector.
OTHERS = {"node_textfile_mtime_seconds": {"file"}}
FUNCTIONS = {"time", "increase", "avg_over_time", "sum", "by", "and", "label_values"}


@pytest.fixture
def written(tmp_path: Path) -> dict[str, set[str]]:
    """Write a run's metrics; give the labels of each, by its name."""
    config = Config.model_validate(
        {
            "name": "malaria",
            "areas": {"path": "a.gpkg", "id": "code"},
            "counts": {"path": "c.csv", "value": "cases"},
            "population": {"path": "p.tif"},
            "covariates": {"x": {"path": "x.tif"}},
            "output": {"dir": str(tmp_path / "out")},
            "metrics": {"textfile": str(tmp_path)},
        },
        context={"base": tmp_path},
    )
    run = RunMetrics("published", {"fit": (2.0, False)}, {"coverage": 0.9})
    assert record_run(config, run, 3.0, 7) == []
    text = (tmp_path / "disagg_malaria.prom").read_text()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found | OTHERS


def rules() -> list[dict[str, Any]]:
    data = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    return [rule for group in data["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    board = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    targets = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [*queries, *targets, *(rule["expr"] for rule in rules())]


def named(expression: str) -> tuple[set[str], set[str]]:
    """Return the metrics and the labels that an expression names."""
    bare = re.sub(r'"[^"]*"', "", expression)
    labels = {
        word
        for part in re.findall(r"\{([^}]*)\}|by \(([^)]*)\)", bare)
        for word in re.findall(r"[a-z_]+", " ".join(part))
    }
    outside = re.sub(r"\{[^}]*\}|by \([^)]*\)|\[[^\]]*\]|,[^)]*\)", " ", bare)
    return set(re.findall(r"\b[a-z][a-z_]+\b", outside)) - FUNCTIONS, labels


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_names_what_is_written(expression: str, written: dict[str, set[str]]) -> None:
    metrics, labels = named(expression)
    assert metrics
    assert metrics <= set(written)
    assert labels <= set.union(*(written[name] for name in metrics))
    outcomes = re.findall(r'outcome="(\w+)"', expression)
    assert set(outcomes) <= set(OUTCOMES)


def test_every_metric_is_on_the_dashboard(written: dict[str, set[str]]) -> None:
    shown = set.union(*(named(expression)[0] for expression in expressions()))
    unseen = {name for name in written if not name.endswith("_created")} - shown
    assert unseen == set()


def test_a_wrong_name_is_found(written: dict[str, set[str]]) -> None:
    assert not named("time() - disagg_last_run_timestamp")[0] <= set(written)
    assert named('sum by (map, outcome) (increase(disagg_runs_total{job="x"}[1d]))') == (
        {"disagg_runs_total"},
        {"map", "outcome", "job"},
    )


def test_alerts_say_which_map_and_are_on_the_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for rule in rules():
        assert re.search(r"\{\{ \$labels\.(map|file) \}\}", rule["annotations"]["summary"])
        assert f"`{rule['alert']}`" in page
        for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            assert label in ("map", "file")


def test_what_is_scraped_is_what_the_page_says() -> None:
    data = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    assert [job["job_name"] for job in data["scrape_configs"]] == ["node", "pushgateway"]
    assert data["rule_files"]
