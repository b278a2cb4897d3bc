"""Train with simulated 8-bit integers (QAT), and run the result on integers in ONNX Runtime.

    pip install 'lilliput[torch,onnx]' scikit-learn
    python examples/qat_int8.py

Writes ``digits_int8.onnx``.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from lilliput.torch import QATQuantizer, export_onnx, measure_all, open_file, take_receipt

torch.manual_seed(0)
torch.set_num_threads(1)  # the model is too small for more

# -- the data: 1797 handwritten digits of 8 × 8 pixels --------------------------------------------

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels))
test, training = shuffled[:450], shuffled[450:]

# -- the model and its training -------------------------------------------------------------------

model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(64 * 4 * 4, 10)),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def train(epochs):
    """Train for some epochs: nothing here depends on quantization."""
    model.train()
    for _ in range(epochs):
        for batch in training[torch.randperm(len(training))].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


def accuracy(model):
    """Return the accuracy on the test digits; an exported file is called like a model."""
    model.eval()
    with torch.no_grad():
        return float((model(images[test]).argmax(1) == labels[test]).float().mean())


train(4)
example = images[:64]
export_onnx(model, "digits_float.onnx", example)

# -- quantize weights and activations, and continue training with them quantized ------------------

for group in optimizer.param_groups:
    group["lr"] = 0.002  # fine-tuning
rules = [{"op_types": ["Conv2d", "Linear"], "quant_bits": 8}]
quantizer = QATQuantizer(model, rules, optimizer, example_inputs=example)
quantizer.compress()
train(2)
print(f"int8, simulated in training: {accuracy(model):.2%}")

# -- export integers and run them -----------------------------------------------------------------

result = export_onnx(quantizer, "digits_int8.onnx", example)  # compared tensor by tensor
print(result)
print(f"int8, executed: {accuracy(open_file(result.path)):.2%}")

# -- what was gained: both files, in the same runtime ---------------------------------------------

files = ["digits_float.onnx", "digits_int8.onnx"]
print(take_receipt(*measure_all(files, example, evaluate=accuracy), metric_name="accuracy"))
