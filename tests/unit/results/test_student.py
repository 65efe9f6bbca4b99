"""Student's t against tables, closed forms and itself."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainstone.results.student import student_t_quantile, student_t_tail


# Student's t: Abramowitz & Stegun 1964, table 26.10, and its exact values for 1 and 2 degrees of freedom.
@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 4, 2.7764),
        (0.975, 5, 2.5706),
        (0.975, 10, 2.2281),
        (0.975, 30, 2.0423),
        (0.975, 120, 1.9799),
        (0.975, 1e7, 1.9600),
        (0.80, 4, 0.9410),
        (0.95, 9, 1.8331),
        (0.995, 1, 63.6567),
        (0.9995, 3, 12.9240),
        (0.025, 3, -3.1824),
        (0.5, 7, 0.0),
    ],
)
def test_student_t_agrees_with_the_table(p, df, expected):
    assert student_t_quantile(p, df) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("p", [0.55, 0.8, 0.975, 0.999, 0.99999])
def test_student_t_agrees_with_closed_forms(p):
    assert student_t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-7)
    assert student_t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-7)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.9, 0.5)])
def test_student_t_refuses_what_it_cannot_do(p, df):
    with pytest.raises(ValueError):
        student_t_quantile(p, df)


# Closed forms: Cauchy for 1 degree of freedom, algebraic for 2; the normal distribution for very many.
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 4.0, 30.0, 1e4, 1e8])
def test_tail_agrees_with_closed_forms(t):
    assert student_t_tail(t, 1) == pytest.approx(math.atan2(1, t) / math.pi, rel=1e-9)
    # (1 - t / sqrt(2 + t^2)) / 2, written without the cancellation
    root = math.sqrt(2 + t * t)
    assert student_t_tail(t, 2) == pytest.approx(1 / (root * (root + t)), rel=1e-9)


@pytest.mark.parametrize("z", [0.0, 0.5, 1.96, 3.0, 6.0, 10.0])
def test_tail_of_many_degrees_of_freedom_is_normal(z):
    assert student_t_tail(z, 1e9) == pytest.approx(math.erfc(z / math.sqrt(2)) / 2, rel=1e-6)


# The same table, with more digits.
@pytest.mark.parametrize(
    ("t", "df", "expected"),
    [(2.228139, 10, 0.025), (2.776445, 4, 0.025), (1.833113, 9, 0.05), (3.182446, 3, 0.025), (12.92398, 3, 0.0005)],
)
def test_tail_agrees_with_the_table(t, df, expected):
    assert student_t_tail(t, df) == pytest.approx(expected, rel=1e-5)


@given(p=st.floats(0.001, 0.5), df=st.floats(1, 500))
def test_tail_undoes_the_quantile(p, df):
    assert student_t_tail(student_t_quantile(1 - p, df), df) == pytest.approx(p, rel=1e-6)
    assert student_t_quantile(p, df) == pytest.approx(-student_t_quantile(1 - p, df), rel=1e-9)


@given(df=st.floats(1, 500), t=st.floats(0, 60), further=st.floats(1e-3, 10))
def test_tail_falls(df, t, further):
    assert student_t_tail(t, df) > student_t_tail(t + further, df) >= 0


@pytest.mark.parametrize(("t", "df"), [(-1.0, 3), (1.0, 0.5), (math.nan, 3)])
def test_tail_refuses_what_it_cannot_do(t, df):
    with pytest.raises(ValueError):
        student_t_tail(t, df)
