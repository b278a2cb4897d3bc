"""SparseVDPruner: learn how uncertain each weight is, and remove those that are mostly noise.

Molchanov et al., "Variational dropout sparsifies deep neural networks", 2017. Each weight is a normal
distribution whose mean ``w`` is the weight itself and whose variance is learned along with it. Training
minimizes the loss under that noise plus a divergence that rewards noise::

    loss' = loss + beta / N * sum KL(log_alpha)          log_alpha = log sigma ** 2 - log w ** 2
    KL(a) = k1 - k1 * sigmoid(k2 + k3 * a) + 0.5 * log(1 + exp(-a))

with ``k1, k2, k3 = 0.63576, 1.87320, 1.48695`` and ``N`` training examples; ``beta`` grows from 0 to 1.
Weights with ``log_alpha`` above 3 are dropped. How many, and in which layers, is learned.

The noise is added to the output of a layer, with the variance that it has there (the local
reparametrization trick), and the divergence is applied as a gradient, added before each optimizer step: the
training loop does not change.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
>>> optimizer = torch.optim.Adam(model.parameters(), 1e-2)
>>> pruner = SparseVDPruner(
...     model, [{"op_types": ["Linear"]}], optimizer, training_epochs=20, training_examples=100
... )
>>> model = pruner.compress()
>>> for epoch in range(21):
...     pruner.update_epoch(epoch)
...     for x in torch.randn(100, 8).split(20):
...         optimizer.zero_grad()
...         (model(x) - x[:, :1]).square().mean().backward()  # seven inputs say nothing
...         optimizer.step()
>>> bool((model[0].weight == 0).any())
True
"""

from __future__ import annotations

import logging
from typing import Any

from pydantic import Field, model_validator

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.config.spec import Fraction, PruneRule
from lilliput.errors import ConfigError, Problem, StageError
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.criterion import TrainingMasker, check_counts, checked_epoch
from lilliput.pruning.learning import sigmoid
from lilliput.pruning.one_shot import OneShotPruner, ScoreMasker
from lilliput.registry import register_pruner

log = logging.getLogger("lilliput")

K1, K2, K3 = 0.63576, 1.87320, 1.48695
FIRST = -10.0  # initial log variance: almost no noise
_TINY = 1e-12  # added to the square of a weight before taking the logarithm


class SparseVDRule(PruneRule):
    """The uncertainty above which weights are dropped, or how many of the most uncertain to drop."""

    total_sparsity: Fraction | None = Field(
        None, description="Fraction of the weights of all these layers to remove."
    )
    threshold: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Weights with a larger log alpha are dropped; 3 by default.",
    )

    @model_validator(mode="after")
    def _check_one(self) -> SparseVDRule:
        given = [
            k for k in ("sparsity", "total_sparsity", "threshold") if getattr(self, k) is not None
        ]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(map(repr, given))} exclude each other; give one.")
        return self


def log_alpha(weight: Tensor, log_variance: Tensor | float) -> Tensor:
    """Return the log of the noise of each weight relative to the weight.

    Examples
    --------
    >>> import torch
    >>> log_alpha(torch.tensor([1.0, 0.1]), -2.0)
    tensor([-2.0000,  2.6052])
    """
    return log_variance - namespace(weight).log(weight * weight + _TINY)


def divergence(alpha: Tensor) -> Tensor:
    """Return the divergence of each weight from the log-uniform prior, given its log alpha.

    Examples
    --------
    >>> import torch
    >>> divergence(torch.tensor([-4.0, 0.0, 4.0]))
    tensor([2.6342, 0.4312, 0.0093])
    """
    # -log(sigmoid(a)) equals log(1 + exp(-a)) and has a finite gradient for any a.
    return K1 - K1 * sigmoid(K2 + K3 * alpha) - 0.5 * namespace(alpha).log(sigmoid(alpha))


class SparseVDMasker(TrainingMasker, ScoreMasker):
    """Score weights by their certainty, which is learned in training."""

    default_types = frozenset({"Conv1d", "Conv2d", "Conv3d", "Linear"})
    only_watches = False  # the noise starts with compress()
    training_under = "noise"
    keys = frozenset()

    def __init__(
        self,
        model: Any,
        pruner: Any,
        training_epochs: int = 0,
        training_examples: int = 0,
        warm_up_epochs: int = 5,
    ) -> None:
        super().__init__(model, pruner)
        self.training_epochs, self.training_examples = training_epochs, training_examples
        self.warm_up_epochs = warm_up_epochs
        self._handles: list[Any] = []
        self.has_trained = False

    def score(self, wrapper: Any) -> Tensor:
        """Return minus the log alpha of each weight."""
        weight = wrapper.weight
        xp = namespace(weight)
        held = getattr(wrapper, "log_variance", None)
        variance = FIRST if held is None else xp.detach(held)
        return -log_alpha(xp.widen(xp.detach(weight)), variance)

    def calc_mask(
        self, sparsity: float | None, wrapper: Any, wrapper_idx: int | None = None
    ) -> dict[str, Tensor]:
        """Return the mask of a share of the weights, or of those above the threshold."""
        if sparsity is not None:
            return super().calc_mask(sparsity, wrapper, wrapper_idx)
        certainty = self.rank(wrapper)
        xp = namespace(certainty)
        mask = xp.to_float(certainty >= -wrapper.config.get("threshold", 3.0), like=certainty)
        if not xp.count_nonzero(mask):
            log.warning(
                "SparseVDPruner: layer %r has lost all its weights; raise its threshold, or reduce the "
                "weight of the divergence with a larger training_examples.",
                wrapper.name,
            )
        return {"weight_mask": mask}

    def start(self) -> None:
        """Start adding noise to the outputs of layers in training."""
        if not self._handles and not self.is_ready():
            self._handles = self.pruner.add_noise()

    def stop(self) -> None:
        """Stop the noise."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def before_step(self) -> None:
        """Add the gradient of the divergence, with its weight in this epoch."""
        if not self._handles:
            return
        self.has_trained = True
        epoch, warm_up = int(self.pruner.now_epoch), self.warm_up_epochs
        beta = min(1.0, epoch / warm_up) if warm_up else 1.0

        def penalty(weight: Tensor, log_variance: Tensor) -> Tensor:
            xp = namespace(weight)
            found = divergence(log_alpha(xp.widen(weight), log_variance))
            return xp.sum(xp.flatten(found), axis=0) * (beta / self.training_examples)

        for wrapper in self.pruner.get_modules_wrapper():
            self.pruner.add_penalty(wrapper, ("weight", "log_variance"), penalty)


def _why_not(layer: LayerInfo) -> str:
    """Return why noise cannot be added to a layer's output, or '' if it can."""
    if layer.types.isdisjoint(SparseVDMasker.default_types):
        return "not a Conv1d, Conv2d, Conv3d or Linear"
    if layer.is_bypassed:
        return "never called as a layer"
    return "shared by several layers" if len(layer.owners) > 1 else ""


@register_pruner("sparse_vd", "SparseVD", "variational_dropout")
class SparseVDPruner(OneShotPruner):
    """Learn the noise of each weight for some epochs, then drop the weights that are mostly noise.

    Call ``update_epoch(epoch)`` at the start of each epoch, counting from 0; the masks are computed at epoch
    ``training_epochs``, and training may continue without noise. Train with Adam, from scratch or from a
    trained model; the loss must be a mean over examples. Evaluation is without noise.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`; the optimizer also trains the variances,
        without weight decay. Rules may have ``threshold`` (of log alpha, 3 by default), or the amount to
        remove: ``sparsity`` (per layer) or ``total_sparsity``.
    training_epochs : int
        Epochs to train with noise before pruning. With 0, masks are computed at ``compress()``, by magnitude.
    training_examples : int
        Number of examples per epoch; a larger number gives the divergence less weight and keeps more weights.
    warm_up_epochs : int
        Number of epochs in which the weight of the divergence grows from 0 to 1.
    """

    paper = "Molchanov et al. 2017, Variational dropout sparsifies deep neural networks"
    backends = ("torch",)
    rule = SparseVDRule

    masker_type = SparseVDMasker
    _first_epoch = 0
    needs_optimizer = True
    tracked = ("now_epoch",)
    now_epoch: int = 0
    _learns: bool = False

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        *,
        training_epochs: int = 0,
        training_examples: int = 0,
        warm_up_epochs: int = 5,
    ) -> None:
        options = {
            "training_epochs": training_epochs,
            "training_examples": training_examples,
            "warm_up_epochs": warm_up_epochs,
        }
        check_counts(0, **options)
        if training_epochs and not training_examples:
            raise ConfigError(
                "training_examples: received 0, expected the number of examples in an epoch, which scales "
                "the divergence."
            )
        self._learns = training_epochs > 0
        super().__init__(model, config_list, optimizer, options=options)

    def update_epoch(self, epoch: int) -> None:
        """Follow the training; compute masks at epoch ``training_epochs``."""
        self.now_epoch = checked_epoch(epoch)
        self._check_optimizer()
        if self.masker is not None and self.masker.has_trained and self._needs_criterion():
            self._check_learned()

    def _check_learned(self) -> None:
        """Raise if the noise of a layer is still the initial one after optimizer steps."""
        for wrapper in self.get_modules_wrapper():
            xp = namespace(wrapper.log_variance)
            if not xp.count_nonzero(wrapper.log_variance - FIRST):
                raise StageError(
                    f"layer {wrapper.name!r}: its noise was not learned, because its output had none in "
                    "training; train in model.train() mode, and exclude layers whose weight is read by other "
                    "code or that the loss does not use."
                )

    def add_noise(self) -> list[Any]:
        """Add noise to the outputs of the selected layers in training; return handles to remove it."""
        return list(self._backend.add_noise(self.get_modules_wrapper()))

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """As in the base class; also return the layers whose output cannot receive noise."""
        chosen = [decision for decision in selection.decisions if decision.is_chosen]
        problems = [
            Problem(
                f"rule {decision.rule}",
                f"layer {decision.layer.name!r} ({decision.layer.type}) is {why}, for which the noise of "
                "a weight cannot be learned; exclude it.",
            )
            for decision in chosen
            if self._learns and (why := _why_not(decision.layer))
        ]
        return [*super()._find_problems(selection), *problems]

    def _prepare(self) -> None:
        super()._prepare()
        if not self._learns:
            return
        for wrapper in self.get_modules_wrapper():
            if not hasattr(wrapper, "log_variance"):
                weight = wrapper.weight
                xp = namespace(weight)
                first = xp.zeros_like(xp.widen(xp.detach(weight))) + FIRST
                wrapper.set_attribute("log_variance", self._backend.parameter(first))

    def _sparsity_of(self, wrapper: Any) -> float | None:
        if wrapper.config.get("total_sparsity") is None:
            return wrapper.config.get("sparsity")  # type: ignore[no-any-return]
        return self._share_of(wrapper)

    def _follow_optimizer(self) -> None:
        super()._follow_optimizer()
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        """As in :class:`OneShotPruner`; also turn the variances into plain tensors, which are not trained.

        Not before the optimizer has them: its saved state has them, too.
        """
        super()._stop_if_done()
        is_added = bool(self._step_handles) or self.optimizer is None
        if self.masker is not None and not self._needs_criterion() and is_added:
            for wrapper in self.get_modules_wrapper():
                if list(wrapper.parameters()):
                    held = namespace(wrapper.log_variance).detach(wrapper.log_variance)
                    del wrapper.log_variance
                    wrapper.set_attribute("log_variance", held)

    def _after_step(self) -> None:
        """Average the variances over all processes."""
        super()._after_step()
        learned = [p for w in self.get_modules_wrapper() for p in w.parameters()]
        if learned and not self._backend.is_joining(self.bound_model):
            self._backend.average(learned)
