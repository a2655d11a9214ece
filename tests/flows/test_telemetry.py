"""Prefect reports nothing to its makers from a process that imports the flows."""

import os
import subprocess
import sys

import pytest

CODE = """
import flows
from prefect._internal.analytics.enabled import is_telemetry_enabled
from prefect.settings import get_current_settings
print(is_telemetry_enabled(), get_current_settings().server.analytics_enabled)
"""


@pytest.mark.ci
def test_telemetry_is_off_unless_somebody_turns_it_on():
    names = ("DO_NOT_TRACK", "PREFECT_SERVER_ANALYTICS_ENABLED")
    env = {key: value for key, value in os.environ.items() if key not in (*names, "CI")}

    def said(**more):
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            env={**env, **more},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert said() == ["False", "False"]
    assert said(PREFECT_SERVER_ANALYTICS_ENABLED="true")[1] == "True"
