"""Quantize a trained model to 8-bit integers without training: 200 images and a second are enough.

    pip install 'lilliput[torch,onnx]' scikit-learn
    python examples/ptq_int8.py

Writes ``digits_ptq.onnx``, executed on integers by ONNX Runtime.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from lilliput.torch import PTQQuantizer, export_onnx, open_file, quantization_report

torch.manual_seed(0)
torch.set_num_threads(1)  # the model is too small for more

# -- the data: 1797 handwritten digits of 8 × 8 pixels --------------------------------------------

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
shuffled = torch.randperm(len(labels))
test, training = shuffled[:450], shuffled[450:]

# -- a trained model: normally you already have one -----------------------------------------------

model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(64 * 4 * 4, 10)),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
for _ in range(4):
    for batch in training[torch.randperm(len(training))].split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
model.eval()


@torch.no_grad()
def accuracy(model):
    """Return the accuracy on the test digits; an exported file is called like a model."""
    return float((model(images[test]).argmax(1) == labels[test]).float().mean())


print(f"float: {accuracy(model):.2%}")

# -- calibrate the ranges of all activations on some data -----------------------------------------

quantizer = PTQQuantizer(model, [{"op_types": ["Conv2d", "Linear"], "quant_bits": 8}])
quantizer.compress()
quantizer.calibrate(images[training[:200]].split(50))
print(f"int8, simulated: {accuracy(model):.2%}")
print(quantization_report(quantizer, images[training[:200]].split(50)))  # what each layer loses

# -- export integers, run them, and see what was gained -------------------------------------------

result = export_onnx(quantizer, "digits_ptq.onnx", images[:64])  # compared tensor by tensor
print(result)
print(f"int8, executed: {accuracy(open_file(result.path)):.2%}")
print(result.receipt)
