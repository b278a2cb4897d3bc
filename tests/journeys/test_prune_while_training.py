"""The journey of the README, end to end on real data and in a real runtime."""

import onnxruntime
import torch
from torch import nn

from lilliput.demo import Digits, build_model, train_epoch
from lilliput.torch import LevelPruner


def test_train_prune_finetune_export_and_execute(tmp_path):
    torch.manual_seed(0)
    data, model = Digits(), build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        train_epoch(model, optimizer, data)
    pruner = LevelPruner(model, [{"op_types": ["default"], "sparsity": 0.8}], optimizer)
    model = pruner.compress()
    for _ in range(3):
        train_epoch(model, optimizer, data)
    images, labels = data.test
    model.eval()
    masked = model(images).detach()
    assert float((masked.argmax(1) == labels).float().mean()) > 0.95

    path = tmp_path / "digits.onnx"
    pruner.export_model(
        str(tmp_path / "digits.safetensors"), onnx_path=str(path), input_shape=tuple(images.shape)
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (out,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), masked, rtol=1e-4, atol=1e-4)

    plain = pruner.strip()
    assert all(type(m) in (nn.Sequential, *nn.modules.__dict__.values()) for m in plain.modules())
    torch.testing.assert_close(plain(images), masked, rtol=0, atol=0)
    zeros = sum(int((m.weight == 0).sum()) for m in plain if isinstance(m, (nn.Conv2d, nn.Linear)))
    sizes = [m.weight.numel() for m in plain if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert zeros == sum(round(0.8 * n) for n in sizes)
