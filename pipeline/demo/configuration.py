"""The configuration of a run on a simulated country."""

from __future__ import annotations

from pipeline.demo.country_spec import LAYERS, CountrySpec


def demo_config(spec: CountrySpec, name: str, seed: int, *, labels: bool) -> str:
    """Write the configuration of a run on the simulated country."""
    covariates = []
    for covariate in spec.covariates:
        layer = LAYERS[covariate]
        more = "" if layer.transform == "none" else f", transform: {layer.transform}"
        note = "   # in the sinusoidal projection" if layer.projected else ""
        covariates.append(f"  {covariate}: {{path: {covariate}.tif{more}}}{note}")
    listed = "\n".join(covariates)
    model = "kind: vbagg, likelihood: poisson, area_effect: true, link: exp"
    # Ten fits of a whole country take hours: there only the truth scores the map, unless users ask for more.
    schemes, note = ("[area, block]", "areas left out at random, by region")
    if spec.n_area > 500:
        schemes, note = ("[]", "no cross-validation; [area, block] refits the model 10 times")
    observed = "counts:      {path: cases.csv, id: area_id, value: cases}"
    fit = "fit:         {max_epochs: 200, seed: 1}"
    output = "{dir: out, rate_per: 1000, interval: 0.9, exceedance: [50, 100], draws: 500}"
    truth = "{path: truth_rate.tif}     # cases per person, known here because it is simulated"
    if labels:
        observed = "labels:      {path: outbreaks.csv, id: area_id, value: outbreak}   # 1 or 0"
        model = "kind: pooled_gp, options: {pooling: noisy_or}"   # one high pixel is enough
        fit = "fit:         {seed: 1}"
        output = "{dir: out, interval: 0.9}"
        truth = "{path: truth_hotspot.tif}   # 1 where the risk is high: here it is simulated"
    evaluate = f"evaluate:    {{folds: 5, schemes: {schemes}, seed: 1}}   # {note}"
    return f"""\
# A country simulated by `disagg demo`, seed {seed}. Run it with: disagg run disagg.yaml
name: {name}
areas:       {{path: areas.gpkg, layer: areas, id: area_id}}
{observed}
population:  {{path: population.tif}}      # people per pixel; missing outside the country
covariates:                             # each on a grid of its own
{listed}
grid:        {{like: population.tif}}
model:       {{{model}}}
{fit}
compute:     {{scheduler: local, workers: auto, device: auto, memory: auto}}
output:      {output}
{evaluate}
truth:       {truth}
"""
