"""The quantiles of every run are those of SciPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betaincinv, ndtr

from servebench.analysis.quantiles import beta_quantile, normal_shares

SHARES = st.floats(0.0005, 0.9995)


@given(st.integers(2, 1_000_000), SHARES, SHARES)
def test_beta(count, share, tail):
    below = share * count
    found = beta_quantile(below + 1, count - below, tail)
    assert found == pytest.approx(float(betaincinv(below + 1, count - below, tail)), rel=1e-9)


def test_normal():
    values = np.linspace(-9.0, 9.0, 1001)
    assert normal_shares(values) == pytest.approx(ndtr(values), rel=1e-12)
