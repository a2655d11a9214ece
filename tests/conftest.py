"""One BLAS thread for each test process, set before NumPy is imported: more of them only spin."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
