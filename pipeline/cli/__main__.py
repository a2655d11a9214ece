"""`python -m pipeline.cli` is the command `disagg`."""

from __future__ import annotations

import sys

from pipeline.cli.main import main

sys.exit(main())
