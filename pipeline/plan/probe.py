"""Measure this machine for a second: matrix products, and a block of the configured model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.aggregate.area_evidence import AreaEvidence
from models.aggregate.site_evidence import SiteEvidence
from models.backend.blas import one_blas_thread
from models.core.block import BLOCK_PIXELS, BagBlock, Bags
from models.core.errors import ModelError
from models.core.protocol import State, Stats
from models.gp.inducing_points import MOST_AREAS
from models.gp.kernel_model import whitened
from models.gp.sparse_gp import LONGEST_STEP
from models.temporal.periods import Period, PeriodSource
from models.temporal.profile import HeldSites, TemporalProfile
from models.temporal.series_evidence import SeriesEvidence
from models.temporal.sites import unpacked
from models.temporal.smoother import smoother_sizes
from models.training.executor import BagsSource
from models.training.few_pixels import BLOCK
from models.training.loop import Training, start_training
from pipeline.config.model_factory import new_model, resolved
from pipeline.config.schema import Config
from pipeline.plan.passes import chained, climbs, explores
from pipeline.products.areas import draw_block
from pipeline.products.products import layers

N_SIDE = 1024  # of the matrices whose product is timed
MAX_FLOPS = 4e9  # of the block that is timed: a tenth of a second
REPEATS = 3
EVALUATED, AROUND = 12, 1.5  # times that the evidence between areas is, and logarithms apart
PERIODS = 4  # of a series that are timed
DRAWN_PIXELS = 2048  # of a period, that maps and draws are timed on
TIMED_AREAS = 100  # of a series, at most: more would take a minute
ROUGH_LEFT = 1.0  # nats that sites may leave to gain, a period
NODES = 8  # sampled pixels of an area, at least those that an average has
SAMPLED = ("x", "coords", "bag", "bag_y", "pixel_weight")  # one row each for a sampled pixel


@dataclass(frozen=True)
class Probe:
    """Seconds on one core of this machine, measured; None where the model has no such thing.

    Attributes
    ----------
    flops : float
        Of a large matrix product in the model's precision, one thread, a second.
    pixel : float or None
        A pixel's part of a pass: the kernel's matrices, value and all gradients.
    update : float or None
        The driver's part of a step.
    predict : float or None
        All maps of a pixel, mixed over the draws of the hyperparameters.
    draw : float or None
        A pixel's part of the joint draws of areas.
    predict_more, draw_more : float or None
        The same of a further period that is evaluated with the first one.
    hessian : float
        The curvature of a climb, with the data held.
    n_inducing : int
        Inducing variables of the model.
    n_shared : int
        Of these, those that are not effects of areas, in a series.
    kept : float
        Numbers that the smoother of all periods of a series keeps.
    evidence : float
        The evidence between areas, or between areas and periods of a series, once.
    path : float
        A period's part of all joint draws of a series.
    step, slopes : float or None
        A pixel's part of a step of q(u), and of a pass with all gradients, whose kernel matrices
        are kept; as ``pixel`` where a fit keeps none.
    functions : float
        To draw the functions that joint draws of areas are made of.
    rate : float or None
        A pixel's part of the rates of all drawn functions; as ``draw`` where it is not known.
    averages : float
        To make a matrix of covariances between areas, of all that a chain interpolates.
    """

    flops: float
    pixel: float | None
    update: float | None
    predict: float | None
    draw: float | None
    hessian: float = 0.0
    n_inducing: int = 0
    n_shared: int = 0
    kept: float = 0.0
    evidence: float = 0.0
    path: float = 0.0
    predict_more: float | None = None
    draw_more: float | None = None
    step: float | None = None
    slopes: float | None = None
    functions: float = 0.0
    rate: float | None = None
    averages: float = 0.0

    def predicted(self, n_period: float) -> float:
        """Return the seconds of the maps of a pixel in periods that share a pass."""
        return _together(self.predict, self.predict_more, n_period)

    def drawn(self, n_period: float) -> float:
        """Return the seconds of a pixel's part of the draws of areas in such periods."""
        return _together(self.draw, self.draw_more, n_period)


def _together(one: float | None, more: float | None, n_period: float) -> float:
    if one is None or not n_period:
        return 0.0
    return one + (n_period - 1) * (one if more is None else more)


def probe(
    config: Config, mean_pixels: float, n_areas: int = 0, area_pixels: float | None = None
) -> Probe:
    """Time the configured model on made-up pixels.

    Parameters
    ----------
    config : Config
    mean_pixels : float
        Pixels of an area that the fit reads, on average.
    n_areas : int
        Areas that inducing variables follow the number of.
    area_pixels : float, optional
        All pixels of an area, on average, that draws visit; those of the fit by default.
    """
    every = mean_pixels if area_pixels is None else area_pixels
    model: Any = new_model(config)
    with one_blas_thread():
        flops = _product_rate(np.dtype(resolved(config, "precision")))
        if model.sweep == "single":
            return Probe(flops, None, None, None, None)
        try:
            if config.series is not None:
                return _probe_series(config, model, flops, mean_pixels, n_areas, every)
            return _probe_model(config, model, flops, mean_pixels, n_areas, every)
        except ModelError:  # of data that it cannot learn from; no reason to refuse a plan
            return Probe(flops, None, None, None, None)


def _probe_model(
    config: Config, model: Any, flops: float, mean_pixels: float, n_areas: int, area_pixels: float
) -> Probe:
    m: int = resolved(config, "inducing")
    most = BLOCK if climbs(model) else BLOCK_PIXELS
    n_pix = int(max(256, min(most, MAX_FLOPS / (4 * m**2))))
    n_bag = max(1, round(n_pix / mean_pixels))
    bags = _synthetic_bags(config, n_pix, n_bag, m)
    source = BagsSource(bags, 0, block_pixels=10 * n_pix, block_bags=n_bag + 2)

    class Prepared:
        """The source with a sample as large as the landmarks: nothing is clustered."""

        block_bags = source.block_bags
        read = staticmethod(source.read)
        read_ahead = staticmethod(source.read_ahead)

        @staticmethod
        def summary(rng: np.random.Generator) -> Any:
            found = source.summary(rng)
            each = {name: getattr(found, name) for name in SAMPLED}
            some = {name: own[:m] for name, own in each.items() if own is not None}
            if climbs(model):
                some |= _pixels_of_areas(found, n_areas or bags.n_bag)
            return replace(found, **some)

    training: Training = start_training(model, Prepared(), **model.loop_params("start"))
    state = training.state
    params = model.block_params(state)
    block = source.read(0)
    stats, _ = model.block_stats(params, block, None)

    def step() -> None:
        # Of other parameters, which nothing was kept for.
        now = replace(state, params=dict(state.params))
        if climbs(model):  # a natural step
            at = model.objective(now, stats, bags.n_bag, slopes=False)
            q = whitened(now.params)
            q.natural_gain(at.d_mean, at.d_cov)
            q.natural_step(at.d_mean, at.d_cov, 1.0, LONGEST_STEP)
        else:
            model.update(now, stats, bags.n_bag)
        model.block_params(now)

    found = Probe(flops, None, _fastest(step), None, None)
    if climbs(model):
        found = _with_passes(found, model, params, block)
        hessian = _fastest(lambda: SiteEvidence(model, state).hessian(), repeats=1)
        found = replace(found, hessian=hessian)
        if explores(model, n_areas):
            found = _with_evidence(config, model, state, n_areas, found)
        training.state = _with_members(model, state)
    else:
        pixel = _fastest(lambda: model.block_stats(params, block, None)) / block.n_pix
        found = replace(found, pixel=pixel)
    model.adopt(training)
    n_inducing = int(state.params["v_mean"].size) if "v_mean" in state.params else m
    n_pix = min(n_pix, max(DRAWN_PIXELS, round(area_pixels)))
    whole = _synthetic_bags(config, n_pix, max(1, round(n_pix / area_pixels) - 1), 0)
    return replace(_with_products(config, model, whole, found), n_inducing=n_inducing)


def _with_passes(found: Probe, model: Any, params: Any, block: BagBlock) -> Probe:
    """Time the passes of a climb: the first under a kernel, a step, and one with all gradients."""
    ask = [{**params, "slopes": np.array([slopes])} for slopes in (False, True)]
    first, step, slopes = list[float](), list[float](), list[float]()
    for _ in range(REPEATS):
        model.forget_kernels()
        for times, own in ((first, ask[0]), (step, ask[0]), (slopes, ask[1])):
            started = time.thread_time()
            model.block_stats(own, block, None)
            times.append((time.thread_time() - started) / block.n_pix)
    model.forget_kernels()
    made = max(min(first) - min(step), 0.0)
    return replace(found, pixel=made + min(slopes), step=min(step), slopes=min(slopes))


def _with_evidence(config: Config, model: Any, state: State, n_areas: int, found: Probe) -> Probe:
    """Time the evidence between areas, and the matrices that a chain on it interpolates."""
    bags = BagBlock.join([_synthetic_bags(config, NODES * n_areas, n_areas - 1, 0)])
    with np.errstate(all="ignore"):
        evidence = AreaEvidence(model, state, bags)
        if not evidence.usable:
            return found
        x = np.concatenate([state.params[name] for name in model.phi_names[1:]])
        # As a chain goes: each has matrices of other length-scales, made in the first round.
        near = x + np.linspace(0.0, AROUND, EVALUATED)[:, None]
        once = _fastest(lambda: [evidence.at(each) for each in near]) / EVALUATED
        new = _fastest(lambda: evidence.at(x - AROUND), repeats=1)
    return replace(found, evidence=once, averages=max(new - once, 0.0))


def _probe_series(
    config: Config, model: Any, flops: float, mean_pixels: float, n_all: int, area_pixels: float
) -> Probe:
    """Time a model of several periods on some of them, with some areas.

    The evidence of a chain is timed on all: there they are few. The smoother's work goes by its
    number of multiplications, all else of the driver by the inducing variables.
    """
    series = config.known_series
    n_period, n_areas = len(series.periods), min(n_all, TIMED_AREAS)
    few = chained(config, n_all * n_period)
    n_here = n_period if few else min(n_period, PERIODS)
    each = max(2, min(round(mean_pixels), BLOCK_PIXELS // n_areas))
    given = [
        _synthetic_bags(config, each * n_areas, n_areas - 1, 0, period) for period in range(n_here)
    ]
    times = series.times[:n_here]
    source = PeriodSource([Period(t, bags) for t, bags in zip(times, given, strict=True)], n_areas)
    start = model.init(source.summary(np.random.default_rng(0)), np.random.default_rng(0))
    blocks = {
        t: BagBlock.join([source.read(int(k)) for k in np.flatnonzero(source.block_period == t)])
        for t in range(n_here)
    }
    kept: list[Stats] = []

    def ask(periods: Any, params_of: Any, slopes: bool, take: Any) -> list[Any]:
        del slopes
        return [
            take(t, kept[t] if kept else model.block_stats(params_of(t), blocks[t], None)[0])
            for t in periods
        ]

    def profile() -> TemporalProfile:
        return TemporalProfile(model, ask, range(n_here))

    state = profile().at(start, ROUGH_LEFT * n_here, slopes=False).state
    basis, now = profile().smoothed(state)
    shared = model.shared_params(state)
    params = {t: {**shared, **basis.block_arrays(now.mean[t], now.cov[t])} for t in range(n_here)}
    pixel = _fastest(lambda: model.block_stats(params[0], blocks[0], None)) / blocks[0].n_pix
    kept += ask(list(params), params.__getitem__, True, lambda _, own: own)
    update = _fastest(lambda: profile().at(state, np.inf), repeats=2) / n_here
    space, sites = model.state_space(state), unpacked(state.params, basis.split)
    smooth = _fastest(lambda: space.smooth(sites), repeats=2) / n_here
    held, own = HeldSites(model, state), state.params
    at = float(own["mean"][0]), own["theta"], own["time"]
    n_phi = 1 + own["theta"].size + own["time"].size
    gradient = _fastest(lambda: held.gradient(*at), repeats=1) / n_here
    evidence = 0.0
    if few:  # enough for a chain on their evidence
        bags = {t: (params[t], model.with_area(params[t], block)) for t, block in blocks.items()}
        dense = SeriesEvidence(model, state, bags)
        names = ("theta", "time", *model.resolved_likelihood.parameters)
        x = np.concatenate([own[name] for name in names])
        evidence = _fastest(lambda: dense.at(x), repeats=2) if dense.usable else 0.0
    model.state_ = _with_members(model, state, profile())
    model.params_ = model.prediction_params(model.state_)
    model.history_, model.converged_ = [], True
    functions, path, moving = None, 0.0, _moving(config)
    if config.response_kind.drawn:
        started = time.thread_time()
        rng = np.random.default_rng(0)
        functions = model.sample_functions(config.output.draws, rng, list(times), moving)
        path = (time.thread_time() - started) / n_here
    models = [model.at(time, functions) for time in times[:PERIODS]]
    n_bag = int(np.clip(DRAWN_PIXELS / area_pixels, 1, n_areas - 1))
    n_pix = max(1, min(round((n_bag + 1) * area_pixels), DRAWN_PIXELS))
    whole = [
        BagBlock.join([_synthetic_bags(config, n_pix, n_bag, 0, t)]) for t in range(len(models))
    ]
    own_blocks = [
        model.with_area(params[t], whole[t]) if at.numbers_areas else whole[t]
        for t, at in enumerate(models)
    ]
    (predict, draw), (together, drawn_together) = (
        _over_times(config, model, models[:n], own_blocks[:n], times[:n], functions, moving)
        for n in (1, len(models))
    )
    split, groups = basis.split, model.groups(state)
    n_own = n_all if split.n_own else 0
    here, there = (
        min(smoother_sizes(groups, split, n, own), key=lambda way: way.work)
        for n, own in ((n_here, split.n_own), (n_period, n_own))
    )
    # Of a period, as they are and as they will be.
    longer = there.work / n_period / (here.work / n_here)
    n_value = split.n_value - split.n_own + n_own
    wider = n_value / split.n_value

    def of_driver(seconds: float, smooths: int) -> float:
        return max(seconds - smooths * smooth, 0.0) * wider + smooths * smooth * longer

    return Probe(
        flops,
        pixel,
        of_driver(update, 2),
        predict,
        draw,
        (1 + n_phi) * n_period * of_driver(gradient, 1),
        n_value,
        n_value - n_own,
        there.kept,
        evidence,
        path * wider,
        _further(predict, together, len(models)),
        _further(draw, drawn_together, len(models)),
    )


def _further(one: float | None, together: float | None, n: int) -> float | None:
    """Return what a further one takes, where one and ``n`` are known."""
    if one is None or together is None or n == 1:
        return one
    return min(max(together - one, 0.0) / (n - 1), one)


def _over_times(
    config: Config,
    model: Any,
    models: list[Any],
    blocks: list[BagBlock],
    times: Sequence[float],
    functions: Any,
    moving: list[int],
) -> tuple[float | None, float | None]:
    """Return what :func:`_products` does, of a pixel in several periods that share a pass."""
    n_pix, n = blocks[0].n_pix, max(1, blocks[0].n_pix // 2)
    wanted, predict, draw = layers(config), None, None
    joint = model.posterior_.joint_moments(list(times), moving)
    people = np.ones(n)

    def maps() -> None:
        for number, (at, block) in enumerate(zip(models, blocks, strict=True)):
            x, coords = block.x[:n], np.asarray(block.coords)[:n]
            prediction = joint.at(number, x, coords)
            for layer in wanted:
                layer.values(prediction, people, (at, x, coords))

    if "pixels" in models[0].predicts:
        predict = _fastest(maps) / n
    if functions is not None:
        among = functions.among(list(times))

        def draws() -> None:
            every = zip(models, blocks, among.counted(blocks), strict=True)
            for at, block, drawn in every:
                draw_block(at, block, drawn, (0, 0), observed=True)

        draw = _fastest(draws, repeats=2) / n_pix
    return predict, draw


def _moving(config: Config) -> list[int]:
    """Return the columns of the covariates that differ by period."""
    names = config.moving()
    return [column for column, name in enumerate(config.covariates) if name in names]


def _with_products(config: Config, model: Any, block: Any, found: Probe) -> Probe:
    """Time all maps of a pixel, drawn functions, their rates, and its part of draws of areas."""
    n = max(1, block.n_pix // 2)
    x, coords = block.x[:n], np.asarray(block.coords)[:n]
    people = np.ones(x.shape[0])
    if "pixels" in model.predicts:
        wanted = layers(config)

        def maps() -> None:
            prediction = model.predict_pixels(x, coords)
            for layer in wanted:
                layer.values(prediction, people, (model, x, coords))

        found = replace(found, predict=_fastest(maps, repeats=2) / x.shape[0])
    if not (config.response_kind.drawn and hasattr(model, "sample_functions")):
        return found
    started = time.thread_time()
    functions = model.sample_functions(config.output.draws, np.random.default_rng(0))
    made = time.thread_time() - started

    def draws() -> None:
        prediction = model.predict_bags(block, draws=functions, observed=True)
        _ = prediction.observed(np.random.default_rng(0)).draws, prediction.log_density(block.y)

    return replace(
        found,
        functions=made,
        rate=_fastest(lambda: functions.rate(x, coords), repeats=1) / x.shape[0],
        draw=_fastest(draws, repeats=2) / block.n_pix,
    )


def _pixels_of_areas(found: Any, n_areas: int) -> dict[str, Any]:
    """Return the part of a sample that places inducing variables: pixels of so many areas."""
    n_areas = min(n_areas, MOST_AREAS + 1)  # beyond, points stand for them
    n = NODES * n_areas
    rows = np.resize(np.arange(found.x.shape[0]), n)
    rng = np.random.default_rng(1)
    some = {name: getattr(found, name) for name in SAMPLED}
    some = {name: own[rows] for name, own in some.items() if own is not None}
    some["x"] = rng.standard_normal(some["x"].shape)
    each = {name: np.resize(getattr(found, name), n_areas) for name in ("y", "weight")}
    if found.trials is not None:
        each["trials"] = np.resize(found.trials, n_areas)
    return {**some, **each, "bag": np.repeat(np.arange(n_areas), NODES)}


def _with_members(model: Any, state: State, profile: Any = None) -> State:
    """Return a state as one whose hyperparameters are integrated: each draw is the optimum."""
    n = model.n_member
    if not n:
        return state
    names = ("mean", "theta", *model.resolved_likelihood.parameters, "v_mean", "root")
    if profile is not None:
        names = (*profile.names, *profile.of_q)
    members = {name: np.stack([state.params[name]] * n) for name in names if name in state.params}
    return replace(state, members={**members, "weight": np.full(n, 1 / n)})


def _synthetic_bags(
    config: Config, n_pix: int, n_bag: int, n_landmark: int, period: int = 0
) -> Bags:
    """Pixels like those of a run: as many covariates, scaled alike, some cases in each area.

    Of another period what moves is another: counts, and those covariates that differ by period.
    """
    rng, own = np.random.default_rng(0), np.random.default_rng([period, 1])
    n_pix = max(n_pix, n_landmark + n_bag)
    cuts = np.linspace(0, n_pix, n_bag + 2).astype(np.int64)
    y, trials = config.response_kind.synthetic(own.poisson(20.0, n_bag + 1).astype(np.float64))
    x = rng.standard_normal((n_pix, len(config.covariates)))
    moving = _moving(config)
    x[:, moving] = own.standard_normal((n_pix, len(moving)))
    return Bags(
        x.astype(np.float32),
        cuts,
        y,
        weight=rng.uniform(1, 20, n_pix),
        coords=rng.uniform(0, 500, (n_pix, 3)),
        trials=trials,
    )


def _product_rate(dtype: np.dtype) -> float:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((N_SIDE, N_SIDE)).astype(dtype) for _ in range(2))
    return 2.0 * N_SIDE**3 / _fastest(lambda: a @ b)


def _fastest(work: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Return the seconds of this thread in the fastest of a few runs."""
    times = []
    for _ in range(repeats):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return min(times)
