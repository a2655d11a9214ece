"""Prefect flows: they call the stage functions of ``pipeline`` and do no work themselves.

May import pipeline and geo.
"""

import os

from flows.login import use_stored_login

# Nothing is reported to the makers of dependencies, unless an operator sets it otherwise. Prefect
# reads these when it is imported; its server and workers inherit them.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
use_stored_login()
