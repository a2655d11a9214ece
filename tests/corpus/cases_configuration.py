"""The configuration: its text, its keys, its values."""

from __future__ import annotations

from typing import Any

from tests.corpus.case import Country, Error, case


def _write(text: str, *, more: bool = False) -> Any:
    def spoil(country: Country) -> None:
        own = country.config.read_text() if more else ""
        country.config.write_text(own + text)

    return spoil


_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + k)}: &{chr(98 + k)} [{','.join(['*' + chr(97 + k)] * 9)}]\n" for k in range(9)
)

for _name, _text, _found, _remedy in (
    ("empty", "", "the file is empty", "write keys and values"),
    ("a list", "- a\n- b\n", "a list, not keys", "write keys and values"),
    ("aliases that expand", _BOMB, "repeat more than 100,000 keys", "write the keys"),
    ("alias of itself", "a: &x [*x]\n", "an alias (*name) contains itself", "write the keys"),
    ("python tag", "a: !!python/object/apply:os.system [id]\n", "is not read", "remove the tag"),
    ("unknown alias", "a: *nowhere\n", "alias *nowhere has no anchor", "write &nowhere"),
    ("two documents", "---\na: b\n---\nc: d\n", "a second document begins", "keep one"),
    ("nested deeply", "[" * 3000, "nested too deeply", "write the keys"),
    ("a tab", "areas:\n\tpath: x\n", "a tab in the indentation", "indent with spaces"),
):
    case("configuration", Error("disagg.yaml", _found, _remedy), name=_name)(_write(_text))

case("configuration", Error("line 32: name", "first in line 24", "remove"), name="a key twice")(
    _write("name: again\n", more=True)
)


@case("configuration", Error("disagg.yaml line 1", "not UTF-8 text", "save it as UTF-8"))
def bytes_that_are_no_text(country: Country) -> None:
    country.config.write_bytes(b"name: \xff\xfe\n" + country.config.read_bytes())


def _set(section: str, error: Error, name: str = "", **keys: Any) -> None:
    key, value = next(iter(keys.items()))
    title = name or f"{section}.{key} {value}"
    case("configuration", error, name=title)(lambda country: country.change(section, **keys))


_set("model", Error("model.likelihood", "'poison'", "did you mean poisson?"), likelihood="poison")
_set("model", Error("model.kernel", "'matren' is not known at column 7", "matern12"),
     kernel="ard + matren(space)")  # fmt: skip
_set("model", Error("model.kernel", "is not a kernel at column 12", "write a word"),
     kernel="__import__('os').system('id')")  # fmt: skip
_set("model", Error("model.kind", "'vbag'", "did you mean vbagg?"), kind="vbag")
_set("model", Error("model.link", "'logarithm'", "choose from auto, square, exp"), link="logarithm")
_set("model", Error("model.inducing", "-8", "at least 1"), inducing=-8)
_set("fit", Error("fit.max_epoch", "unknown key", "did you mean fit.max_epochs?"), max_epoch=8)
_set("fit", Error("fit.max_epochs", "'many'", "whole number"), max_epochs="many")
_set("fit", Error("fit.learning_rate", "nan", "give a number"), learning_rate=float("nan"))
_set("output", Error("output.draws", "1000", "at most 1,000,000"), name="draws", draws=10**40)
_set("output", Error("output.interval", "90", "below 1"), interval=90)
_set("output", Error("output.exceedance", "-5", "at least 0"), exceedance=[-5])
_set("output", Error("output.dir", "UNSET_4711 is not set", "export"), dir="${UNSET_4711}/out")
_set("output", Error("output.dir", "cannot be written to", "writable"), dir="/proc/disagg-out")
_set("evaluate", Error("evaluate.folds", "10 folds of 9 areas", "9 folds at most"), folds=10)
_set("evaluate", Error("evaluate.folds", "1", "at least 2"), folds=1)
_set("counts", Error("counts", "has no column 'Cases'", "did you mean 'cases'?"), value="Cases")
_set("counts", Error("counts.path", "no file", "did you mean cases.csv?"), path="case.csv")
_set("counts", Error("counts", "is a directory", "correct the path"), path=".")
_set("counts", Error("disagg.yaml", "one without the other", "give both"), tested="cases")
_set("population", Error("population.scale", "0", "other than 0"), scale=0)
_set("population", Error("population.nodata", "'none'", "missing pixels"), nodata="none")
_set("population", Error("population.crs", "PROJ knows no", "EPSG:32738"), crs="EPSG:999999")
_set("population", Error("population.crs", "PROJ knows no", "EPSG:32738"), crs="UTM 38S")
_set("grid", Error("grid", "neither, or both", "give either"), resolution=1000)
case("configuration", Error("check.accept", "'nothing'", "choose"), name="code unknown")(
    lambda country: country.add("check: {accept: [nothing]}\n")
)


@case("configuration")
def a_covariate_of_a_strange_name(country: Country) -> None:
    country.text("wave:", '"=cmd|calc":')


@case("configuration")
def a_covariate_with_a_path_as_its_name(country: Country) -> None:
    country.text("wave:", '"../../wave":')


@case("configuration", Error("disagg.yaml line 24: name", "control characters", "one line"))
def a_name_with_control_characters(country: Country) -> None:
    country.text("name: fuzz", 'name: "a\\u001b[31m\\u202eb"')


@case("configuration", Error("model.likelihood", "'gaussian'", "normal"),
      Error("fit.seeds", "unknown", "fit.seed?"),
      Error("covariates.wave.path", "no file", "did you mean wave.tif?"))  # fmt: skip
def three_mistakes_at_once(country: Country) -> None:
    country.change("model", likelihood="gaussian")
    country.change("fit", seeds=3)
    country.covariate(path="waves.tif")
