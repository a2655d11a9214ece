"""What all models share: scikit-learn's conventions, and saving without pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from models.core.block import BLOCK_BAGS, refuse_missing, refuse_weightless
from models.core.errors import ParameterError
from models.core.persist import load_arrays, write_model
from models.core.protocol import Algorithm, Arrays, BagSums, State, override
from models.training.parameters import check_declared, parameter_names

if TYPE_CHECKING:
    from models.core.block import BagBlock
    from models.training.loop import Training


class Estimator:
    """Base of the models that the training loop fits; scikit-learn's conventions.

    A subclass is a keyword-only dataclass: its fields are the constructor's arguments, kept under
    their own names and never changed, and their annotations declare what values they take
    (:mod:`models.training.parameters`). Learnt attributes end in an underscore.

    Attributes
    ----------
    kind : str
        Value of ``model.kind`` in a configuration; empty for models in Python alone.
    about, source : str
        What it is and needs, and where it comes from: a line of ``disagg models``.
    responses : {"counts", "labels"}
        What a bag's ``y`` is.
    unlabelled : dict of tuples
        Of a model of labels, values of parameters under which ``y`` is no label of 0 and 1.
    predicts : tuple
        ``pixels``, ``bags``, or both.
    has_spread : bool
        Whether predictions have an uncertainty; else intervals have no width, and say nothing.
    keeps_local, saves_local : bool
        See :class:`models.core.protocol.Model`.
    on_device : bool
        Whether its blocks can be computed on a GPU.
    """

    kind: ClassVar[str] = ""
    about: ClassVar[str] = ""
    source: ClassVar[str] = ""
    responses: ClassVar[Literal["counts", "labels"]] = "counts"
    unlabelled: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    predicts: ClassVar[tuple[str, ...]] = ("pixels", "bags")
    has_spread: ClassVar[bool] = True
    keeps_local: ClassVar[bool] = False
    on_device: ClassVar[bool] = True
    saves_local: ClassVar[bool] = True

    state_: State
    history_: list[dict[str, float]]
    converged_: bool
    seed: int
    learning_rate: float
    tolerance: float
    batch_bags: int
    max_epochs: int

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments (scikit-learn)."""
        del deep
        return {name: getattr(self, name) for name in parameter_names(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Change constructor arguments (scikit-learn)."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                msg = f"{name}: not a parameter; use one of {', '.join(known)}"
                raise ParameterError(msg)
            setattr(self, name, value)
        return self

    def fit(
        self,
        bags: BagBlock,
        *,
        n_thread: int | None = None,
        device: Literal["auto", "cpu", "gpu"] = "cpu",
    ) -> Self:
        """Fit to bags in memory.

        Parameters
        ----------
        bags : Bags
        n_thread : int, optional
            Threads over blocks; all cores where not given. It does not change the result.
        device : {"cpu", "gpu", "auto"}
            What computes the blocks.

        Returns
        -------
        self
        """
        from models.training.device import block_executor, blocks_to_join, find_device, joined
        from models.training.executor import BagsSource
        from models.training.loop import start_training, train

        refuse_missing(bags)
        if self.responses == "counts":
            refuse_weightless(np.add.reduceat(bags.weight, bags.offsets[:-1]))
        # A step of all bags need not be cut finely; a small batch must be.
        fine = self.sweep == "minibatch"  # type: ignore[attr-defined]
        source = BagsSource(bags, self.seed, block_bags=BLOCK_BAGS if fine else bags.n_bag)
        found = find_device(device) if self.on_device else None
        if found is not None:
            batch = self.batch_bags if fine else None
            source = joined(source, blocks_to_join(source.block_bags, bags.n_pix, batch))
        training = start_training(self, source, **self.loop_params("start"))  # type: ignore[arg-type]
        with block_executor(self, source, n_thread or os.cpu_count() or 1, found) as executor:
            train(self, source, executor, training, **self.loop_params("train"))  # type: ignore[arg-type]
        return self.adopt(training)

    def check_params(self) -> None:
        """Raise ParameterError if a parameter has an impossible value."""
        check_declared(self)

    def loop_params(self, which: str) -> dict[str, Any]:
        """Return the arguments of ``start_training`` or ``train`` that this model sets."""
        names = {
            "start": ("seed", "learning_rate", "tolerance"),
            "train": ("seed", "learning_rate", "batch_bags", "max_epochs"),
        }[which]
        return {name: getattr(self, name) for name in names}

    def adopt(self, training: Training) -> Self:
        """Take over the result of the training loop; return self."""
        self.state_ = training.state
        self.params_ = self.prediction_params(training.state)  # a fit may be repeated
        self.history_ = list(training.history)
        self.converged_ = training.converged
        return self

    @override
    def block_params(self, state: State) -> Arrays:
        msg = f"{type(self).__name__} does not define block_params; override it"
        raise TypeError(msg)

    def prediction_params(self, state: State) -> Arrays:
        """Return ``params_``: what a block of pixels needs to be predicted."""
        return self.block_params(state)

    @override
    def needs_block(self, params: Arrays, local: Any) -> bool:
        return True

    @override
    def refinement(self, state: State, n_bag: int, sums: BagSums) -> Algorithm | None:
        return None

    def named_hyperparameters(self) -> dict[str, float]:
        """Return what was learnt besides the surface, by name."""
        self.fitted_state()
        return {}

    @property
    def bound_(self) -> float:
        """The bound at the last epoch, nats."""
        self.fitted_state()
        return self.history_[-1]["bound"]

    def fitted_state(self) -> State:
        """Return the learnt state, or raise NotFittedError."""
        if not hasattr(self, "state_"):
            from models.core.errors import NotFittedError

            msg = f"this {type(self).__name__} is not fitted; call fit first"
            raise NotFittedError(msg)
        return self.state_

    @cached_property
    def params_(self) -> Arrays:
        """Return what a block of pixels needs to be predicted; once it is asked for."""
        return self.prediction_params(self.fitted_state())

    def fitted_params(self) -> Arrays:
        """Return the block parameters, or raise NotFittedError."""
        self.fitted_state()
        return self.params_

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to the folder ``path``: ``model.json`` and ``arrays.npz``; whole or not at all."""
        state = self.fitted_state()
        meta = {
            "class": type(self).__name__,
            "parameters": self.get_params(),
            "history": self.history_,
            "converged": self.converged_,
            **self.saved_beside(),
        }
        write_model(Path(path), meta, state)

    @classmethod
    def restore(cls, path: Path, meta: dict[str, Any]) -> Self:
        """Rebuild from the folder that :meth:`save` wrote, its ``model.json`` given as ``meta``."""
        model = cls(**meta["parameters"])
        model.state_ = load_arrays(path, meta)
        model.history_, model.converged_ = meta["history"], meta["converged"]
        model.restore_beside(meta)
        return model

    def saved_beside(self) -> dict[str, Any]:
        """Return what a fit learnt besides its state, for ``model.json``."""
        return {}

    def restore_beside(self, said: dict[str, Any]) -> None:
        """Take what :meth:`saved_beside` returned; of an older file, it lacks what is new."""
