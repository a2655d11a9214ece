"""The one configuration of a run: typed, frozen, and read from YAML at the edge only.

The YAML's keys and the attributes are the same words: ``config.fit.batch_areas`` is
``fit: {batch_areas: ...}``. Reading, with every mistake reported at once, is in
``pipeline.yamlconfig``; this module only says what a valid configuration is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from geo.errors import InputError, Problem
from pipeline.operations import Gates, Metrics, Notify, Publish, Update
from pipeline.section import Section
from pipeline.storage import StorageOptions, is_object_address

_REMOTE = re.compile(r"^(/vsi|[A-Za-z][A-Za-z0-9+.-]*://|[A-Z][A-Z0-9_]+:)")
_BYTES = re.compile(r"^\s*\d+(\.\d+)?\s*([kKMGT]i?)?B\s*$")


def _wrong(*, remedy: str, found: str = "") -> PydanticCustomError:
    """Build an error whose remedy (and, if it says more than the value, finding) is ours."""
    return PydanticCustomError("disagg", "{found}; {remedy}", {"found": found, "remedy": remedy})


def is_remote(path: str) -> bool:
    """Tell whether a path is a URL or one of GDAL's virtual paths, not a local file."""
    return bool(_REMOTE.match(path))


def _resolve(path: str, info: ValidationInfo) -> str:
    if not path:
        raise _wrong(found="an empty path", remedy="give a file")
    if is_remote(path):
        return path
    base = (info.context or {}).get("base", Path())
    return str((base / Path(path).expanduser()).resolve())


def _local_dir(value: Any) -> Any:
    if isinstance(value, str) and is_remote(value):
        raise _wrong(remedy="give a local directory, or an address such as s3://bucket/map")
    return value


def _address(value: str | None) -> str | None:
    if value is not None and not is_object_address(value):
        raise _wrong(remedy="give an address such as s3://bucket/map, as output.dir")
    return value


def _resolve_dir(path: Path, info: ValidationInfo) -> Path:
    return Path(_resolve(str(path), info))


def _plain_number(value: Any) -> Any:
    # YAML reads yes/on/true as booleans, and Python counts a boolean as a number.
    if isinstance(value, bool):
        raise _wrong(remedy="give a number")
    return value


def _workers(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise _wrong(remedy="give 'auto' or a whole number of at least 1")


def _memory(value: Any) -> Any:
    if value == "auto" or (isinstance(value, str) and _BYTES.match(value)):
        return value
    raise _wrong(remedy="give 'auto' or an amount such as 8GiB")


def _scheduler(value: Any) -> Any:
    known = ("local", "processes", "kubernetes", "gateway")
    if value in known or (isinstance(value, str) and value.startswith(("tcp://", "tls://"))):
        return value
    raise _wrong(
        remedy="give 'local', 'processes' or an address such as tcp://host:8786, or 'kubernetes' "
        "or 'gateway' with a section of that name"
    )


def _folds(value: Any) -> Any:
    if isinstance(value, dict | FoldsFile):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2:
        return value
    raise _wrong(
        remedy="give a whole number of at least 2, or a file: {path: ..., id: ..., fold: ...}"
    )


def _crs(value: str) -> str:
    from pyproj import CRS
    from pyproj.exceptions import CRSError

    try:
        CRS.from_user_input(value)
    except CRSError:
        raise _wrong(
            found=f"PROJ knows no coordinate reference system {value!r}",
            remedy="give one such as EPSG:32738",
        ) from None
    return value


def _kernel(value: str) -> str:
    if value == "auto":
        return value
    from models.errors import ParameterError
    from models.kernels import parse_kernel

    try:
        # The number of covariates is not known here; the words do not depend on it.
        parse_kernel(value, 1, has_coords=True)
    except ParameterError as error:
        found, _, remedy = str(error).removeprefix("kernel: ").partition("; ")
        raise _wrong(found=found, remedy=remedy) from None
    return value


InputPath = Annotated[str, AfterValidator(_resolve)]
"""A file that is read: an absolute local path, or a URL or GDAL virtual path as it was given."""

Number = Annotated[float, BeforeValidator(_plain_number)]
Whole = Annotated[int, BeforeValidator(_plain_number)]
Seed = Annotated[Whole, Field(ge=0)]


class Areas(Section):
    """``areas``: the boundaries, and the column that identifies them."""

    path: InputPath = Field(description="boundaries: GeoPackage, Shapefile, GeoJSON or GeoParquet")
    layer: str | None = Field(None, description="layer of the file; the only one by default")
    id: str = Field(description="column that identifies an area")


class Counts(Section):
    """``counts``: cases for each area; without a path, a column of the areas file."""

    path: InputPath | None = Field(None, description="table of counts: CSV or Parquet")
    id: str | None = Field(None, description="column with the area's id; areas.id by default")
    value: str = Field(description="column with the counts")
    tested: str | None = Field(
        None, description="column with the numbers tested, for the binomial likelihood"
    )
    period: str | None = Field(None, description="column with the period, for a time series")


class Labels(Section):
    """``labels``: 1 or 0 for each area; without a path, a column of the areas file."""

    path: InputPath | None = Field(None, description="table of labels: CSV or Parquet")
    id: str | None = Field(None, description="column with the area's id; areas.id by default")
    value: str = Field(description="column with the labels: 1 or 0, yes or no, true or false")


class Population(Section):
    """``population``: people per pixel, or per square kilometre with ``density``."""

    path: InputPath = Field(description="raster of people per pixel")
    density: bool = Field(False, description="true where the raster is people per km2")


class Covariate(Section):
    """``covariates.<name>``: one raster and how it reaches the grid."""

    path: InputPath = Field(description="raster")
    band: Annotated[Whole, Field(ge=1)] = Field(1, description="band of the raster, from 1")
    resampling: Literal["auto", "average", "bilinear", "nearest", "mode", "sum", "cubic"] = Field(
        "auto", description="how pixels of another size become pixels of the grid"
    )
    transform: Literal["none", "log1p", "log", "sqrt"] = Field(
        "none", description="function of the resampled values"
    )


class GridSpec(Section):
    """``grid``: the one grid of the run; like a raster, or by CRS and resolution."""

    like: InputPath | None = Field(None, description="raster whose grid to use")
    crs: Annotated[str, AfterValidator(_crs)] | None = Field(
        None, description="coordinate reference system, such as EPSG:32738"
    )
    resolution: Annotated[Number, Field(gt=0)] | None = Field(
        None, description="pixel size in units of the CRS"
    )

    @model_validator(mode="after")
    def _one_way(self) -> GridSpec:
        by_crs = (self.crs is not None, self.resolution is not None)
        if any(by_crs) if self.like is not None else not all(by_crs):
            raise _wrong(
                found="neither, or both, of a raster and a CRS",
                remedy="give either {like: raster.tif}, or {crs: EPSG:..., resolution: ...}",
            )
        return self


class ModelSpec(Section):
    """``model``: which model, and its structure."""

    kind: Literal[
        "vbagg", "nystrom", "network", "bag_pixel", "constant",
        "psi_vgpmil", "psi_vgpmil_svi", "vwsgp", "vwsgp_svi", "gpmil", "gpmil_s", "blrt",
    ] = Field(
        "vbagg",
        description="the model: vbagg and its baselines learn from counts, the second row from "
        "labels; `disagg models` says what each predicts",
    )  # fmt: skip
    likelihood: Literal["poisson", "negative_binomial", "binomial"] = Field(
        "poisson",
        description="distribution of the counts around their mean; binomial: positives of tested",
    )
    link: Literal["auto", "square", "exp", "probit"] = Field(
        "auto", description="from the latent field to a rate; auto suits the likelihood"
    )
    estimator: Literal["auto", "bound", "second_order", "log_normal", "monte_carlo"] = Field(
        "auto", description="of what the counts say of the field: 'bound' is the paper's Lemma 1, 2"
    )
    area_effect: bool | Literal["auto"] = Field(
        "auto",
        description="a log-normal factor of each area beside the likelihood's own noise; auto: "
        "with poisson counts, which real ones never are",
    )
    inducing: Annotated[Whole, Field(ge=1)] = Field(200, description="number of inducing points")
    kernel: Annotated[str, AfterValidator(_kernel)] = Field(
        "auto",
        description="covariance: 'additive', 'ard', or a sum such as 'linear + matern32(space)'; "
        "auto is additive for counts, the model's own choice for labels",
    )
    priors: Literal["weak", "none"] = Field(
        "weak", description="on the kernel's and the likelihood's parameters"
    )
    learn_inducing: bool = Field(True, description="move the inducing points as the fit goes on")
    pair_pixels: Annotated[Whole, Field(ge=2)] = Field(
        256, description="pixels of an area whose pairs are visited; larger areas are sampled"
    )
    precision: Literal["float64", "float32"] = Field(
        "float64", description="of the pixel matrices; sums are float64 in any case"
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="further arguments of the model in Python, such as {n_trees: 200}",
    )

    @property
    def responses(self) -> Literal["counts", "labels"]:
        """What the model learns from: the section of the configuration that it needs."""
        from pipeline.kinds import learns_from

        return learns_from(self.kind)

    @property
    def has_area_effect(self) -> bool:
        """``area_effect``, ``auto`` resolved."""
        if self.area_effect == "auto":
            return self.likelihood == "poisson"
        return self.area_effect

    @model_validator(mode="after")
    def _fits_together(self) -> ModelSpec:
        from models.errors import ParameterError
        from models.likelihoods import LIKELIHOODS
        from pipeline.kinds import misplaced

        wrong = misplaced(self)
        if wrong is not None:
            raise _wrong(found=wrong[0], remedy=wrong[1])
        links = LIKELIHOODS[self.likelihood].links
        if self.link not in ("auto", *links):
            raise _wrong(
                found=f"link {self.link!r} does not go with the {self.likelihood} likelihood",
                remedy=f"give link: {' or '.join(links)}",
            )
        if self.kind == "vbagg":
            from models import VBAgg

            try:
                VBAgg(
                    likelihood=self.likelihood,
                    link=self.link,
                    estimator=self.estimator,
                    area_effect=self.has_area_effect,
                ).check_params()
            except ParameterError as error:
                found, _, remedy = str(error).partition("; ")
                raise _wrong(found=found, remedy=remedy) from None
        return self


class Fit(Section):
    """``fit``: how the model is trained."""

    batch_areas: Annotated[Whole, Field(ge=1)] = Field(32, description="areas in a mini-batch")
    max_epochs: Annotated[Whole, Field(ge=1)] = Field(
        300, description="passes over all areas, at most"
    )
    learning_rate: Annotated[Number, Field(gt=0, le=1)] = Field(0.05, description="Adam's step")
    tolerance: Annotated[Number, Field(gt=0)] = Field(
        0.01, description="rise of the bound, nats an area and epoch, that still is progress"
    )
    seed: Seed = Field(0, description="seed of everything random in the fit")


class Tls(Section):
    """``compute.tls``: certificates of a cluster that speaks TLS."""

    ca: InputPath = Field(description="certificate of the authority (PEM)")
    cert: InputPath = Field(description="our certificate (PEM)")
    key: InputPath = Field(description="our key (PEM)")


class Kubernetes(Section):
    """``compute.kubernetes``: workers as pods of the Dask operator."""

    image: str = Field(description="image of scheduler and workers: infra/Dockerfile, pushed")
    namespace: str = Field("default", description="namespace of the pods")
    name: str = Field("disagg", description="name of the cluster")
    timeout: Annotated[Number, Field(gt=0)] = Field(300, description="seconds the pods may take")
    env: dict[str, str] = Field(default_factory=dict, description="variables of the pods")
    pod: dict[str, Any] = Field(
        default_factory=dict, description="further keys of a worker pod's spec, such as volumes"
    )


class Gateway(Section):
    """``compute.gateway``: a cluster from a Dask Gateway server."""

    address: str = Field(description="address of the server, such as https://dask.example.org")
    proxy_address: str | None = Field(None, description="of its schedulers, where it is another")
    auth: Literal["basic", "kerberos", "jupyterhub"] | None = Field(
        None, description="how we say who we are; the gateway's configuration where not given"
    )
    timeout: Annotated[Number, Field(gt=0)] = Field(300, description="seconds the workers may take")
    options: dict[str, Any] = Field(
        default_factory=dict, description="options that the server knows, such as worker_memory"
    )


class Compute(Section):
    """``compute``: where the work is done; docs/clusters.md has an example of each."""

    scheduler: Annotated[str, BeforeValidator(_scheduler)] = Field(
        "local",
        description="'local' (threads), 'processes' of this machine, a Dask scheduler's address, "
        "'kubernetes' or 'gateway'",
    )
    tls: Tls | None = Field(None, description="certificates, for a scheduler at tls://...")
    workers: Annotated[int | Literal["auto"], BeforeValidator(_workers)] = Field(
        "auto", description="number of workers"
    )
    device: Literal["auto", "cpu", "gpu"] = Field("auto", description="what does the arithmetic")
    memory: Annotated[str, BeforeValidator(_memory)] = Field(
        "auto", description="memory of a worker, such as 8GiB"
    )
    threads: Annotated[int | Literal["auto"], BeforeValidator(_workers)] = Field(
        "auto", description="threads of a worker: blocks at a time, with one BLAS thread each"
    )
    device_memory: Annotated[str, BeforeValidator(_memory)] = Field(
        "auto", description="memory of a GPU that we may fill, such as 12GiB; auto: most of it"
    )
    wait: Annotated[Number, Field(gt=0)] = Field(
        60, description="seconds to wait for a worker where none is left"
    )
    kubernetes: Kubernetes | None = Field(None, description="for scheduler: kubernetes")
    gateway: Gateway | None = Field(None, description="for scheduler: gateway")

    @model_validator(mode="after")
    def _sections_fit(self) -> Compute:
        for name in ("kubernetes", "gateway"):
            if (getattr(self, name) is not None) != (self.scheduler == name):
                raise _wrong(
                    found=f"compute.{name} and scheduler: {name}, one without the other",
                    remedy="give both, or neither",
                )
        if self.scheduler == "local" and self.threads != "auto":
            raise _wrong(
                found="compute.threads with scheduler: local, whose threads are its workers",
                remedy="give compute.workers, or scheduler: processes",
            )
        if self.scheduler in ("kubernetes", "gateway") and self.workers == "auto":
            raise _wrong(
                found=f"scheduler: {self.scheduler} without a number of workers",
                remedy="give compute.workers: nobody can count the cores of a cluster that is "
                "not there yet",
            )
        if self.scheduler == "kubernetes" and "auto" in (self.memory, self.threads):
            raise _wrong(
                found="scheduler: kubernetes without the size of a worker",
                remedy="give compute.threads and compute.memory: pods ask for them",
            )
        if self.scheduler == "gateway" and (self.memory, self.threads) != ("auto", "auto"):
            raise _wrong(
                found="compute.memory or compute.threads with scheduler: gateway",
                remedy="give them in compute.gateway.options, by the names that the server knows",
            )
        return self


class Output(Section):
    """``output``: where the maps go and what they show."""

    dir: Annotated[Path, BeforeValidator(_local_dir), AfterValidator(_resolve_dir)] = Field(
        Path("out"), description="directory of the results, or their address (s3://bucket/map)"
    )
    url: Annotated[str | None, AfterValidator(_address)] = Field(
        None, description="address of the results; output.dir is their local copy then"
    )
    rate_per: Annotated[Number, Field(gt=0)] = Field(1000, description="people a rate is per")
    interval: Annotated[Number, Field(gt=0, lt=1)] = Field(
        0.9, description="probability that an interval holds"
    )
    exceedance: tuple[Annotated[Number, Field(ge=0)], ...] = Field(
        (), description="rates, per rate_per people, whose exceedance is mapped"
    )
    draws: Annotated[Whole, Field(ge=2)] = Field(500, description="joint draws of the area totals")
    mask: Literal["areas", "all"] = Field(
        "areas", description="map pixels inside areas only, or all with covariates"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_exceedance(cls, data: Any) -> Any:
        # A single threshold is a list of one to whoever types it.
        if isinstance(data, dict) and isinstance(data.get("exceedance"), int | float):
            return {**data, "exceedance": [data["exceedance"]]}
        return data

    @property
    def place(self) -> str:
        """Where users find the results: the address, or the local directory."""
        return self.url or str(self.dir)


class Storage(Section):
    """``storage``: how object stores are spoken to; credentials are the environment's."""

    endpoint: Annotated[str, Field(pattern=r"^https?://")] | None = Field(
        None, description="address of the store's server, where it is not the provider's own"
    )
    retries: Annotated[Whole, Field(ge=0)] = Field(
        6, description="further attempts after a failed one"
    )
    timeout: Annotated[Number, Field(gt=0)] = Field(
        60, description="seconds of silence after which an attempt has failed"
    )
    scratch: InputPath | None = Field(
        None, description="local directory of copies; ~/.cache/disagg by default"
    )

    def options(self) -> StorageOptions:
        """Return what :mod:`pipeline.storage` wants to know."""
        return StorageOptions(self.endpoint, self.retries, self.timeout, self.scratch or "")


class FoldsFile(Section):
    """``evaluate.folds`` as a file: the fold of each area."""

    path: InputPath = Field(description="table with a fold for each area")
    id: str = Field(description="column with the area's id")
    fold: str = Field(description="column with the fold")


class Evaluate(Section):
    """``evaluate``: how the run is cross-validated."""

    folds: Annotated[int | FoldsFile, BeforeValidator(_folds)] = Field(
        5, description="number of folds, or a file that names them"
    )
    schemes: tuple[Literal["area", "block"], ...] = Field(
        ("area", "block"),
        description="areas left out at random, or in spatial blocks; [] for no cross-validation",
    )
    seed: Seed = Field(0, description="seed of the folds")


class Truth(Section):
    """``truth``: of a simulated country, the rate that the counts were drawn from."""

    path: InputPath = Field(description="raster of the true rate per person")


def _work_locally(data: dict[str, Any]) -> None:
    """Give a run whose results are on an object store a local directory of its own."""
    output = data["output"]
    if not isinstance(output, dict) or not is_object_address(output.get("dir", "")):
        return
    url = str(output["dir"]).rstrip("/")
    storage = data.get("storage")
    scratch = storage.get("scratch") if isinstance(storage, dict) else None
    own = f"{url.rsplit('/', 1)[-1]}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    above = StorageOptions(scratch=str(scratch or "")).scratch_dir
    data["output"] = {**output, "url": url, "dir": str(above / "runs" / own)}


class Config(Section):
    """A whole configuration; every path in it is absolute or remote.

    Read one with `load_config`. Build one in code with ``Config.model_validate(mapping,
    context={"base": directory})``.
    """

    name: str = Field("disagg", description="name of the run, in tags and titles")
    areas: Areas = Field(description="the boundaries")
    counts: Counts | None = Field(None, description="cases for each area")
    labels: Labels | None = Field(
        None, description="for a classification model: what each area was found to be"
    )
    population: Population | None = Field(None, description="people; without it, rates are per km2")
    covariates: Annotated[dict[str, Covariate], Field(min_length=1)] = Field(
        description="at least one raster that explains the rate"
    )
    grid: GridSpec = Field(description="the grid; the population's by default")
    model: ModelSpec = Field(default_factory=ModelSpec)
    fit: Fit = Field(default_factory=Fit)
    compute: Compute = Field(default_factory=Compute)
    output: Output = Field(default_factory=Output)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    truth: Truth | None = Field(None, description="of a simulated country, its true rate")
    period: str | None = Field(
        None, description="of a time series, the period that is mapped; the latest by default"
    )
    gates: Gates = Field(default_factory=Gates)
    publish: Publish = Field(default_factory=Publish)
    update: Update = Field(default_factory=Update)
    notify: Notify = Field(default_factory=Notify)
    metrics: Metrics = Field(default_factory=Metrics)
    storage: Storage = Field(default_factory=Storage)

    _source: Path | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _defaults_from_others(cls, data: Any) -> Any:
        # Two defaults repeat what another section said, so that readers need not know that.
        if not isinstance(data, dict):
            return data
        data = dict(data)
        # Built here, and not by a default factory: only so is output.dir beside the file.
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
            raise _wrong(
                found=f"{what} given, and model.kind: {self.model.kind} learns from {wanted}",
                remedy=f"give `{wanted}: {{path: ..., value: ...}}` alone, or another model.kind",
            )
        return self

    @model_validator(mode="after")
    def _one_period(self) -> Config:
        if self.counts is not None and self.counts.period is not None:
            if self.counts.path is None:
                raise _wrong(
                    found="counts.period without counts.path",
                    remedy="give counts of several periods as a table of their own",
                )
            if self.period is None:
                raise _wrong(found="counts.period without a period", remedy="give `period: ...`")
        return self

    @model_validator(mode="after")
    def _secure(self) -> Config:
        compute = self.compute
        if (compute.tls is not None) != compute.scheduler.startswith("tls://"):
            raise _wrong(
                found="compute.tls and a scheduler at tls://..., one without the other",
                remedy="give both, or neither",
            )
        return self

    @model_validator(mode="after")
    def _tested(self) -> Config:
        if self.counts is None:
            return self
        if (self.counts.tested is not None) != (self.model.likelihood == "binomial"):
            raise _wrong(
                found="counts.tested and model.likelihood: binomial, one without the other",
                remedy="give both for positives among tested people, neither for cases",
            )
        return self

    @model_validator(mode="after")
    def _fit_fits(self) -> Config:
        from pipeline.kinds import ignored_fit_keys

        ignored = ignored_fit_keys(self) if self.model.responses == "labels" else []
        if ignored:
            raise _wrong(
                found=f"fit.{ignored[0]} is set, and {self.model.kind} has no use for it",
                remedy="leave it out",
            )
        return self

    @property
    def response(self) -> Counts | Labels:
        """The section that says what was observed of the areas: ``counts`` or ``labels``."""
        given = self.counts or self.labels
        if given is None:
            message = "a configuration without counts or labels passed its checks"
            raise RuntimeError(message)
        return given

    @property
    def source(self) -> Path | None:
        """The YAML file that this was read from."""
        return self._source

    def input_paths(self) -> dict[str, str]:
        """Every file that a run reads, by configuration key, in a fixed order."""
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


def load_config(
    path: str | Path, period: str | None = None, changes: Mapping[str, Any] | None = None
) -> Config:
    """Read a configuration file.

    Parameters
    ----------
    path : path
        The YAML file. Relative paths in it are relative to its directory; ``${NAME}`` in any
        text is the environment variable NAME.
    period : str, optional
        Of a time series, the period to map; by default the file's ``period``, or the latest.
    changes : mapping, optional
        Values to take instead of the file's: ``{"fit": {"max_epochs": 500}}``.

    Returns
    -------
    Config
        Complete, with every default filled in.

    Raises
    ------
    geo.errors.InputError
        Everything that is wrong with the file, and every local input that does not exist, at once.
    """
    from pipeline.yamlconfig import missing_files, read_config

    problems: list[Problem] = []
    config = read_config(path, problems, period, changes)
    if config is not None:
        missing_files(config, problems)
    if config is None or problems:
        raise InputError(problems)
    return config
