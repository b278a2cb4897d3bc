"""Write your own quantizer with its own gradient: ternary weights.

    pip install 'lilliput[torch]' scikit-learn
    python examples/custom_quantizer.py

Ternary weights (Li et al., 2016) are -s, 0 or +s, with one s per layer: two bits instead of 32. Rounding has
no useful gradient, so the quantizer defines one: it passes straight through, except to weights that have
already left [-1, 1] and would otherwise drift away.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from lilliput.torch import QuantGrad, Quantizer

torch.manual_seed(0)
torch.set_num_threads(1)  # the model is too small for more

# -- the algorithm --------------------------------------------------------------------------------


class StayInside(QuantGrad):
    """The gradient of rounding: passed on if the weight is between -1 and 1."""

    @staticmethod
    def quant_backward(tensor, grad_output, quant_type):
        """Return the gradient with respect to the quantizer's input."""
        return grad_output * (tensor.abs() <= 1)


class TernaryQuantizer(Quantizer):
    """Quantize weights to three values; the underlying float weights are trained."""

    keeps_zero = True
    quant_grad = StayInside

    def quantize_weight(self, weight, wrapper, **kwargs):
        """Return the values -s, 0 and s closest to the weights in the least-squares sense."""
        large = weight.abs() > 0.7 * weight.abs().mean()
        scale = (weight.abs() * large).sum() / large.sum().clamp(min=1)
        return scale * weight.sign() * large


# -- data, model and training: nothing here depends on quantization -------------------------------

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels))
test, training = shuffled[:450], shuffled[450:]
model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(32 * 4 * 4, 10)),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def train(epochs):
    """Train for some epochs."""
    model.train()
    for _ in range(epochs):
        for batch in training[torch.randperm(len(training))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


def accuracy():
    """Return the accuracy on the test digits."""
    model.eval()
    with torch.no_grad():
        return float((model(images[test]).argmax(1) == labels[test]).float().mean())


train(4)
print(f"float:                     {accuracy():.2%}")
quantizer = TernaryQuantizer(model, [{"op_types": ["Conv2d", "Linear"]}], optimizer)
quantizer.compress()
print(f"three values, no training: {accuracy():.2%}")
train(4)
print(f"three values, fine-tuned:  {accuracy():.2%}")

# -- what was gained ------------------------------------------------------------------------------

weights = [wrapper.module.weight for wrapper in quantizer.get_modules_wrapper()]
print("values in each layer:", [weight.unique().numel() for weight in weights])
count = sum(weight.numel() for weight in weights)
print(f"bytes of weights: {4 * count:,} → {count // 4 + 4 * len(weights):,} at two bits each")
quantizer.export_model("digits_ternary.safetensors")  # plain weights of three values
