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
    model_validator,
)

from pipeline.config.base import Section, config_error
from pipeline.config.compute_schema import Compute
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
from pipeline.config.model_schema import AreaPixels, Fit, ModelSpec, ignored_fit_keys
from pipeline.config.operation_schema import Gates, Metrics, Notify, Publish, Update
from pipeline.config.values import InputPath, LocalDir, Number, ObjectAddress, Seed, Whole, whole_or
from pipeline.storage.location import Storage, is_object_address


class Output(Section):
    """``output``: directory and content of the maps."""

    dir: LocalDir = Field(
        Path("out"), description="directory of the results, or their address (s3://bucket/map)"
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
    draws: Annotated[Whole, Field(ge=2)] = Field(500, description="number of joint posterior draws")
    mask: Literal["areas", "all"] = Field(
        "areas", description="map pixels inside areas only, or all pixels with covariates"
    )

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
        description="start of the folds' fits: cold as the fit's own, warm at its kernel, noise "
        "and inducing points, with nothing known of the surface; auto follows the size",
    )
    epochs: Annotated[int | Literal["auto"], whole_or("auto", least=1)] = Field(
        "auto", description="maximum number of epochs of a fold; auto: fit.max_epochs, warm 60"
    )
    leave_out: Literal["auto", "refit", "importance"] = Field(
        "auto",
        description="how scheme area leaves areas out: refit without each fold, or weigh the "
        "draws of the posterior (one area at a time, PSIS), with refits where weights fail; auto "
        "follows the size",
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

    name: str = Field("disagg", description="name of the map, in tags and titles")
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
    def _defaults_from_others(cls, data: Any) -> Any:
        # Defaults that depend on another section.
        if not isinstance(data, dict):
            return data
        data = dict(data)
        # A default factory would not resolve output.dir relative to the file.
        data.setdefault("output", {})
        _work_locally(data)
        population, areas = data.get("population"), data.get("areas")
        if data.get("grid") is None and isinstance(population, dict) and "path" in population:
            data["grid"] = {"like": population["path"]}
        for key in ("counts", "labels"):
            own = data.get(key)
            if isinstance(areas, dict) and isinstance(own, dict) and own.get("id") is None:
                data[key] = {**own, "id": areas.get("id")}
        return data

    @model_validator(mode="after")
    def _responses(self) -> Config:
        given = [key for key in ("counts", "labels") if getattr(self, key) is not None]
        wanted = self.model.responses
        if given != [wanted]:
            what = " and ".join(given) or "neither counts nor labels"
            raise config_error(
                found=f"{what} given, but model.kind: {self.model.kind} learns from {wanted}",
                remedy=f"give `{wanted}: {{path: ..., value: ...}}` alone, or another model.kind",
            )
        return self

    @model_validator(mode="after")
    def _one_period(self) -> Config:
        if self.counts is not None and self.counts.period is not None:
            if self.counts.path is None:
                raise config_error(
                    found="counts.period without counts.path",
                    remedy="give counts of several periods as a table of their own",
                )
            if self.period is None:
                raise config_error(
                    found="counts.period without a period", remedy="add `period: ...`"
                )
        return self

    @model_validator(mode="after")
    def _secure(self) -> Config:
        compute = self.compute
        if (compute.tls is not None) != compute.scheduler.startswith("tls://"):
            raise config_error(
                found="compute.tls and a scheduler at tls://..., one without the other",
                remedy="give both, or neither",
            )
        return self

    @model_validator(mode="after")
    def _tested(self) -> Config:
        if self.counts is None:
            return self
        if (self.counts.tested is not None) != self.model.response.needs_trials:
            from models.likelihoods.registry import LIKELIHOODS

            names = " or ".join(name for name, each in LIKELIHOODS.items() if each.needs_trials)
            raise config_error(
                found=f"counts.tested and model.likelihood: {names}, one without the other",
                remedy="give both for positives among tested people, neither for cases",
            )
        return self

    @model_validator(mode="after")
    def _fit_keys(self) -> Config:
        ignored = (
            ignored_fit_keys(self.model.kind, self.fit) if self.model.responses == "labels" else []
        )
        if ignored:
            raise config_error(
                found=f"fit.{ignored[0]} is set, but {self.model.kind} does not use it",
                remedy="remove it",
            )
        return self

    @model_validator(mode="after")
    def _evaluated(self) -> Config:
        for key, word in (("start", "warm"), ("leave_out", "importance")):
            if getattr(self.evaluate, key) == word and self.model.kind != "vbagg":
                raise config_error(
                    found=f"evaluate.{key}: {word} with model.kind: {self.model.kind}",
                    remedy="remove it; only vbagg can do so",
                )
        by_file = isinstance(self.evaluate.folds, FoldsFile)
        if self.evaluate.leave_out == "importance" and by_file:
            raise config_error(
                found="evaluate.leave_out: importance with a file of folds",
                remedy="give leave_out: refit, or a number of folds",
            )
        if self.labels is not None and {self.fit.area_pixels, self.evaluate.area_pixels} - {
            "auto",
            "all",
        }:
            raise config_error(
                found="area_pixels with labels: one pixel may decide the label of its area",
                remedy="remove it",
            )
        return self

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
    def source(self) -> Path | None:
        """The YAML file of this configuration."""
        return None if self._document is None else self._document.path.resolve()

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
        if isinstance(self.evaluate.folds, FoldsFile):
            paths["evaluate.folds.path"] = self.evaluate.folds.path
        if self.truth is not None:
            paths["truth.path"] = self.truth.path
        if self.compute.tls is not None:
            for key in ("ca", "cert", "key"):
                paths[f"compute.tls.{key}"] = getattr(self.compute.tls, key)
        return {key: path for key, path in paths.items() if path is not None}


def work_dir(config: Config) -> Path:
    """Return the directory of intermediate results."""
    return config.output.dir / "work"
