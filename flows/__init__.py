"""Prefect flows: they call the stage functions of ``pipeline`` and do no work themselves.

May import pipeline and geo.
"""

import os
import sys
from importlib.util import find_spec

from flows.login import use_stored_login

if sys.argv[0] == "-m" and find_spec("prefect") is None:  # while Python looks for the module
    sys.exit("error: flows need Prefect, which is not installed; run pip install -e '.[flows]'")

# Nothing is reported to the makers of dependencies, unless an operator sets it otherwise. Prefect
# reads these when it is imported; its server and workers inherit them.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
use_stored_login()
