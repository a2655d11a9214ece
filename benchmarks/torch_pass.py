"""The two passes of `benchmarks.speed` by PyTorch: the same values, differentiated automatically.

An independent route to the numbers, written from the formulas, beside which the passes are timed.
PyTorch is no dependency: ``pip install torch==2.13.0``, into any environment that has the others.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import roots_hermite

from models.aggregate.moment_matching import LEAST_LOG_VARIANCE, LEAST_REST
from models.aggregate.moment_matching import N_NODE as N_OUTER
from models.core.block import BagBlock
from models.core.protocol import State
from models.gp.scaling import scaled_inputs
from models.gp.sparse_gp import JITTER
from models.likelihoods.area_effect import N_NODE as N_INNER

NEWTON = 50  # steps to the mode of an integrand, which is where its quadrature stands


def as_torch(dtype: str, n_thread: int) -> tuple[Any, Any]:
    """Return PyTorch and its type, on some threads."""
    import torch

    torch.set_num_threads(n_thread)
    return torch, {"float64": torch.float64, "float32": torch.float32}[dtype]


class _Leaves:
    """Parameters of a state, and the gradient of :meth:`value` by them."""

    leaves: dict[str, Any]

    def value(self) -> Any:
        """Return the bound."""
        raise NotImplementedError

    def objective(self) -> tuple[float, dict[str, np.ndarray]]:
        """Return value and gradients."""
        for leaf in self.leaves.values():
            leaf.grad = None
        value = self.value()
        value.backward()
        grads = {n: leaf.grad.numpy() for n, leaf in self.leaves.items() if leaf.requires_grad}
        return float(value.detach()), grads

    def _whitened(self, torch: Any, k_ww: Any) -> tuple[Any, Any, Any]:
        """Return the factors of ``K_WW`` and of ``q(v)``, and the KL divergence."""
        at, n_ind = self.leaves, k_ww.shape[0]
        lift = JITTER * torch.trace(k_ww) / n_ind
        lower = torch.linalg.cholesky(k_ww + lift * torch.eye(n_ind, dtype=k_ww.dtype))
        root = torch.tril(at["root"], -1) + torch.diag(torch.exp(torch.diagonal(at["root"])))
        log_det = 2 * torch.diagonal(at["root"]).sum()
        kl = 0.5 * ((root**2).sum() + at["v_mean"] @ at["v_mean"] - n_ind - log_det)
        return lower, root, kl


class TorchBound(_Leaves):
    """Lemma 1 (Poisson, exponential link), ARD + Matern-3/2: the whitened Cholesky form."""

    def __init__(self, bags: BagBlock, state: State, dtype: str, n_thread: int) -> None:
        self.torch, kind = torch, _ = as_torch(dtype, n_thread)
        fixed, self.n_feat = state.fixed, bags.x.shape[1]
        z = scaled_inputs(fixed, bags.x, bags.coords, np.dtype("float64"))
        self.z, self.y = torch.tensor(z, dtype=kind), torch.tensor(bags.y, dtype=kind)
        self.p = torch.tensor(bags.weight * float(fixed["base_rate"][0]), dtype=kind)
        self.bag = torch.tensor(np.repeat(np.arange(bags.n_bag), np.diff(bags.offsets)))
        self.leaves = {
            name: torch.tensor(value, dtype=kind, requires_grad=True)
            for name, value in state.params.items()
        }

    def value(self) -> Any:
        """Return the bound."""
        torch, at = self.torch, self.leaves
        lower, root, kl = self._whitened(torch, self._kernel(at["w"], at["w"]))
        a = torch.linalg.solve_triangular(lower, self._kernel(at["w"], self.z), upper=False)
        m = at["mean"] + a.T @ at["v_mean"]
        variance = torch.exp(at["theta"][0]) + torch.exp(at["theta"][self.n_feat + 1])
        s = variance - (a * a).sum(0) + ((root.T @ a) ** 2).sum(0)
        zero = torch.zeros(self.y.shape[0], dtype=m.dtype)
        low = zero.index_add(0, self.bag, self.p * torch.exp(m))
        mean = zero.index_add(0, self.bag, self.p * torch.exp(m + 0.5 * s))
        return (self.y * torch.log(low) - mean - torch.lgamma(self.y + 1)).sum() - kl

    def _kernel(self, a: Any, b: Any) -> Any:
        torch, theta, n = self.torch, self.leaves["theta"], self.n_feat
        scale = torch.exp(-theta[1 : n + 1])
        ard = torch.exp(theta[0] - 0.5 * _squares(a[:, :n] * scale, b[:, :n] * scale))
        near = torch.exp(-theta[n + 2])
        return ard + torch.exp(theta[n + 1]) * _matern32(torch, a[:, n:] * near, b[:, n:] * near)


class TorchFit(_Leaves):
    """The pass of a fit at its defaults, but for the priors.

    ``ridge + smooth + rbf + matern32(space)``, averages of areas, Poisson counts with an area
    effect, log-normal estimate, every pair of a bag. Bags have equal numbers of pixels here, few
    enough that none are left out.
    """

    def __init__(self, bags: BagBlock, state: State, n_thread: int, *, slopes: bool) -> None:
        self.torch, kind = torch, _ = as_torch("float64", n_thread)
        fixed = state.fixed
        self.slopes, self.n_feat, self.n_bag = slopes, bags.x.shape[1], bags.n_bag
        z = scaled_inputs(fixed, bags.x, bags.coords, np.dtype("float64"))
        self.z, self.y = torch.tensor(z), torch.tensor(bags.y, dtype=kind)
        p = torch.tensor(bags.weight * float(fixed["base_rate"][0]), dtype=kind)
        self.p = p.reshape(bags.n_bag, -1)
        sizes = fixed["term_values"] * fixed["term_nodes"]
        self.ends = np.concatenate([[0], np.cumsum(sizes)])
        share = fixed["node_share"][self.ends[-2] :].reshape(-1, int(fixed["term_nodes"][-1]))
        self.share = torch.tensor(share)
        self.leaves = {
            name: torch.tensor(v, dtype=kind, requires_grad=slopes or name not in ("theta", "w"))
            for name, v in state.params.items()
        }
        self.quadrature = [
            tuple(torch.tensor(each, dtype=kind) for each in roots_hermite(n))
            for n in (N_OUTER, N_INNER)
        ]
        self.kept = None if slopes else self._kernels()

    def value(self) -> Any:
        """Return the bound."""
        torch, at = self.torch, self.leaves
        k, k_ww, pairs = self.kept or self._kernels()
        lower, root, kl = self._whitened(torch, k_ww)
        a = torch.linalg.solve_triangular(lower, k.T, upper=False)
        turned = root.T @ a
        m = (at["mean"] + a.T @ at["v_mean"]).reshape(self.n_bag, -1)
        a_of, r_of = (each.T.reshape(*m.shape, -1) for each in (a, turned))
        cov = pairs - a_of @ a_of.mT + r_of @ r_of.mT
        b = self.p * torch.exp(m + 0.5 * torch.diagonal(cov, dim1=1, dim2=2))
        c = b.sum(1)
        variance = (b[:, :, None] * b[:, None, :] * torch.expm1(cov)).sum((1, 2))
        linear = ((b[:, :, None] * r_of).sum(1) ** 2).sum(1)
        return self._log_normal(c, variance, linear).sum() - kl

    def _log_normal(self, c: Any, variance: Any, linear: Any) -> Any:
        """Return each bag's part: what is linear in ``f`` outside the logarithm, the rest in it."""
        torch = self.torch
        node, weight = self.quadrature[0]
        total = torch.log1p(variance / c**2).clamp_min(2 * LEAST_LOG_VARIANCE)
        own = torch.minimum(linear / c**2, total - LEAST_REST).clamp_min(0.5 * LEAST_LOG_VARIANCE)
        rest = (total - own).clamp_min(LEAST_REST)
        tau2 = torch.exp(2 * self.leaves["log_area_sd"])
        t = torch.log(c) - 0.5 * total + torch.sqrt(2 * own) * node[:, None] - 0.5 * tau2
        each = self._poisson(t, rest + tau2)
        return (weight[:, None] / np.sqrt(np.pi) * each).sum(0)

    def _poisson(self, t: Any, variance: Any) -> Any:
        """Return ``log int Poisson(y | e^u) N(u; t, variance) du``, by quadrature at the mode."""
        torch, y = self.torch, self.y
        node, weight = self.quadrature[1]
        with torch.no_grad():  # where the quadrature stands is no part of the value
            u = t.clone()
            for _ in range(NEWTON):
                curve = torch.exp(u) + 1 / variance
                u += ((y - torch.exp(u) - (u - t) / variance) / curve).clamp(-1, 1)
            sd = 1 / torch.sqrt(torch.exp(u) + 1 / variance)
            u = u + np.sqrt(2) * sd * node[:, None, None]
        each = y * u - torch.exp(u) - torch.lgamma(y + 1) - 0.5 * (u - t) ** 2 / variance
        each = each + (torch.log(weight) + node**2)[:, None, None]
        return torch.logsumexp(each, 0) + torch.log(sd) - 0.5 * torch.log(np.pi * variance)

    def _kernels(self) -> tuple[Any, Any, Any]:
        """Return ``K``, ``K_WW`` and the prior covariances of the pairs of each bag."""
        torch, w, n = self.torch, self.leaves["w"], self.n_feat
        parts, own = [], []
        for number, (first, last) in enumerate(pairwise(self.ends.tolist())):
            nodes, by = w[first:last], [*range(n + 1), None][number]
            k, k_ww = self._term(by, self.z, nodes), self._term(by, nodes, nodes)
            if by is None:  # averages over the nodes of an area
                size = self.share.shape
                k = (k.reshape(-1, *size) * self.share).sum(2)
                k_ww = (k_ww.reshape(*size, *size) * self.share).sum(3)
                k_ww = (k_ww * self.share[:, :, None]).sum(1)
            parts.append(k)
            own.append(k_ww)
        of_bag = self.z.reshape(self.n_bag, -1, self.z.shape[1])
        pairs = sum(self._term(by, of_bag, of_bag) for by in (*range(n + 1), None))
        return torch.cat(parts, 1), torch.block_diag(*own), pairs

    def _term(self, by: int | None, a: Any, b: Any) -> Any:
        """Return the covariance of a term: 0, ridge; k, the smooth of a covariate; None, joint."""
        torch, theta, n = self.torch, self.leaves["theta"], self.n_feat
        if by == 0:
            return torch.exp(theta[0]) * a[..., :n] @ b[..., :n].mT
        if by is not None:
            at = slice(by - 1, by)
            scale = torch.exp(-theta[n + 1])
            r2 = 5 * _squares(a[..., at] * scale, b[..., at] * scale).clamp_min(1e-24)
            r = torch.sqrt(r2)
            return torch.exp(theta[by]) * (1 + r + r2 / 3) * torch.exp(-r)
        scale, near = torch.exp(-theta[n + 3]), torch.exp(-theta[n + 5])
        rbf = torch.exp(theta[n + 2] - 0.5 * _squares(a[..., :n] * scale, b[..., :n] * scale))
        space = _matern32(torch, a[..., n:] * near, b[..., n:] * near)
        return rbf + torch.exp(theta[n + 4]) * space


def _matern32(torch: Any, a: Any, b: Any) -> Any:
    r = torch.sqrt(3 * _squares(a, b).clamp_min(1e-24 if a.dtype == torch.float64 else 1e-12))
    return (1 + r) * torch.exp(-r)


def _squares(a: Any, b: Any) -> Any:
    return (a * a).sum(-1)[..., :, None] + (b * b).sum(-1)[..., None, :] - 2 * a @ b.mT
