"""LevelPruner: remove the weights of smallest magnitude.

The simplest pruner: in every layer, the share ``sparsity`` of weights with the smallest
``|w|`` becomes zero (Han et al., 2015, without the threshold). Exactly ``round(n * sparsity)``
weights are removed, even if there are ties.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(20, 10), torch.nn.ReLU(), torch.nn.Linear(10, 2))
>>> model = LevelPruner(model, [{"op_types": ["Linear"], "sparsity": 0.8}]).compress()
>>> int((model[0].weight == 0).sum())
160
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lilliput.core.arguments import passes_on
from lilliput.core.checks import checked_choice
from lilliput.errors import ConfigError
from lilliput.ops.namespace import Tensor, namespace
from lilliput.pruning.criterion import CriterionArguments
from lilliput.pruning.one_shot import OneShotPruner, ScoreMasker
from lilliput.registry import register_pruner

if TYPE_CHECKING:
    from typing_extensions import Unpack


class LevelMasker(ScoreMasker):
    """Score weights by magnitude."""

    def score(self, wrapper: Any) -> Tensor:
        """Return ``|w|``."""
        weight = wrapper.weight
        return namespace(weight).abs(weight)


@register_pruner("level", "fine_grained")
class LevelPruner(OneShotPruner):
    """Prune each layer's smallest weights in one shot, to an exact sparsity.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs, groups
        See :class:`~lilliput.pruning.criterion.CriterionPruner`. Rules hold ``sparsity`` (per layer), or
        ``total_sparsity`` with ``max_sparsity_per_layer`` (ranked over all the rule's layers).
    mode : {"normal", "balance"}
        ``"balance"``: every block of a weight loses the same number of its smallest entries:
        ``sparsity`` times its size, rounded to the nearest integer.
    balance_gran : list of int, optional
        With ``"balance"``, the size of a block along the last dimensions of the weight, in the order
        (outputs, inputs, kernel); 1 along the others. ``[4]`` means 4 inputs of a row of ``Linear``.

    Examples
    --------
    >>> import torch
    >>> pruner = LevelPruner(torch.nn.Linear(8, 2), [{"sparsity": 0.5}], mode="balance", balance_gran=[4])
    >>> pruner.compress().weight.ne(0).view(2, 2, 4).sum(2)
    tensor([[2, 2],
            [2, 2]])
    """

    paper = "Han et al. 2015, Learning both weights and connections"

    masker_type = LevelMasker

    @passes_on(CriterionArguments, to=OneShotPruner)
    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        *,
        mode: str = "normal",
        balance_gran: Any = None,
        **others: Unpack[CriterionArguments],
    ) -> None:
        checked_choice("mode", mode, ("normal", "balance"))
        if mode == "balance":
            from lilliput.pruning.balance import balanced  # imported here: it needs NumPy

            self.masker_type = balanced(balance_gran)
        elif balance_gran is not None:
            raise ConfigError("balance_gran goes with mode='balance', which is missing.")
        super().__init__(model, config_list, optimizer, example_inputs, **others)
