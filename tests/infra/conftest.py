"""A store, a country, a database of other packages' tests; overlays with a prefix."""

import functools
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.flows.conftest import _free_port, country
from tests.flows.test_postgres import database
from tests.infra.test_image_files import _tool
from tests.infra.test_kubernetes import KUBERNETES, parsed
from tests.pipeline.conftest import s3

__all__ = ["_free_port", "country", "database", "s3"]


@pytest.fixture(scope="session")
def prefixed(tmp_path_factory):
    """Return a function that builds an overlay with a prefix, as docs/deployment.md recommends."""
    root = tmp_path_factory.mktemp("prefixed")
    shutil.copytree(KUBERNETES, root / "kubernetes")

    @functools.cache
    def build(overlay: str, prefix: str, *components: str) -> list[dict[str, Any]]:
        made = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": "disagg",
            "namePrefix": prefix,
            "resources": [f"../kubernetes/overlays/{overlay}"],
            "components": [f"../kubernetes/components/{name}" for name in components],
        }
        at = root / f"{prefix}{'-'.join((overlay, *components))}"
        at.mkdir()
        (at / "kustomization.yaml").write_text(yaml.safe_dump(made))
        text = subprocess.check_output([_tool("kubectl"), "kustomize", at], text=True)
        return parsed(text)

    return build
