"""The hand-written models of the benchmark's zoo, shrunk to half of their channels and compared."""

import sys
from pathlib import Path

import pytest
import torch

from lilliput.errors import LilliputError
from lilliput.frameworks.torch.example_inputs import as_inputs
from lilliput.frameworks.torch.verify import relative_error, tensors_of
from lilliput.torch import L1NormPruner, speedup

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from zoo import ZOO

REFUSED = {
    "nn_transformer_reads_mask": "cannot be captured",
    "functional_weights": "no selected layer has channels that can be removed",
}
REFUSED_LATER = {"nn_transformer_reads_mask"}  # pruned, but its own code cannot be cut
QUICK = ("shufflenet_v1", "unet_transposed", "bilstm", "vit_fused_qkv")
OWN = sorted(name for name, entry in ZOO.items() if entry.family == "own")


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in OWN]
)
def test_the_shrunk_model_equals_the_masked_one(name):
    model, inputs = ZOO[name].build().double(), ZOO[name].inputs()
    args, kwargs = as_inputs(inputs)
    args = tuple(x.double() if x.is_floating_point() else x for x in args)
    rules = [{"op_types": ["default"], "sparsity": 0.5}]
    example = args if args else kwargs
    if name in REFUSED:
        if name in REFUSED_LATER:
            L1NormPruner(model, rules, example_inputs=example).compress()
        with pytest.raises(LilliputError, match=REFUSED[name]):
            if name in REFUSED_LATER:
                speedup(model, example)
            else:
                L1NormPruner(model, rules, example_inputs=example)
        return
    L1NormPruner(model, rules, example_inputs=example).compress()
    with torch.no_grad():
        masked = [x.clone() for x in tensors_of(model(*args, **kwargs))]
        result = speedup(model, example)
        shrunk = list(tensors_of(result.model(*args, **kwargs)))
    assert relative_error(masked, shrunk) < 1e-10
    assert result.parameters[1] < result.parameters[0]
    # What the result counts is what the model has.
    assert sum(p.numel() for p in result.model.parameters()) == result.parameters[1]
