import numpy as np
import pytest
import rasterio
from affine import Affine

from tests.real_data import MADAGASCAR


@pytest.fixture
def write_tif(tmp_path):
    """Return a function that writes a small GeoTIFF."""

    def write(name, values, *, crs="EPSG:4326", bounds=(0.0, 0.0, 10.0, 10.0), **profile):
        values = np.asarray(values)
        path = tmp_path / name
        n_row, n_col = values.shape
        left, bottom, right, top = bounds
        transform = profile.pop(
            "transform", Affine((right - left) / n_col, 0, left, 0, (bottom - top) / n_row, top)
        )
        extra = {key: profile.pop(key) for key in ("scale", "offset", "unit") if key in profile}
        with rasterio.open(
            path, "w", driver="GTiff", height=n_row, width=n_col, count=1,
            dtype=profile.pop("dtype", values.dtype.name), crs=crs, transform=transform, **profile,
        ) as out:  # fmt: skip
            out.write(values, 1)
            if "scale" in extra:
                out.scales, out.offsets = (extra["scale"],), (extra["offset"],)
            if "unit" in extra:
                out.set_band_unit(1, extra["unit"])
        return path

    return write


@pytest.fixture(scope="session")
def madagascar():
    """Return the folder of the real data; skip where there is none."""
    if not MADAGASCAR.is_dir():
        pytest.skip(f"real data not found: no {MADAGASCAR} (set DISAGG_SHARED_DATA)")
    return MADAGASCAR
