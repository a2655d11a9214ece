"""The schema of a configuration: typed and immutable.

YAML keys and attributes have the same names: ``config.fit.batch_areas`` is
``fit: {batch_areas: ...}``. ``pipeline.config.reader`` reads a file and reports all errors.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from geo.core.calendar import Calendar
from geo.core.trust import Trust
from pipeline.config.base import Section, config_errors
from pipeline.config.check_schema import Check
from pipeline.config.compute_schema import Compute
from pipeline.config.covariate_schema import Covariate
from pipeline.config.derived_defaults import (
    SPACE_TIME,
    cluster_named,
    directory_of_its_name,
    model_of_time,
    rate_per_one,
)
from pipeline.config.dhis2_schema import Dhis2
from pipeline.config.document import Document
from pipeline.config.evaluate_schema import Evaluate
from pipeline.config.input_schema import Areas, Counts, FoldsFile, GridSpec, Labels, TimeSpec
from pipeline.config.layer_schema import Population, Truth
from pipeline.config.model_schema import WARM_KINDS, Fit, ModelSpec, ignored_fit_keys
from pipeline.config.operation_schema import Gates, Metrics, Notify, Publish, Update
from pipeline.config.output_schema import Output
from pipeline.config.point_schema import Points, wrong_points
from pipeline.config.series import Series, moves
from pipeline.config.values import InputPath, Name, Seconds, Whole
from pipeline.config.windows import wrong_periods, wrong_window
from pipeline.responses.registry import response_of
from pipeline.responses.response import Given, Response, Wrong
from pipeline.storage.location import Location, Storage, is_object_address


class StorageSection(Section):
    """``storage``: connection to object stores; credentials come from the environment."""

    endpoint: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        None,
        examples=["https://minio.example.org:9000"],
        description="address of an S3-compatible server",
    )
    retries: Annotated[Whole, Field(ge=0)] = Field(
        6, description="number of retries after a failure"
    )
    timeout: Seconds = Field(
        60,
        description="seconds without data after which an attempt fails",
    )
    scratch: InputPath | None = Field(
        None,
        examples=["/var/cache/disagg"],
        description="directory of local copies; ~/.cache/disagg by default",
    )
    trusted: tuple[InputPath, ...] = Field(
        (),
        examples=[["/data/shared", "https://data.example.org/"]],
        description="folders and addresses (https://host/) that a virtual raster (VRT) may refer "
        "to, beside its own folder, that of this file, and the inputs",
    )

    def open(self) -> Storage:
        """Return the connection settings as a `Storage`."""
        return Storage(self.endpoint, self.retries, self.timeout, self.scratch or "")


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

    name: Name = Field(
        "disagg", examples=["madagascar-malaria"], description="name of the map, in tags and titles"
    )
    areas: Areas = Field(description="the boundaries")
    counts: Counts | None = Field(None, description="cases for each area")
    labels: Labels | None = Field(
        None, description="for a classification model: 1 or 0 of each area"
    )
    population: Population | None = Field(None, description="people; without it, rates are per km2")
    covariates: dict[str, Covariate] = Field(
        default_factory=dict,
        examples=[{"elevation": {"path": "elevation.tif"}}],
        description="rasters, cubes, tables of areas, shares of classes, distances and slopes; "
        "without any, space and time explain all",
    )
    points: tuple[Points, ...] = Field(
        (),
        examples=[
            [
                {
                    "name": "dhs",
                    "path": "clusters.csv",
                    "id": "cluster",
                    "value": "positive",
                    "tested": "examined",
                }
            ]
        ],
        description="survey clusters and facilities beside the areas, in the same posterior",
    )
    grid: GridSpec = Field(description="the grid; the population's by default")
    model: ModelSpec = Field(default_factory=ModelSpec)
    fit: Fit = Field(default_factory=Fit)
    compute: Compute = Field(default_factory=Compute)
    output: Output = Field(default_factory=Output)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    check: Check = Field(default_factory=Check)
    truth: Truth | None = Field(None, description="true rate of a simulated country")
    period: str | None = Field(
        None, examples=["2024-03"], description="period of a time series; the latest by default"
    )
    time: TimeSpec | None = Field(
        None, description="for one model of several periods: what they are"
    )
    gates: Gates = Field(default_factory=Gates)
    publish: Publish = Field(default_factory=Publish)
    update: Update = Field(default_factory=Update)
    notify: Notify = Field(default_factory=Notify)
    metrics: Metrics = Field(default_factory=Metrics)
    storage: StorageSection = Field(default_factory=StorageSection)
    dhis2: Dhis2 | None = Field(None, description="boundaries and counts from DHIS2, results to it")

    _document: Document | None = PrivateAttr(None)
    _series: Series | None = PrivateAttr(None)
    _others: dict[str, Config] = PrivateAttr(default_factory=dict)  # of other periods, as read

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
        data = model_of_time(data)
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
    def response_kind(self) -> Response:
        """What the areas' values are: their words, columns, maps, scores and checks."""
        section, labels = self.response, self.labels is not None
        keys = ("tested", "weight", "weight_unit", "unit", "of")
        given = Given(
            "labels" if labels else "counts",
            section.value,
            None if labels else self.model.response,
            "km2" if self.population is None else "people",
            self.output.rate_per,
            self.output.interval,
            step="" if self.time is None else self.time.step,
            spread=self.model.has_spread,
            **{key: getattr(section, key, None) for key in keys},
        )
        return response_of(given)

    @property
    def point_sources(self) -> tuple[Points, ...]:
        """The points that are sources of the model: of a series, zones are unions of areas."""
        return () if self.time is not None else self.points

    @property
    def response(self) -> Counts | Labels:
        """The section of the responses: ``counts`` or ``labels``."""
        given = self.labels or self.counts
        if given is None:
            message = "a configuration without counts or labels passed its checks"
            raise RuntimeError(message)
        return given

    @property
    def document(self) -> Document | None:
        """The YAML document of this configuration."""
        return self._document

    @property
    def series(self) -> Series | None:
        """The periods of a run with ``time``; None for a run of one period."""
        return self._series

    @property
    def known_series(self) -> Series:
        """The periods where only a run with ``time`` comes; others are a RuntimeError."""
        if self._series is None:
            message = "a run of one period came where the periods of a series are needed"
            raise RuntimeError(message)
        return self._series

    def at(self, label: str) -> Config:
        """Return this configuration, mapped to another period of the series."""
        series, document = self.series, self.document
        if series is None or document is None or label == self.period:
            return self
        if label not in self._others:
            given = series.of(document.values, label)
            other = Config.model_validate(given, context={"base": document.directory})
            other._document, other._series = document, series
            self._others[label] = other
        found = self._others[label]
        own = {key: getattr(found.output, key) for key in ("areas", "reconcile")}
        moving = {key: value for key, value in own.items() if getattr(self.output, key)}
        output = self.output.model_copy(update=moving)
        update = {"output": output, "compute": self.compute, "fit": self.fit}
        return found.model_copy(update=update)

    def later_people(self) -> tuple[Population, float] | None:
        """Return the population of the later of two years, and the share of the way to it.

        None where the population of the period is that of one file: see
        :meth:`pipeline.config.series.Series.people_years`.
        """
        if self.series is None or self.period is None or not self.series.years:
            return None
        _, later, share = self.series.people_years(self.period)
        other = self.at(self.series.within(later)).population if share else None
        return None if other is None else (other, share)

    def moving(self) -> tuple[str, ...]:
        """Return the covariates that differ by period, and ``population`` where that does."""
        if self.series is None or self.document is None:
            return ()
        given = self.document.values
        names = [name for name in self.covariates if moves(given["covariates"][name])]
        people = ["population"] if moves(given.get("population")) else []
        return (*names, *people)

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
        listed = (*self.input_paths().values(), *self.ahead_paths().values())
        return Trust.of((*folder, *self.storage.trusted), listed)

    def input_paths(self) -> dict[str, str]:
        """Return the path of every input file, by configuration key."""
        paths: dict[str, str | None] = {
            "areas.path": self.areas.path,
            "areas.changes": self.areas.changes,
            f"{self.model.responses}.path": self.response.path,
            f"{self.model.responses}.crosswalk": self.response.crosswalk,
        }
        if self.population is not None:
            paths |= self._people_paths("population")
        for name, covariate in self.covariates.items():
            paths[path_key(f"covariates.{name}", covariate)] = covariate.path
        if self.series is not None and self.moving():
            for label in self.series.periods:
                paths |= {} if label == self.period else self._moving_paths(label)
        paths["grid.like"] = self.grid.like
        for number, points in enumerate(self.points):
            paths[f"points.{number}.path"] = points.path
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

    def ahead_paths(self) -> dict[str, str]:
        """Return the path of what moves in each forecast, by key: those that are there are read."""
        series, found = self.series, dict[str, str | None]()
        for label in () if series is None else series.following(self.output.forecast):
            found |= self._moving_paths(label)
        return {key: path for key, path in found.items() if path is not None}

    def _moving_paths(self, label: str) -> dict[str, str | None]:
        """Return the files of what moves in another period, by key."""
        own, paths = self.at(label), dict[str, str | None]()
        for name in self.moving():
            if name == "population":
                paths |= own._people_paths(f"{name}.{label}")
            else:
                section = own.covariates[name]
                paths[path_key(f"covariates.{name}.{label}", section)] = section.path
        return paths

    def _people_paths(self, head: str) -> dict[str, str | None]:
        """Return the files of the population of this period, by key."""
        paths = {f"{head}.path": None if self.population is None else self.population.path}
        later = self.later_people()
        return paths if later is None else {**paths, later_key(head): later[0].path}


def path_key(head: str, section: Covariate | Population) -> str:
    """Return the key of a layer's path in :meth:`Config.input_paths`."""
    return f"{head}.{section.kind if isinstance(section, Covariate) else 'path'}"


def later_key(head: str) -> str:
    """Return the key of a population's later year in :meth:`Config.input_paths`."""
    return f"{head}.later.path"


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


def _wrong_changes(config: Config) -> Wrong | None:
    if config.areas.changes is None:
        return None
    if config.time is None:
        found = "given without `time`: a map of one period has areas of one time"
        return "areas.changes", found, "remove it, or add `time: {step: ...}`"
    if not config.response_kind.adds_up:
        found = "given with counts that are averages, which do not add up"
        return "areas.changes", found, "give the cases of each area, or leave out changes"
    if config.counts is not None and config.counts.path is None:
        found = "given with counts that are a column of the areas of today"
        return "areas.changes", found, "give the counts as a table of their own"
    return None


def _wrong_security(config: Config) -> Wrong | None:
    compute = config.compute
    if (compute.tls is not None) == compute.scheduler.startswith("tls://"):
        return None
    if compute.scheduler == "jobqueue":  # makes certificates of its own where none are given
        return None
    found = "compute.tls and a scheduler at tls://..., one without the other"
    return "", found, "give both, or neither"


def _wrong_response(config: Config) -> Wrong | None:
    given = config.counts is not None or config.labels is not None
    return config.response_kind.problem() if given else None


def _wrong_evaluation(config: Config) -> Wrong | None:
    for key, word in (("start", "warm"), ("leave_out", "importance")):
        if getattr(config.evaluate, key) == word and config.model.kind not in WARM_KINDS:
            found = f"evaluate.{key}: {word} with model.kind: {config.model.kind}"
            return "", found, f"remove it; only {' and '.join(WARM_KINDS)} can do so"
    return None


def _wrong_beside_response(config: Config) -> Wrong | None:
    """Return the first key that does not go with the response."""
    if config.counts is None and config.labels is None:
        return None
    without = config.response_kind.without
    given = {
        "area_pixels": {config.fit.area_pixels, config.evaluate.area_pixels} - {"auto", "all"},
        "evaluate.calibration": isinstance(config.evaluate.calibration, int),
        "gates.coverage": config.gates.coverage is not None,
        "gates.pixel_coverage": config.gates.pixel_coverage is not None,
        "output.areas": config.output.areas,
        "output.exceedance": config.output.exceedance,
        "output.reconcile": config.output.reconcile is not None,
    }
    for key in [key for key, value in given.items() if value and key in without]:
        found, _, remedy = without[key].partition("; ")
        return "", found, remedy or "remove it"
    kind, lowest = config.response_kind, min(config.output.exceedance, default=0.0)
    if lowest < 0 and (kind.classes or kind.likelihood.positive):
        found = f"{lowest:g}, and no {kind.quantity} is below 0"
        return "output.exceedance", found, "give numbers of at least 0"
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


def _wrong_time(config: Config) -> Wrong | None:
    if config.time is not None:
        if config.model.kind == SPACE_TIME:
            calendar = Calendar(config.time.step, config.time.week)
            wrong = wrong_window(calendar, config.output.windows)
            return wrong or wrong_periods(calendar, config.output.periods)
        found = f"time given, but model.kind: {config.model.kind} is of one period"
        return "model.kind", found, f"give {SPACE_TIME}, or remove `time` for a map of one period"
    if config.model.kind == SPACE_TIME:
        return (
            "model.kind",
            f"{SPACE_TIME} without `time`",
            "add `time: {step: month}`, or give vbagg",
        )
    for key, least in (("forecast", 0), ("periods", "latest"), ("windows", ())):
        if getattr(config.output, key) != least:
            found, remedy = (
                "given without `time`",
                "add `time: {step: month}`, or remove it",
            )
            return f"output.{key}", found, remedy
    return None


_CROSS_CHECKS = (
    _wrong_responses,
    _wrong_period,
    _wrong_changes,
    wrong_points,
    _wrong_time,
    _wrong_security,
    _wrong_response,
    _wrong_evaluation,
    _wrong_beside_response,
    _wrong_fit_keys,
)


def work_dir(config: Config) -> Path:
    """Return the directory of intermediate results."""
    return config.output.dir / "work"
