"""The configuration of a run in words, and how to repeat the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from geo.core.addresses import redacted, redacted_values
from pipeline.config.level_schema import COUNTS
from pipeline.config.no_spread import NO_SPREAD, without_spread
from pipeline.config.schema import Config
from pipeline.config.series import Series
from pipeline.config.years import told_people
from pipeline.core.code import installed_version, library_versions
from pipeline.levels.kept_totals import level_texts
from pipeline.reporting.words import number, percent
from pipeline.storage.fingerprint import fingerprint_value

_UNITS = ("unit", "units", "weight_unit")  # `/ 1000 people` is no path
_PLACES = ("path", "like", "dir", "url", "ca", "cert", "key", "textfile")
# They change no number, and some name servers and people.
_PRIVATE = ("compute", "storage", "publish", "update", "notify", "metrics", "check")
_MOVING = ("counts", "population", "covariates", "truth")


def what_was_asked(
    config: Config, sizes: Mapping[str, Any], scaled: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """Return what the configuration asks for: terms with their texts.

    Parameters
    ----------
    config : Config
    sizes : mapping
        ``n_areas`` and ``n_pixels`` of the fit, ``n_values`` of a series; ``shape`` and ``crs`` of
        the grid of the maps, which a model of areas alone has not.
    scaled : mapping, optional
        What the predict stage says of reconciled maps.
    """
    words = config.response_kind
    source = config.response
    given = file_name(source.path or config.areas.path)
    period = f", period {config.period}" if config.period else ""
    of = f" {sizes['n_areas']:,}"
    if config.series is not None:
        first, last = config.series.periods[0], config.series.periods[-1]
        of, period = "", f", {first} to {last}; this page maps {config.period}"
    mapped = "pixel" if sizes.get("shape") else "area"
    found = [
        ("Mapped", f"the {words.quantity} of each {mapped}{words.in_unit(', in {}')}"),
        (
            "From",
            f"the {words.given_values} of{of} areas: column “{source.value}” of {given}{period}",
        ),
        ("Areas", _areas(config)),
        ("People", _people(config)),
        (
            "Covariates",
            "; ".join(_covariate(name, each) for name, each in config.covariates.items()),
        ),
        ("Grid", _grid(config, sizes)),
        ("Model", _model(config)),
    ]
    if config.points:
        tables = (f"{each.name}: {file_name(each.path)}" for each in config.points)
        found.insert(3, ("Beside them", "; ".join(tables)))
    if words.drawn:
        found += _of_draws(config)
    totals = reconciled_to(config, scaled)
    if totals is not None:
        what = f"a second set of maps, scaled to add up to {totals}"
        found.append(("Reconciled", "; ".join([what, *(scaled or {}).get("not_kept", [])])))
    schemes = {"area": "single areas", "block": "whole regions"}
    hidden = " and ".join(schemes.get(each, each) for each in config.evaluate.schemes)
    found.append(("Checked by hiding", hidden or "nothing: evaluate.schemes is empty"))
    return found


def _of_draws(config: Config) -> list[tuple[str, str]]:
    """Return what is asked of the draws: intervals and thresholds, with what they are worth."""
    words, spread, output = config.response_kind, config.model.has_spread, config.output
    what = (
        f"central {percent(output.interval)} of the posterior; those of areas are from "
        f"{output.draws:,} joint draws"
        if spread
        else f"none: {NO_SPREAD}; only the counts that may be observed in areas have a range"
    )
    above = ", ".join(number(each) for each in output.exceedance)
    limits = without_spread(
        f"probability that the {words.quantity} is above {above}", spread=spread
    )
    return [("Intervals", what)] + [("Thresholds", limits)] * bool(above)


def reconciled_to(config: Config, scaled: Mapping[str, Any] | None = None) -> str | None:
    """Return the totals that reconciled maps add up to; None if there are no such maps.

    Parameters
    ----------
    config : Config
    scaled : mapping, optional
        What the predict stage says of them: the levels whose totals were kept. All, if not given.
    """
    spec = config.output.reconcile
    if spec is None:
        return None
    own = f"the reported {config.response_kind.totals}"
    what = own if spec.to == COUNTS else f"column “{spec.to}”"
    kept = (scaled or {}).get("kept")
    levels = list(spec.levels) if kept is None else level_texts(kept)
    if not levels:
        return f"no total: none of {what} could be kept"
    many = "level" if len(levels) == 1 else "levels"
    return f"{what} of the {many} {' and '.join(levels)}"


def _areas(config: Config) -> str:
    found = f"{file_name(config.areas.path)}, by “{config.areas.id}”"
    if config.areas.changes is not None:
        found += f"; {file_name(config.areas.changes)} says what was split, merged or renamed"
    return found


def _people(config: Config) -> str:
    """Return the files of the people, and which years lie between those of a series."""
    if config.population is None:
        return "not given: rates are per km2"
    later = config.later_people()
    found = file_name(config.population.path)
    found += "" if later is None else f" and {file_name(later[0].path)}"
    told = "" if config.series is None else told_people(config.series)
    return f"{found}; {told}" if told else found


def _covariate(name: str, covariate: Any) -> str:
    how = "" if covariate.transform == "none" else f" ({covariate.transform})"
    return f"{name.replace('_', ' ')}{how}"


def _grid(config: Config, sizes: Mapping[str, Any]) -> str:
    parts = []
    if sizes.get("shape"):
        rows, columns = sizes["shape"]
        parts.append(f"{columns:,} by {rows:,} pixels")
    if sizes.get("crs"):
        parts.append(str(sizes["crs"]))
    parts.append(f"{sizes['n_pixels']:,} pixels in the fit")
    if config.grid.like is not None:
        parts.append(f"like {file_name(config.grid.like)}")
    return ", ".join(parts)


def _model(config: Config) -> str:
    model = config.model
    text = model.kind
    if config.response_kind.given.likelihood is not None:
        text += f", {model.likelihood.replace('_', ' ')} likelihood, {model.link} link"
        text += ", with an effect of each area" if model.has_area_effect else ""
    return f"{text}; seed {config.fit.seed}"


def file_name(path: str | Path) -> str:
    """Return the name of a file or address, without the folder and without secrets."""
    text = redacted(str(path))
    return PurePosixPath(text.split("?")[0]).name or text


def configuration(config: Config) -> str:
    """Return the configuration as YAML, with names of files instead of paths."""
    dump = config.model_dump(mode="json", exclude_defaults=True, exclude=set(_PRIVATE))
    if config.series is not None and config.document is not None:
        # What moves is of every period, as it was written; settled, it is of the last one alone.
        written = config.document.written
        dump |= {name: written[name] for name in _MOVING if name in written}
    named: str = yaml.safe_dump(_named(redacted_values(dump)), sort_keys=False, allow_unicode=True)
    return named


def _named(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {key: item if key in _UNITS else _named(item, key) for key, item in value.items()}
    if isinstance(value, str) and (key in _PLACES or PurePosixPath(value).is_absolute()):
        return file_name(value)
    return [_named(item) for item in value] if isinstance(value, list) else value


def fingerprints(record: Mapping[str, Any], config: Config) -> list[tuple[str, str, str]]:
    """Return key, file and fingerprint of every input of the run, as it was read."""
    paths = config.input_paths()
    found: dict[str, str] = {}
    for entry in record.values():
        found |= {key: value for key, value in entry["inputs"].items() if key in paths}
    return [(key, file_name(paths[key]), value) for key, value in sorted(found.items())]


def versions(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the versions of the code and libraries that fitted the map, else those of now."""
    used = record.get("fit", {}).get("inputs", {})
    libraries = {
        key.removeprefix("library."): value
        for key, value in used.items()
        if key.startswith("library.")
    } or library_versions()
    code = {key: value for key, value in used.items() if key.startswith("code.")}
    told = [("code of the fit", fingerprint_value(code)[:16])] if code else []
    return [("disagg", installed_version("disagg")), *told, *libraries.items()]


def command(config: Config) -> str:
    """Return the command that repeats the run."""
    name = "CONFIG" if config.source is None else config.source.name
    return f"disagg run {name}" + (f" --period {config.period}" if config.period else "")


def periods(series: Series) -> str:
    """Return the periods of a series in words, such as "28 weeks, 2020-W35 to 2021-W11"."""
    labels, step = series.periods, series.calendar.step
    if len(labels) == 1:
        return f"one {step}, {labels[0]}"
    return f"{len(labels):,} {step}s, {labels[0]} to {labels[-1]}"


def given_values(config: Config, sizes: Mapping[str, Any]) -> str:
    """Return how many values the map is from: of areas, and of a series of how many periods."""
    series, values = config.series, config.response_kind.given_values
    if series is None:
        return f"{sizes['n_areas']:,} areas"
    n = sizes.get("n_values")
    return f"{'the' if n is None else f'{n:,}'} {values} of areas in {periods(series)}"


def citation(config: Config, sizes: Mapping[str, Any]) -> str:
    """Return how to cite the map, with the sizes of :func:`what_was_asked`."""
    period = f", {config.period}" if config.period else ""
    response = config.response_kind
    what = response.quantity + response.in_unit(", {},")
    return (
        f"{config.name}{period}: map of the {what} from {given_values(config, sizes)}, made with "
        f"disagg {installed_version('disagg')} ({config.model.kind}, seed {config.fit.seed})."
    )
