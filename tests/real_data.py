"""Where the real data are, and the mark of tests that need those of Madagascar."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("DISAGG_SHARED_DATA", ROOT.parent / "shared" / "data"))
MADAGASCAR = SHARED / "madagascar"

real = pytest.mark.skipif(
    not MADAGASCAR.is_dir(),
    reason=f"real data not found: {MADAGASCAR} (set DISAGG_SHARED_DATA)",
)
