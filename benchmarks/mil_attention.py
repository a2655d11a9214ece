"""Attention models of torchmil for the multiple-instance benchmarks.

They need ``torchmil`` and PyTorch (``disagg[peers]``). Layers of 256, 128 and 64 units and steps of
one bag are those of the benchmark sets in Ilse, Tomczak and Welling (2018), whose optimiser and
rates differ by set. Here all sets have Adam with learning rate 5e-4 and weight decay 5e-3, 100
epochs, and the epoch of the lowest loss on a fifth of the training bags, which is set aside.
Features are standardised by the training instances. Nothing is searched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from models.core.block import BagBlock

LAYERS = (256, 128, 64)
DROPOUT = 0.5
LEARNING_RATE, WEIGHT_DECAY, EPOCHS = 5e-4, 5e-3, 100
SET_ASIDE = 0.2  # of the training bags, to choose the epoch


def _abmil(layers: Any, n_feat: int) -> Any:
    from torchmil.models import ABMIL

    return ABMIL((n_feat,), att_dim=LAYERS[-1], feat_ext=layers)


def _gated_abmil(layers: Any, n_feat: int) -> Any:
    from torchmil.models import ABMIL

    return ABMIL((n_feat,), att_dim=LAYERS[-1], gated=True, feat_ext=layers)


def _dsmil(layers: Any, n_feat: int) -> Any:
    from torchmil.models import DSMIL

    return DSMIL((n_feat,), att_dim=LAYERS[-1], feat_ext=layers)


ATTENTION: dict[str, tuple[str, Callable[[Any, int], Any]]] = {
    "abmil": ("attention pooling (Ilse et al. 2018), torchmil", _abmil),
    "gated_abmil": ("gated attention pooling (Ilse et al. 2018), torchmil", _gated_abmil),
    "dsmil": ("dual-stream attention (Li et al. 2021), torchmil", _dsmil),
}


def by_attention(
    make: Callable[[Any, int], Any],
) -> Callable[[BagBlock, BagBlock, int], np.ndarray]:
    """Return ``predict`` of a torchmil model, which learns one bag a step."""

    def predict(training: BagBlock, test: BagBlock, seed: int) -> np.ndarray:
        import torch

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        scaler = StandardScaler().fit(training.x)
        bags, labels = _tensors(training, scaler), torch.as_tensor(training.y, dtype=torch.float32)
        learn, aside = train_test_split(
            np.arange(len(bags)), test_size=SET_ASIDE, random_state=seed, stratify=training.y
        )
        model = make(_layers(training.x.shape[1]), training.x.shape[1])
        optimiser = torch.optim.Adam(
            model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        order = np.random.default_rng(seed)
        best, kept = np.inf, copy.deepcopy(model.state_dict())
        for _ in range(EPOCHS):
            model.train()
            for number in order.permutation(learn):
                optimiser.zero_grad()
                losses = model.compute_loss(labels[number : number + 1], bags[number])[1]
                sum(losses.values()).backward()
                optimiser.step()
            told = _probabilities(model, [bags[number] for number in aside])
            loss = -np.mean(np.log(np.where(training.y[aside] > 0, told, 1.0 - told)))
            if loss < best:
                best, kept = loss, copy.deepcopy(model.state_dict())
        model.load_state_dict(kept)
        return _probabilities(model, _tensors(test, scaler))

    return predict


def _layers(n_feat: int) -> Any:
    """Return the layers that an instance passes before it is pooled."""
    from torch import nn

    parts: list[Any] = []
    for before, width in zip((n_feat, *LAYERS), LAYERS, strict=False):
        parts += [nn.Linear(before, width), nn.ReLU(), nn.Dropout(DROPOUT)]
    return nn.Sequential(*parts)


def _tensors(bags: BagBlock, scaler: StandardScaler) -> list[Any]:
    """Return the standardised instances of each bag: (1, n_instance, n_feat)."""
    import torch

    x = torch.as_tensor(scaler.transform(bags.x), dtype=torch.float32)
    return [part[None] for part in torch.split(x, np.diff(bags.offsets).tolist())]


def _probabilities(model: Any, bags: list[Any]) -> np.ndarray:
    """Return the probability of each bag, clipped so that its log is finite."""
    import torch

    model.eval()
    with torch.no_grad():
        logits = [model.predict(bag, return_inst_pred=False) for bag in bags]
        told = torch.sigmoid(torch.cat([each.reshape(1) for each in logits])).numpy()
    return told.clip(1e-7, 1.0 - 1e-7)
