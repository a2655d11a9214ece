"""Sections ``model`` and ``fit`` of the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from pipeline.config.base import Section, config_error, config_errors
from pipeline.config.catalogue import (
    CONSTRUCTOR_NAMES,
    constructor_names,
    learns_from,
    model_class,
    unknown_option,
    unusable_options,
)
from pipeline.config.suggestions import suggest_value
from pipeline.config.values import AtLeast1, AtLeast2, Number, Seed, Whole, whole_or

if TYPE_CHECKING:
    from models.likelihoods.likelihood import Likelihood

# Defaults here are those of the models' classes; tests/pipeline/config/test_two_doors.py holds them
# to that. Read from the classes they would take 1.5 s of each start of the command line.


def _kernel(value: str) -> str:
    if value == "auto":
        return value
    from models.core.errors import ParameterError
    from models.gp.kernel_text import parse_kernel
    from models.temporal.time_text import parse_space_time

    try:
        # The number of covariates does not affect the syntax.
        parts = parse_space_time(value)
        if parts.times or parts.has_area:
            for term in parts.terms:
                parse_kernel(term, 1, has_coords=True, n_area=1)
        else:
            parse_kernel(value, 1, has_coords=True)
    except ParameterError as error:
        found, _, remedy = str(error).removeprefix("kernel: ").partition("; ")
        raise config_error(found=found, remedy=remedy) from None
    return value


def _chosen(value: str, choices: Iterable[str]) -> str:
    choices = tuple(choices)
    if value not in choices:
        raise config_error(found=f"{value!r} is not a choice", remedy=suggest_value(value, choices))
    return value


def _likelihood(value: str) -> str:
    from models.likelihoods.registry import LIKELIHOODS

    return _chosen(value, LIKELIHOODS)


def _link(value: str) -> str:
    from models.likelihoods.links import LINKS

    return _chosen(value, ("auto", *LINKS))


def _kind(value: str) -> str:
    from models.training.registry import kinds

    return _chosen(value, kinds())


class ModelSpec(Section):
    """``model``: kind and structure of the model."""

    kind: Annotated[str, AfterValidator(_kind)] = Field(
        "vbagg",
        examples=["nystrom"],
        description="the model: vbagg and its baselines learn from counts, others from labels; "
        "`disagg models` lists them",
    )
    likelihood: Annotated[str, AfterValidator(_likelihood)] = Field(
        "poisson",
        examples=["negative_binomial"],
        description="distribution of the responses around their mean: poisson or negative_binomial "
        "counts, beta_binomial or binomial positives of tested, normal, exponential "
        "or gamma values",
    )
    link: Annotated[str, AfterValidator(_link)] = Field(
        "auto",
        examples=["exp"],
        description="from the latent field to a rate; auto: the likelihood's default",
    )
    estimator: Literal["auto", "bound", "second_order", "log_normal", "monte_carlo"] = Field(
        "auto",
        description="of the expected log likelihood; 'bound': Law et al. 2018",
    )
    area_effect: bool | Literal["auto"] = Field(
        "auto",
        examples=[False],
        description="random effect of each area, for what areas of equal covariates differ by: a "
        "log-normal factor, or noise between areas (normal); auto: with the poisson, normal and "
        "exponential likelihoods, unless the estimator is the bound",
    )
    inducing: Annotated[AtLeast1 | Literal["auto"], whole_or("auto", least=1)] = Field(
        "auto",
        examples=[400],
        description="number of inducing points; auto of vbagg: the averages of up to 400 areas, "
        "else 400 points; of others: 200",
    )
    kernel: Annotated[str, AfterValidator(_kernel)] = Field(
        "auto",
        examples=["ridge + matern32(space)"],
        description="covariance: 'smooth_joint', 'smooth_additive', 'flexible', 'additive', 'ard', "
        "or a sum such as 'ridge + matern32(space)'; auto is smooth_joint for vbagg (linear and "
        "smooth effects of each covariate, one of all together, and space; smooth_additive leaves "
        "out that of all together), additive for other models of counts, the model's own choice "
        "for labels",
    )
    integrate: Annotated[AtLeast2 | Literal["auto", "none"], whole_or("auto", "none", least=2)] = (
        Field(
            "auto",
            examples=[10],
            description="draws of the hyperparameters that maps and areas are averaged over (even);"
            " none: their optimum alone; auto: 10",
        )
    )
    priors: Literal["weak", "none"] = Field(
        "weak", description="priors of the kernel's and the likelihood's parameters"
    )
    learn_inducing: bool = Field(
        False,
        description="optimise the positions of the inducing points, where fits take mini-batches",
    )
    pair_pixels: Annotated[AtLeast2 | Literal["auto"], whole_or("auto", least=2)] = Field(
        "auto",
        json_schema_extra={"unit": "pixels"},
        examples=[64],
        description="pixels of an area in pairwise sums; larger areas are sampled; auto: 64",
    )
    precision: Literal["auto", "float64", "float32"] = Field(
        "auto",
        description="precision of the pixel matrices; sums are always float64; auto follows the "
        "size: float64, or float32",
    )
    tune: bool = Field(
        False,
        description="choose among a few settings of a model of labels by held-out areas, in inner "
        "folds; `disagg models` lists them",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        examples=[{"n_trees": 200}],
        description="further arguments of the model in Python, such as {n_trees: 200}",
    )

    @property
    def responses(self) -> Literal["counts", "labels"]:
        """Section of the configuration with the responses that the model needs."""
        return learns_from(self.kind)

    @property
    def has_spread(self) -> bool:
        """Whether the model has an uncertainty."""
        return model_class(self.kind).has_spread

    @property
    def has_area_effect(self) -> bool:
        """``area_effect``, with ``auto`` resolved."""
        if self.area_effect == "auto":
            return self.response.area_effect_by_default and self.estimator != "bound"
        return self.area_effect

    @property
    def response(self) -> Likelihood:
        """The likelihood of an area's response."""
        from models.likelihoods.registry import LIKELIHOODS

        return LIKELIHOODS[self.likelihood]

    @model_validator(mode="after")
    def _fits_together(self) -> ModelSpec:
        wrong = invalid_settings(self)
        links = self.response.links
        if self.link not in ("auto", *links):
            found = f"link {self.link!r} does not go with the {self.likelihood} likelihood"
            wrong.append(("link", found, f"give link: {' or '.join(links)}"))
        if learns_from(self.kind) == "counts":
            wrong += _refused(self, {name for name, *_ in wrong})
        if wrong:
            raise config_errors([(_own_key(key), found, remedy) for key, found, remedy in wrong])
        return self


AreaPixels = Annotated[AtLeast1 | Literal["all", "auto"], whole_or("auto", "all", least=1)]
"""Pixels of an area, ``all`` of them, or ``auto``."""

UNSIZED: Mapping[str, Any] = {
    "inducing": 200,
    "pair_pixels": 64,
    "precision": "float64",
}
"""What ``auto`` stands for in ``model`` where the size asks for nothing else."""


def _own_key(name: str) -> str:
    """Return the key of a constructor's argument."""
    by_argument = {argument: key for key, argument in CONSTRUCTOR_NAMES.items()}
    return by_argument.get(name, name)


def _refused(spec: ModelSpec, reported: set[str]) -> list[tuple[str, str, str]]:
    """Return key, finding and remedy of each setting that the model itself refuses.

    A model reports the first only: that one gets its default, and the model is asked again.
    """
    from models.core.errors import ParameterError

    chosen = {
        "likelihood": spec.likelihood,
        "link": spec.link,
        "estimator": spec.estimator,
        "area_effect": spec.area_effect,
    }
    if spec.kernel != "auto":
        chosen["kernel"] = spec.kernel
    known = constructor_names(spec.kind)
    taken = {name: value for name, value in chosen.items() if name in known}
    taken |= {name: value for name, value in spec.options.items() if name in known}
    for name in reported:
        taken.pop(name.removeprefix("options."), None)
    wrong: list[tuple[str, str, str]] = []
    while True:
        try:
            model_class(spec.kind)(**taken).check_params()
        except ParameterError as error:
            found, _, remedy = str(error).partition("; ")
            name, colon, rest = found.partition(": ")
            if not colon or name not in taken:
                # Of several settings at once: what was reported may be the cause.
                if not (wrong or reported):
                    wrong.append(("", found, remedy or "correct it"))
                return wrong
            key = f"options.{name}" if name in spec.options else name
            wrong.append((key, rest, remedy or "correct it"))
            del taken[name]
        else:
            return wrong


class Fit(Section):
    """``fit``: how the model is trained."""

    batch_areas: Annotated[Whole, Field(ge=1)] = Field(
        32, json_schema_extra={"unit": "areas"}, description="areas in a mini-batch"
    )
    max_epochs: Annotated[Whole, Field(ge=1)] = Field(
        300,
        description="maximum number of steps (vbagg), or of passes over all areas; as long as this "
        "default is not changed, classifiers keep their own: 100 (psi_vgpmil, vwsgp), 200 "
        "(pooled_gp), 50 (gpmil)",
    )
    nats_left: Annotated[Number, Field(gt=0)] = Field(
        0.05,
        json_schema_extra={"unit": "nats"},
        description="most that the bound of all areas may be below its optimum, nats, for a fit "
        "of vbagg to have converged",
    )
    learning_rate: Annotated[Number, Field(gt=0, le=1)] = Field(
        0.05, description="Adam's step, in fits by mini-batches"
    )
    tolerance: Annotated[Number, Field(gt=0)] = Field(
        0.01,
        json_schema_extra={"unit": "nats per area and epoch"},
        description="rise of the bound, nats an area and epoch, below which a fit by mini-batches "
        "stops",
    )
    seed: Seed = Field(0, description="seed of the fit")
    area_pixels: AreaPixels = Field(
        "auto",
        json_schema_extra={"unit": "pixels"},
        examples=[1000],
        description="pixels that represent an area in the fit, one from each of as many parts of "
        "equal population; areas with fewer keep all; all: no area is thinned; auto follows the "
        "size",
    )


WARM_KINDS = ("vbagg", "space_time")
"""Models whose fits can begin at another's kernel, and whose draws can be weighed."""

MODEL_KEYS = tuple(name for name in ModelSpec.model_fields if name not in ("kind", "options"))
FIT_KEYS = tuple(Fit.model_fields)


def invalid_settings(spec: ModelSpec) -> list[tuple[str, str, str]]:
    """Return (key, found, remedy) of each setting that the kind of model does not have."""
    known = constructor_names(spec.kind)
    wrong = []
    if spec.tune and learns_from(spec.kind) == "counts":
        wrong.append(("tune", f"{spec.kind} has no settings to choose from", "remove it"))
    if not spec.options and learns_from(spec.kind) == "counts":
        return wrong
    for name in spec.options:
        unknown = unknown_option(spec.kind, {name: None})
        if unknown is not None:
            wrong.append((f"options.{name}", *unknown))
    usable = {name: value for name, value in spec.options.items() if name in known}
    if learns_from(spec.kind) == "counts":
        own = {CONSTRUCTOR_NAMES.get(key, key): key for key in MODEL_KEYS}
        taken = [(name, own[name]) for name in usable if name in own]
        wrong += [
            (f"options.{name}", f"{name!r} is a key of model", f"give model.{key}")
            for name, key in taken
        ]
        return wrong
    refused = unusable_options(spec.kind, usable)
    if refused is not None:
        wrong.append(("options", *refused))
    return wrong + [
        (key, f"{key} is for models of counts, not for {spec.kind}", "remove it")
        for key in MODEL_KEYS
        if is_changed(spec, key)
        and (CONSTRUCTOR_NAMES.get(key, key) not in known or key == "likelihood")
    ]


def ignored_fit_keys(kind: str, fit: Fit) -> list[str]:
    """Return the keys of ``fit`` that were changed and that the model does not have."""
    known = constructor_names(kind)
    return [
        key
        for key in FIT_KEYS
        if is_changed(fit, key) and CONSTRUCTOR_NAMES.get(key, key) not in known and key != "seed"
    ]


def is_changed(section: Any, key: str) -> bool:
    """Return whether a key of a section differs from its default, or what that stands for."""
    default = type(section).model_fields[key].default
    return getattr(section, key) not in (default, UNSIZED.get(key, default))
