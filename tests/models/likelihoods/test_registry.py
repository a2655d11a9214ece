"""A likelihood, a kernel and a model that code outside the packages defines and registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

import models
from models import Bags, VBAgg
from models.core.errors import BagsError, ParameterError
from models.gp import kernel_text
from models.gp.kernel_text import parse_kernel, register_shape, unregister_factor
from models.gp.shapes import Shape
from models.likelihoods import registry
from models.likelihoods.area_effect import AreaEffect
from models.likelihoods.likelihood import Likelihood, Parameter, Terms
from models.likelihoods.poisson import Poisson
from models.training.parameters import Range
from pipeline.cli.main import main
from pipeline.config.catalogue import catalogue
from pipeline.config.model_factory import new_model
from pipeline.config.schema import Config
from tests.plain import plain


class Geometric(Likelihood):
    """Counts of mean ``eta``: ``p(y) = q (1 - q)^y`` with ``q = 1 / (1 + eta)``."""

    name = "geometric"
    about = "counts as wide as their mean"
    links = ("exp", "square")

    def terms(self, y: Any, eta: Any, params: Any, bag_data: Any, order: int = 1) -> Terms:
        value = y * np.log(eta) - (y + 1.0) * np.log1p(eta)
        d1 = y / eta - (y + 1.0) / (1.0 + eta)
        if order == 1:
            return Terms(value, d1)
        d2 = -y / eta**2 + (y + 1.0) / (1.0 + eta) ** 2
        return Terms(value, d1, d2, 2.0 * y / eta**3 - 2.0 * (y + 1.0) / (1.0 + eta) ** 3)

    def draw(self, eta: Any, params: Any, bag_data: Any, rng: Any) -> Any:
        return rng.geometric(1.0 / (1.0 + eta)) - 1.0


class RationalQuadratic(Shape):
    """``1 / (1 + d^2 / 2)``: a scale mixture of Gaussian kernels."""

    name = "rational"
    scale = 0.5
    slope = -0.5

    def on_host(self, xp: Any, d2: Any, log_variance: Any, allocate: Any) -> tuple[Any, Any]:
        inverse = 1.0 / (1.0 + xp.maximum(d2, 0.0))
        value = d2.dtype.type(np.exp(log_variance)) * inverse
        return value, value * inverse

    def frequencies(self, normal: Any, rng: Any) -> Any:
        return normal * np.sqrt(rng.gamma(1.0, 1.0, normal.shape[1]))


@dataclass(kw_only=True, eq=False, repr=False)
class Stubborn(VBAgg):
    """VBAgg that learns slowly."""

    kind = "stubborn"
    about = "VBAgg that learns slowly"
    source = "this test"

    slowness: Annotated[float, Range(1)] = 2.0

    def loop_params(self, which: str) -> dict[str, Any]:
        rate = self.learning_rate / self.slowness
        return {**super().loop_params(which), "learning_rate": rate}


@pytest.fixture
def outside():
    registry.register(Geometric())
    register_shape(RationalQuadratic())
    models.register(Stubborn)
    yield
    registry.unregister("geometric")
    unregister_factor("rational")
    models.unregister(Stubborn)
    assert "geometric" not in registry.LIKELIHOODS
    assert "rational" not in kernel_text.FACTORS
    assert Stubborn not in models.CLASSES.values()


@pytest.fixture
def bags():
    rng = np.random.default_rng(0)
    offsets = np.arange(0, 161, 4)
    x, weight = rng.normal(size=(160, 2)), rng.uniform(1, 3, 160)
    mean = np.add.reduceat(weight * np.exp(0.5 * x[:, 0] + 1), offsets[:-1])
    y = rng.geometric(1 / (1 + mean)) - 1.0
    return Bags(x, offsets, y, weight, rng.uniform(0, 9, (160, 2)))


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("estimator", "area_effect"), [("auto", True), ("second_order", False), ("monte_carlo", False)]
)
def test_all_three_fit_predict_and_survive_a_save(estimator, area_effect, bags, tmp_path):
    model = Stubborn(
        likelihood="geometric",
        kernel="ard + rational(space)",
        estimator=estimator,
        area_effect=area_effect,
        n_inducing=8,
        n_paths=4,
        n_features=32,
        max_epochs=4,
        slowness=3.0,
    ).fit(bags, n_thread=1)
    assert model.bound_ > model.history_[0]["bound"]
    assert "rational_space.lengthscale" in model.named_hyperparameters()
    model.save(tmp_path / "model")
    again = models.load(tmp_path / "model")
    assert type(again) is Stubborn
    assert again.get_params() == model.get_params()
    assert list(model.get_params())[-1] == "slowness"
    mean, sd = (getattr(again.predict_pixels(bags.x, bags.coords), name) for name in ("mean", "sd"))
    np.testing.assert_array_equal(mean, model.predict_pixels(bags.x, bags.coords).mean)
    assert (sd > 0).all()
    drawn = again.predict_bags(bags, n_draws=30)
    assert np.isfinite(drawn.log_density(bags.y)).all()
    assert (drawn.observed(np.random.default_rng(0)).draws >= 0).all()


@pytest.mark.usefixtures("outside")
def test_the_likelihood_is_scipys_and_the_kernel_its_own_features():
    y, eta = np.array([0.0, 3.0]), np.array([0.7, 4.0])
    found = registry.find_likelihood("geometric").terms(y, eta, {}, 1.0).value
    np.testing.assert_allclose(found, stats.geom(1 / (1 + eta), loc=-1).logpmf(y))
    kernel = parse_kernel("rational", 2, has_coords=False)
    theta, z = kernel.start(1.3), np.random.default_rng(0).normal(size=(5, 2))
    phi = kernel.features(theta, 60_000, np.random.default_rng(1))(z)
    np.testing.assert_allclose(phi @ phi.T, kernel.matrix(theta, z, z), atol=0.02)
    step = 1e-6 * np.eye(2)
    adjoint = np.random.default_rng(2).normal(size=(5, 5))
    _, cache = kernel.forward(theta, z, z)
    by_theta, _ = kernel.backward(theta, z, z, cache, adjoint, want_w=True)
    for k in range(2):
        ends = [(adjoint * kernel.matrix(theta + s * step[k], z, z)).sum() for s in (1, -1)]
        assert by_theta[k] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def _config(tmp_path, **model):
    return Config.model_validate(
        {
            "name": "outside",
            "areas": {"path": "areas.gpkg", "id": "code"},
            "counts": {"path": "cases.csv", "value": "cases"},
            "covariates": {"wave": {"path": "wave.tif"}},
            "grid": {"like": "wave.tif"},
            "model": model,
        },
        context={"base": tmp_path},
    )


CHOSEN = {"kind": "stubborn", "likelihood": "geometric", "kernel": "rational(space)"}


@pytest.mark.usefixtures("outside")
def test_a_configuration_names_all_three(tmp_path, capsys):
    model = new_model(_config(tmp_path, **CHOSEN, options={"slowness": 4.0}))
    assert type(model) is Stubborn
    assert (model.likelihood, model.kernel, model.slowness) == (*list(CHOSEN.values())[1:], 4.0)
    assert str(model.resolved_likelihood) == CHOSEN["likelihood"]  # no effect of areas by default
    assert "stubborn" in [each.kind for each in catalogue()]
    assert main(["models", "--json"]) == 0
    assert "VBAgg that learns slowly" in capsys.readouterr().out
    with pytest.raises(ValidationError, match=r"slowness: 0\.5 is not a number of at least 1"):
        _config(tmp_path, **CHOSEN, options={"slowness": 0.5})


def test_without_registration_none_of_them_is_known(tmp_path):
    for key, name in CHOSEN.items():
        with pytest.raises(ValidationError, match=name.partition("(")[0]):
            _config(tmp_path, **{key: name})


@pytest.mark.usefixtures("outside")
def test_names_are_given_once_and_links_must_exist():
    class Other(Geometric):
        pass

    class Unlinked(Geometric):
        name = "unlinked"
        links = ("cubic",)

    class VBAgg(models.VBAgg):
        pass

    with pytest.raises(ParameterError, match="registered already"):
        registry.register(Other())
    with pytest.raises(ParameterError, match="cubic"):
        registry.register(Unlinked())
    with pytest.raises(ParameterError, match="has its name"):
        models.register(VBAgg)
    with pytest.raises(ParameterError, match="is registered"):
        register_shape(RationalQuadratic())


def test_impossible_responses_are_told_by_bag(bags):
    y = bags.y.copy()
    y[7] = -2.0
    wrong = Bags(bags.x, bags.offsets, y, bags.weight, bags.coords)
    with pytest.raises(BagsError, match="bag 7 is -2, and a response of the poisson"):
        plain(VBAgg, n_inducing=4).fit(wrong)
    own = AreaEffect(Poisson()).parameters["log_area_sd"]
    assert own == Parameter(np.log(0.3), 1.0, tells=own.tells)
