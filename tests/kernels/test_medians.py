"""The law of templates: each value is the median of its column over rows of one length and direction."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.dtypes import BY_NAME
from gcodec.kernels.predict.medians import TILE
from gcodec.plan.prediction import rows_of, template_of

#: Ends of tiles, and one column more or less; rows of which some, a power of two or one more are sampled.
COLUMNS = (TILE, TILE + 1, 2 * TILE - 1, 3 * TILE + 7)
ROWS = (512, 520, 1031)


@pytest.mark.parametrize("n_rows", ROWS)
@pytest.mark.parametrize("n_columns", COLUMNS)
@pytest.mark.parametrize("strange", [None, 0.0, np.nan, np.inf, 1e-38, 1e38])
def test_a_template_is_the_median_of_rows_of_one_length_and_direction(n_rows, n_columns, strange):
    rng = np.random.default_rng((n_rows, n_columns))
    direction = rng.standard_normal(n_columns) + 2
    sizes = rng.choice([-1, 1], n_rows) * np.exp2(rng.uniform(-20, 20, n_rows))
    rows = sizes[:, None] * direction * (1 + 0.1 * rng.standard_normal((n_rows, n_columns)))
    if strange is not None:  # rows that have no direction
        rows[::3] = strange
    (tensor,) = rows_of([rows.shape])
    bits = rows.astype(np.float32).reshape(-1).view(np.uint32)
    template = template_of(bits, BY_NAME["float32"], tensor)
    n_sampled = min(max(n_rows // 8, 32), 256)
    sampled = rows[: n_rows // n_sampled * n_sampled : n_rows // n_sampled]
    sampled = sampled[np.isfinite(sampled).all(axis=1) & (np.abs(sampled).max(axis=1) > 1e-30)]
    sampled = sampled[np.abs(sampled).max(axis=1) < 1e30]
    of_one_length = sampled / np.linalg.norm(sampled, axis=1, keepdims=True)
    of_one_direction = of_one_length * np.sign(of_one_length @ direction)[:, None]
    expected = np.median(of_one_direction, axis=0)
    assert np.allclose(template * np.sign(template @ direction), expected, rtol=1e-5, atol=1e-6)
