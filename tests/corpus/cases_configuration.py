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
    ("empty", "", "is empty", ""),
    ("a list", "- a\n- b\n", "", ""),
    ("aliases that expand", _BOMB, "", ""),
    ("alias of itself", "a: &x [*x]\n", "", ""),
    ("python tag", "a: !!python/object/apply:os.system [id]\n", "", ""),
    ("unknown alias", "a: *nowhere\n", "", ""),
    ("two documents", "---\na: b\n---\nc: d\n", "", ""),
    ("nested deeply", "[" * 3000, "", ""),
    ("a tab", "areas:\n\tpath: x\n", "", ""),
):
    case("configuration", Error("disagg.yaml", _found, _remedy), name=_name)(_write(_text))

case("configuration", Error("disagg.yaml", "'name' is given twice", ""), name="a key twice")(
    _write("name: again\n", more=True)
)


@case("configuration", Error("disagg.yaml", "", "UTF-8"))
def bytes_that_are_no_text(country: Country) -> None:
    country.config.write_bytes(b"name: \xff\xfe\n" + country.config.read_bytes())


def _set(section: str, error: Error, name: str = "", **keys: Any) -> None:
    key, value = next(iter(keys.items()))
    title = name or f"{section}.{key} {value}"
    case("configuration", error, name=title)(lambda country: country.change(section, **keys))


_set("model", Error("model.likelihood", "", "did you mean"), likelihood="poison")
_set("model", Error("model.kernel", "", "matern"), kernel="ard + matren(space)")
_set("model", Error("model.kernel", "", ""), kernel="__import__('os').system('id')")
_set("model", Error("model.kind", "", "vbagg"), kind="vbag")
_set("model", Error("model.link", "", "exp"), link="logarithm")
_set("model", Error("model.inducing", "", ""), inducing=-8)
_set("fit", Error("fit.max_epoch", "unknown key", "max_epochs"), max_epoch=8)
_set("fit", Error("fit.max_epochs", "", "whole number"), max_epochs="many")
_set("fit", Error("fit.learning_rate", "", ""), learning_rate=float("nan"))
_set("output", Error("output.draws", "", ""), draws=10**40)
_set("output", Error("output.interval", "", ""), interval=90)
_set("output", Error("output.exceedance", "", ""), exceedance=[-5])
_set("output", Error("output.dir", "", ""), dir="${UNSET_4711}/out")
_set("output", Error("output.dir", "cannot be written to", ""), dir="/proc/disagg-out")
_set("evaluate", Error("evaluate.folds", "10 folds of 9 areas", "9 folds at most"), folds=10)
_set("evaluate", Error("evaluate.folds", "", "at least 2"), folds=1)
_set("counts", Error("counts.value", "", "no column 'Cases'"), value="Cases")
_set("counts", Error("counts.path", "", "cases.csv"), path="case.csv")
_set("counts", Error("counts", "is a directory", "correct the path"), path=".")
_set("counts", Error("counts.tested and", "one without the other", "give both"), tested="cases")
_set("population", Error("population.scale", "", "other than 0"), scale=0)
_set("population", Error("population.nodata", "", "number of missing pixels"), nodata="none")
_set("population", Error("population.crs", "", "EPSG"), crs="EPSG:999999")
_set("population", Error("population.crs", "", "EPSG"), crs="UTM 38S")
_set("grid", Error("grid", "neither, or both", "give either"), resolution=1000)
case("configuration", Error("check.accept", "nothing", "choose"), name="code unknown")(
    lambda country: country.add("check: {accept: [nothing]}\n")
)


@case("configuration")
def a_covariate_of_a_strange_name(country: Country) -> None:
    country.text("wave:", '"=cmd|calc":')


@case("configuration", Error("covariates", "", ""))
def a_covariate_with_a_path_as_its_name(country: Country) -> None:
    country.text("wave:", '"../../wave":')


@case("configuration", Error("", "", ""))
def a_name_with_control_characters(country: Country) -> None:
    country.text("name: fuzz", 'name: "a\\u001b[31m\\u202eb"')


@case("configuration", Error("model.likelihood", "", ""), Error("fit.seeds", "unknown", "seed"),
      Error("covariates.wave.path", "no file", "wave.tif"))  # fmt: skip
def three_mistakes_at_once(country: Country) -> None:
    country.change("model", likelihood="gaussian")
    country.change("fit", seeds=3)
    country.covariate(path="waves.tif")
