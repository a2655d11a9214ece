"""The schema of a configuration: typed and immutable.

YAML keys and attributes have the same names: ``config.fit.batch_areas`` is
``fit: {batch_areas: ...}``. ``pipeline.config.reader`` reads a file and reports all errors.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from geo.trust import Trust
from pipeline.config.base import Section, config_error, config_errors
from pipeline.config.check_schema import Check
from pipeline.config.compute_schema import Compute
from pipeline.config.derived_defaults import cluster_named, directory_of_its_name, rate_per_one
from pipeline.config.document import Document
from pipeline.config.input_schema import (
    Areas,
    Counts,
    Covariate,
    FoldsFile,
    GridSpec,
    Labels,
    Population,
    Truth,
)
from pipeline.config.level_schema import LevelAreas, Reconcile, check_levels
from pipeline.config.model_schema import (
    WARM_KINDS,
    AreaPixels,
    Fit,
    ModelSpec,
    ignored_fit_keys,
)
from pipeline.config.operation_schema import Gates, Metrics, Notify, Publish, Update
from pipeline.config.values import (
    InputPath,
    Kilometres,
    LocalDir,
    Name,
    Number,
    ObjectAddress,
    Seed,
    Whole,
    whole_or,
)
from pipeline.storage.location import Location, Storage, is_object_address


class Output(Section):
    """``output``: directory and content of the maps."""

    dir: LocalDir = Field(
        Path("out"),
        description="directory of the results, or their address (s3://bucket/map); out/NAME by "
        "default where the map has a name; "
        "`{period}` in it keeps the map of each period",
    )
    url: ObjectAddress = Field(
        None,
        description="address of the results; output.dir is then their local copy",
    )
    rate_per: Annotated[Number, Field(gt=0)] = Field(
        1000, description="people per unit of the rate"
    )
    interval: Annotated[Number, Field(gt=0, lt=1)] = Field(
        0.9, description="probability of the intervals"
    )
    exceedance: tuple[Annotated[Number, Field(ge=0)], ...] = Field(
        (), description="thresholds of the exceedance maps, per rate_per people"
    )
    draws: Annotated[Whole, Field(ge=2, le=1_000_000)] = Field(
        500, description="number of joint posterior draws"
    )
    mask: Literal["areas", "all"] = Field(
        "areas", description="map pixels inside areas only, or all pixels with covariates"
    )
    areas: tuple[LevelAreas, ...] = Field((), description="areas of other levels to tabulate")
    reconcile: Reconcile | None = Field(
        None, description="also write maps and columns whose totals are the reported or given ones"
    )

    @model_validator(mode="after")
    def _levels_fit(self) -> Output:
        check_levels(self.areas, self.reconcile)
        return self

    @model_validator(mode="before")
    @classmethod
    def _one_exceedance(cls, data: Any) -> Any:
        # Accept one number for a list of one threshold.
        if isinstance(data, dict) and isinstance(data.get("exceedance"), int | float):
            return {**data, "exceedance": [data["exceedance"]]}
        return data

    @property
    def place(self) -> str:
        """Address or local directory of the results."""
        return self.url or str(self.dir)


class StorageSection(Section):
    """``storage``: connection to object stores; credentials come from the environment."""

    endpoint: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        None, description="address of an S3-compatible server"
    )
    retries: Annotated[Whole, Field(ge=0)] = Field(
        6, description="number of retries after a failure"
    )
    timeout: Annotated[Number, Field(gt=0)] = Field(
        60, description="seconds without data after which an attempt fails"
    )
    scratch: InputPath | None = Field(
        None, description="directory of local copies; ~/.cache/disagg by default"
    )
    trusted: tuple[InputPath, ...] = Field(
        (),
        description="folders and addresses (https://host/) that a virtual raster (VRT) may refer "
        "to, beside its own folder, that of this file, and the inputs",
    )

    def open(self) -> Storage:
        """Return the connection settings as a `Storage`."""
        return Storage(self.endpoint, self.retries, self.timeout, self.scratch or "")


def _folds(value: Any) -> Any:
    if isinstance(value, dict | FoldsFile):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2:
        return value
    raise config_error(
        remedy="give a whole number of at least 2, or a file: {path: ..., id: ..., fold: ...}"
    )


class Evaluate(Section):
    """``evaluate``: cross-validation."""

    folds: Annotated[int | FoldsFile, BeforeValidator(_folds)] = Field(
        5, description="number of folds, or a file with the fold of each area"
    )
    schemes: tuple[Literal["area", "block"], ...] = Field(
        ("area", "block"),
        description="hold out areas at random, or in spatial blocks; [] for no cross-validation",
    )
    seed: Seed = Field(0, description="seed of the folds")
    area_pixels: AreaPixels = Field(
        "auto",
        description="pixels that represent an area in the folds' fits and in the scores of areas, "
        "as fit.area_pixels",
    )
    start: Literal["auto", "cold", "warm"] = Field(
        "auto",
        description="start of the folds' fits: cold as the fit's own, warm at its optimum (by "
        "mini-batches without what is known of the surface); auto follows the size",
    )
    epochs: Annotated[int | Literal["auto"], whole_or("auto", least=1)] = Field(
        "auto", description="maximum number of epochs of a fold; auto: fit.max_epochs, warm 60"
    )
    leave_out: Literal["auto", "refit", "importance"] = Field(
        "auto",
        description="how areas and regions are left out: refit without each fold, or weigh the "
        "draws of the posterior (PSIS; one area, or one region, at a time), with refits where "
        "weights fail; auto: weights, where the model has them. A file of folds is always refitted",
    )
    buffer: Kilometres = Field(
        0.0,
        description="scheme block: km around a region whose areas are neither trained on nor "
        "scored; auto: the learnt range",
    )
    calibration: Annotated[int | Literal["auto", "none"], whole_or("auto", "none", least=1)] = (
        Field(
            "auto",
            description="refits to data simulated from the fitted map, which tell how many of the "
            "true rates of pixels its intervals cover: their number, or none; auto: 2 in small "
            "problems, 10 where gates.pixel_coverage reads them",
        )
    )


def _work_locally(data: dict[str, Any]) -> None:
    """Set a local output.dir for a run whose results are on an object store."""
    output = data["output"]
    if not isinstance(output, dict) or not is_object_address(output.get("dir", "")):
        return
    url = str(output["dir"]).rstrip("/")
    storage = data.get("storage")
    scratch = storage.get("scratch") if isinstance(storage, dict) else None
    name = f"{url.rsplit('/', 1)[-1]}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    above = Storage(scratch=str(scratch or "")).scratch_dir
    data["output"] = {**output, "url": url, "dir": str(above / "runs" / name)}


class Config(Section):
    """A complete configuration; every path is absolute or remote.

    `load_config` reads a file. To build one in code, use ``Config.model_validate(mapping,
    context={"base": directory})``.
    """

    name: Name = Field("disagg", description="name of the map, in tags and titles")
    areas: Areas = Field(description="the boundaries")
    counts: Counts | None = Field(None, description="cases for each area")
    labels: Labels | None = Field(
        None, description="for a classification model: 1 or 0 of each area"
    )
    population: Population | None = Field(None, description="people; without it, rates are per km2")
    covariates: Annotated[dict[str, Covariate], Field(min_length=1)] = Field(
        description="at least one raster"
    )
    grid: GridSpec = Field(description="the grid; the population's by default")
    model: ModelSpec = Field(default_factory=ModelSpec)
    fit: Fit = Field(default_factory=Fit)
    compute: Compute = Field(default_factory=Compute)
    output: Output = Field(default_factory=Output)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    check: Check = Field(default_factory=Check)
    truth: Truth | None = Field(None, description="true rate of a simulated country")
    period: str | None = Field(None, description="period of a time series; the latest by default")
    gates: Gates = Field(default_factory=Gates)
    publish: Publish = Field(default_factory=Publish)
    update: Update = Field(default_factory=Update)
    notify: Notify = Field(default_factory=Notify)
    metrics: Metrics = Field(default_factory=Metrics)
    storage: StorageSection = Field(default_factory=StorageSection)

    _document: Document | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _defaults_from_others(cls, data: Any, info: ValidationInfo) -> Any:
        # Defaults that depend on another section.
        if not isinstance(data, dict):
            return data
        data = dict(data)
        # A default factory would not resolve output.dir relative to the file.
        data.setdefault("output", {})
        base = (info.context or {}).get("base", Path())
        data["output"] = directory_of_its_name(data, base)
        _work_locally(data)
        population, areas = data.get("population"), data.get("areas")
        if data.get("grid") is None and isinstance(population, dict) and "path" in population:
            data["grid"] = {"like": population["path"]}
        data["output"] = rate_per_one(data)
        if "compute" in data:
            data["compute"] = cluster_named(data, base)
        for key in ("counts", "labels"):
            own = data.get(key)
            if isinstance(areas, dict) and isinstance(own, dict) and own.get("id") is None:
                data[key] = {**own, "id": areas.get("id")}
        return data

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        wrong = [each for check in _CROSS_CHECKS if (each := check(self)) is not None]
        if wrong:
            raise config_errors(wrong)
        return self

    @property
    def averages(self) -> bool:
        """Whether a value is the average over its area, not its total."""
        counts = self.counts
        if counts is None or counts.of is not None:
            return counts is not None and counts.of == "average"
        return counts.weight is not None and not self.model.response.counts

    @property
    def has_cases(self) -> bool:
        """Whether the cases of a pixel are its rate times its people (or km2).

        A value is no number of cases, and a weight of an area is not known by pixel.
        """
        counts = self.counts
        return counts is not None and self.model.response.counts and counts.weight is None

    @property
    def response(self) -> Counts | Labels:
        """The section of the responses: ``counts`` or ``labels``."""
        given = self.counts or self.labels
        if given is None:
            message = "a configuration without counts or labels passed its checks"
            raise RuntimeError(message)
        return given

    @property
    def document(self) -> Document | None:
        """The YAML document of this configuration."""
        return self._document

    @property
    def source(self) -> Path | Location | None:
        """The YAML file of this configuration, or its address."""
        path = None if self._document is None else self._document.path
        return path.resolve() if isinstance(path, Path) else path

    @property
    def shared_dir(self) -> Path:
        """Directory of what the periods of a map share: ``output.dir``, or above ``{period}``."""
        output = {} if self.document is None else self.document.values.get("output")
        given = str(output.get("dir", "")) if isinstance(output, dict) else ""
        own, period = self.output.dir, "{period}"
        local = self.output.url is None and period in given
        n_below = len(Path(given[given.find(period) :]).parts) if local else 0
        return own.parents[n_below - 1] if n_below else own

    @property
    def trust(self) -> Trust:
        """The places that an input may refer to; see `docs/security.md`."""
        source = self.source
        folder = (str(source.parent),) if isinstance(source, Path) else ()
        listed = tuple(self.input_paths().values())
        return Trust.of((*folder, *self.storage.trusted), listed)

    def input_paths(self) -> dict[str, str]:
        """Return the path of every input file, by configuration key."""
        paths: dict[str, str | None] = {
            "areas.path": self.areas.path,
            f"{self.model.responses}.path": self.response.path,
        }
        if self.population is not None:
            paths["population.path"] = self.population.path
        for name, covariate in self.covariates.items():
            paths[f"covariates.{name}.path"] = covariate.path
        paths["grid.like"] = self.grid.like
        for number, level in enumerate(self.output.areas):
            paths[f"output.areas.{number}.path"] = level.path
        if isinstance(self.evaluate.folds, FoldsFile):
            paths["evaluate.folds.path"] = self.evaluate.folds.path
        if self.truth is not None:
            paths["truth.path"] = self.truth.path
        if self.compute.tls is not None:
            for key in ("ca", "cert", "key"):
                paths[f"compute.tls.{key}"] = getattr(self.compute.tls, key)
        return {key: path for key, path in paths.items() if path is not None}


def _wrong_responses(config: Config) -> Wrong | None:
    given = [key for key in ("counts", "labels") if getattr(config, key) is not None]
    wanted = config.model.responses
    if given == [wanted]:
        return None
    what = " and ".join(given) or "neither counts nor labels"
    found = f"{what} given, but model.kind: {config.model.kind} learns from {wanted}"
    remedy = f"give `{wanted}: {{path: ..., value: ...}}` alone, or another model.kind"
    return "", found, remedy


def _wrong_period(config: Config) -> Wrong | None:
    if config.counts is None or config.counts.period is None:
        return None
    if config.counts.path is None:
        remedy = "give counts of several periods as a table of their own"
        return "", "counts.period without counts.path", remedy
    if config.period is None:
        return "", "counts.period without a period", "add `period: ...`"
    return None


def _wrong_security(config: Config) -> Wrong | None:
    compute = config.compute
    if (compute.tls is not None) == compute.scheduler.startswith("tls://"):
        return None
    found = "compute.tls and a scheduler at tls://..., one without the other"
    return "", found, "give both, or neither"


def _wrong_trials(config: Config) -> Wrong | None:
    if config.counts is None:
        return None
    if (config.counts.tested is not None) == config.model.response.needs_trials:
        return None
    from models.likelihoods.registry import LIKELIHOODS

    names = " or ".join(name for name, each in LIKELIHOODS.items() if each.needs_trials)
    found = f"counts.tested and model.likelihood: {names}, one without the other"
    remedy = "give both for positives among tested people (beta_binomial), neither for cases"
    return "", found, remedy


def _wrong_weight(config: Config) -> Wrong | None:
    counts, response = config.counts, config.model.response
    if counts is None:
        return None
    given = [key for key in ("weight", "of") if getattr(counts, key) is not None]
    if given and response.needs_trials:
        remedy = "remove it: the number tested is the exposure of positives"
        return "", f"counts.{given[0]} with counts.tested", remedy
    if counts.of == "average" and response.counts:
        found = f"counts.of: average under the {response} likelihood, which is of counts"
        return "", found, "give totals, or likelihood: normal, gamma or exponential"
    if counts.weight_unit is not None and counts.weight is None:
        return "", "counts.weight_unit without counts.weight", "give both, or neither"
    if config.averages and config.output.rate_per != 1:
        per = f"{config.output.rate_per:g}"
        found = f"output.rate_per is {per}, but the map of averages has their own unit"
        return "", found, "remove it, or give counts.of: total"
    return None


def _wrong_evaluation(config: Config) -> Wrong | None:
    for key, word in (("start", "warm"), ("leave_out", "importance")):
        if getattr(config.evaluate, key) == word and config.model.kind not in WARM_KINDS:
            found = f"evaluate.{key}: {word} with model.kind: {config.model.kind}"
            return "", found, f"remove it; only {' and '.join(WARM_KINDS)} can do so"
    thinned = {config.fit.area_pixels, config.evaluate.area_pixels} - {"auto", "all"}
    if config.labels is not None and thinned:
        found = "area_pixels with labels: one pixel may decide the label of its area"
        return "", found, "remove it"
    if config.labels is not None and isinstance(config.evaluate.calibration, int):
        return "", "evaluate.calibration with labels: maps of rates have it", "remove it"
    if config.labels is not None and config.gates.pixel_coverage is not None:
        return "", "gates.pixel_coverage with labels: maps of rates have it", "remove it"
    return None


def _wrong_levels(config: Config) -> Wrong | None:
    output = config.output
    for key, given in (("areas", output.areas), ("reconcile", output.reconcile)):
        if given and config.labels is not None:
            return "", f"output.{key} with labels: maps of rates have it", "remove it"
    if output.reconcile is not None and not config.has_cases:
        found = "output.reconcile, but the map shows no cases that could add up to totals"
        return "", found, "remove it; counts of people's cases, without counts.weight, have them"
    if output.reconcile is not None and config.model.response.needs_trials:
        found = "output.reconcile with counts.tested: positives are not those of all people"
        return "", found, "remove it"
    return None


def _wrong_fit_keys(config: Config) -> Wrong | None:
    if config.model.responses != "labels":
        return None
    ignored = ignored_fit_keys(config.model.kind, config.fit)
    if not ignored:
        return None
    keys = ", ".join(f"fit.{key}" for key in ignored)
    found = f"{keys} {'is' if len(ignored) == 1 else 'are'} set, but {config.model.kind} does "
    return "", found + f"not use {'it' if len(ignored) == 1 else 'them'}", "remove it"


#: Key, finding and remedy.
Wrong = tuple[str, str, str]
_CROSS_CHECKS = (
    _wrong_responses,
    _wrong_period,
    _wrong_security,
    _wrong_trials,
    _wrong_weight,
    _wrong_evaluation,
    _wrong_levels,
    _wrong_fit_keys,
)


def work_dir(config: Config) -> Path:
    """Return the directory of intermediate results."""
    return config.output.dir / "work"
