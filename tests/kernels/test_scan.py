"""The scan of stored vectors: the kernels agree with numpy, and with the bound that the search relies on."""

from __future__ import annotations

import numpy as np
import pytest

from edged.kernels import load
from edged.kernels.scan import scanner
from edged.rag import vectors


@pytest.mark.parametrize("dim", [30, 384, 1024])
def test_the_scan_stays_within_its_bound(library: load.Library, dim: int) -> None:
    rng = np.random.default_rng(dim)
    unit = vectors.unit(rng.standard_normal((101, dim)) * rng.exponential(1, (101, dim)))
    codes, error = vectors.encode(unit)
    scan = scanner(library)
    for query in (unit[3], unit[4] * 0, np.eye(1, unit.shape[1], 7, dtype=np.float32)[0]):
        truth = unit.astype(np.float64) @ query.astype(np.float64)
        bound = vectors.margin(query, error)
        assert bound < 0.1
        assert np.abs(scan(query)(codes) - truth).max() <= bound
        assert np.abs(vectors.scan(query)(codes) - truth).max() <= bound
