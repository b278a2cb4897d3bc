"""Write your own pruner: the layer-adaptive score of Lee et al. (LAMP, 2021), in four lines.

    pip install 'lilliput[torch]' scikit-learn
    python examples/custom_pruner.py

A single threshold for all layers may remove every weight of a layer with small weights. LAMP divides the
square of a weight by the sum of all squares in its layer that are not smaller, so that no layer loses all
its weights: here it pays off at 95 %, where little is left. The score is all you have to write: the engine
handles selection, exact counts, masks, hooks, schedules and saving.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from lilliput.torch import LevelPruner, OneShotPruner, ScoreMasker

torch.manual_seed(0)
torch.set_num_threads(1)  # the model is too small for more

# -- the algorithm --------------------------------------------------------------------------------


class LAMPMasker(ScoreMasker):
    """Remove first the weights that contribute least to what their layer would keep."""

    def score(self, wrapper):
        """Return the importance of each weight of a layer."""
        squares = wrapper.weight.detach().flatten() ** 2
        ordered, places = squares.sort(descending=True)
        scores = torch.empty_like(squares).scatter_(0, places, ordered / ordered.cumsum(0))
        return scores.view_as(wrapper.weight)


class LAMPPruner(OneShotPruner):
    """One-shot pruning with :class:`LAMPMasker`."""

    masker_type = LAMPMasker


# -- data and a trained model: handwritten digits of 8 × 8 pixels ---------------------------------

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels))
test, training = shuffled[:450], shuffled[450:]
model = nn.Sequential(
    *(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(10):
    for batch in training[torch.randperm(len(training))].split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


@torch.no_grad()
def accuracy():
    """Return the accuracy on the test digits."""
    return float((model(images[test]).argmax(1) == labels[test]).float().mean())


# -- compared with the plain pruner, without training afterwards ----------------------------------

print(f"trained: {accuracy():.2%}")
print("sparsity  each layer alike  one threshold    LAMP   zeros of each layer in LAMP")
plain = {key: value.clone() for key, value in model.state_dict().items()}
for sparsity in (0.7, 0.8, 0.9, 0.95):
    found = []
    for kind, key in (
        (LevelPruner, "sparsity"),
        (LevelPruner, "total_sparsity"),
        (LAMPPruner, "total_sparsity"),
    ):
        pruner = kind(model, [{"op_types": ["Linear"], key: sparsity}])
        pruner.compress()
        found.append(accuracy())
        pruner.strip()
        zeros = [f"{(layer.weight == 0).float().mean():.0%}" for layer in model[::2]]
        model.load_state_dict(plain)
    each, one, lamp = found
    print(f"{sparsity:8.0%}  {each:16.2%}  {one:13.2%}  {lamp:6.2%}   {', '.join(zeros)}")
