"""The grammar of a kernel's description: precedence, brackets, columns, and the kernels made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import VBAgg
from models.core.errors import ParameterError
from models.gp.kernel_grammar import Factor, Node, Product, Sum, parse
from models.gp.kernel_sums import Product as ProductKernel
from models.gp.kernel_sums import Sum as SumKernel
from models.gp.kernel_text import check_drawable, parse_kernel
from models.gp.kernels import Linear, Radial

_WORDS = st.sampled_from(["ard", "x", "space", "matern32", "season_2", "12"])


def _nested(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    parts = st.lists(nodes, min_size=2, max_size=3).map(tuple)
    called = st.builds(Factor, _WORDS, st.lists(nodes, min_size=1, max_size=2).map(tuple))
    return st.one_of(called, parts.map(Sum), parts.map(Product))


@given(st.recursive(st.builds(Factor, _WORDS), _nested, max_leaves=8))
def test_a_tree_is_read_from_its_own_text(tree):
    assert parse(str(tree), {}) == tree


def test_a_bracketed_sum_is_multiplied_by_a_factor_with_arguments():
    found = parse("(linear + ard + matern32(space)) * time(constant + matern32 + season)", {})
    place = Factor("matern32", (Factor("space"),))
    time = Factor("time", (Sum((Factor("constant"), Factor("matern32"), Factor("season"))),))
    assert found == Product((Sum((Factor("linear"), Factor("ard"), place)), time))
    assert found.parts[1].column == 36
    with pytest.raises(ParameterError, match="'time' is not known at column 36"):
        parse_kernel(
            "(linear + ard + matern32(space)) * time(constant + matern32)", 2, has_coords=1
        )


def test_products_bind_tighter_and_brackets_first():
    rbf = Radial("rbf", (0, 3), ard=False, label="rbf_x")
    ard = Radial("rbf", (0, 3), ard=True, label="ard_x")
    line, more = Linear((0, 3), "linear_x"), Linear((0, 3), "linear_x_2")
    for text, kernel in (
        ("rbf + ard * linear", SumKernel(rbf, ProductKernel(ard, line))),
        ("(rbf + ard) * linear", ProductKernel(SumKernel(rbf, ard), line)),
        (" rbf ( x )+( ard+linear )", SumKernel(rbf, SumKernel(ard, line))),
        ("linear + rbf + linear", SumKernel(SumKernel(line, rbf), more)),
    ):
        assert parse_kernel(text, 3, has_coords=True) == kernel


def test_names_stand_for_their_text_without_brackets():
    assert parse_kernel("additive * rbf", 2, has_coords=True) == parse_kernel(
        "ard(x) + matern32(space) * rbf", 2, has_coords=True
    )
    assert parse_kernel("(additive) * rbf", 2, has_coords=True) == parse_kernel(
        "(ard(x) + matern32(space)) * rbf", 2, has_coords=True
    )


def test_a_product_of_a_sum_has_the_products_of_its_matrices():
    rng = np.random.default_rng(0)
    z, w = rng.standard_normal((5, 4)), rng.standard_normal((3, 4))
    kernel = parse_kernel("(linear + ard) * matern32(space)", 2, has_coords=True)
    theta = rng.standard_normal(kernel.n_theta)
    inner, outer = kernel.left, kernel.right
    expected = inner.matrix(theta[:5], z, w) * outer.matrix(theta[5:], z, w)
    np.testing.assert_allclose(kernel.matrix(theta, z, w), expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ard + rbff(x)", "'rbff' is not known at column 7 of 'ard + -->rbff(x)'; join ard, "),
        ("rbf +", "a kernel is missing at column 6 of 'rbf +-->'"),
        ("", "a kernel is missing at column 1"),
        ("rbf(time)", "'time' is not known at column 5 of 'rbf(-->time)'; use rbf(x) or"),
        ("rbf(x, space)", "'x, space' is not known at column 5"),
        ("(rbf + ard", "the bracket is not closed at column 1"),
        ("rbf(x", "the bracket is not closed at column 4"),
        ("rbf + ard)", "')' is out of place at column 10"),
        ("rbf ard", "'ard' is out of place at column 5"),
        ("rbf * + ard", "'+' is not a kernel at column 7"),
        ("rbf + Ard", "'A' is not a kernel at column 7"),
        ("rbf + additive(x)", "'(' is out of place at column 15"),
        ("(" * 3000 + "rbf" + ")" * 3000, "more than 20 brackets"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_marked_in_one_line(text, says):
    with pytest.raises(ParameterError) as error:
        parse_kernel(text, 3, has_coords=True)
    assert str(error.value).startswith("kernel: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["rbf + (linear + ard) * rbf", "ard + constant * (linear * rbf)"])
def test_what_has_no_draws_yet_is_marked(text):
    with pytest.raises(ParameterError, match=r"joint draws .* at column .*; write the product out"):
        check_drawable(text)
    with pytest.raises(ParameterError, match="joint draws"):
        VBAgg(kernel=text).check_params()
    check_drawable("rbf + (ard * matern32(space)) * constant")
