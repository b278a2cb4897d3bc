"""Compression in a loop that the real accelerate prepares: masks, accumulation, checkpoints, precision."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

from lilliput.errors import ConfigError, StageError
from lilliput.integrations.accelerate import follow
from lilliput.torch import AGPPruner, Distiller, QATQuantizer

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
]

RULES = [{"final_sparsity": 0.8, "end_epoch": 2}]


@pytest.fixture(autouse=True)
def _alone():
    """Forget the settings that accelerate keeps for the whole process."""
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


class Run:
    """A training run as one would write it, up to the loop."""

    def __init__(self, **options):
        torch.manual_seed(0)
        self.accelerator = Accelerator(cpu=True, **options)
        self.model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
        self.pruner = AGPPruner(self.model, RULES)
        self.quantizer = QATQuantizer(self.model, [{"op_types": ["Linear"]}])
        self.pruner.compress()
        self.quantizer.compress()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        x, y = torch.randn(32, 20), torch.randint(0, 5, (32,))
        loader = DataLoader(TensorDataset(x, y), batch_size=8)
        prepare = self.accelerator.prepare
        self.prepared, self.optimizer, self.loader = prepare(self.model, optimizer, loader)
        follow(self.accelerator, self.optimizer, self.pruner, self.quantizer)
        self.steps = []
        optimizer.register_step_post_hook(lambda *_: self.steps.append(self.zeros()))

    def zeros(self):
        return int((self.model[0]._parameters["weight"] == 0).sum())

    def train(self, epochs):
        for epoch in epochs:
            self.pruner.update_epoch(epoch)
            for x, y in self.loader:
                with self.accelerator.accumulate(self.prepared):
                    loss = nn.functional.cross_entropy(self.prepared(x), y)
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.optimizer.zero_grad()


def test_masks_hold_after_every_step():
    run = Run()
    run.train(range(3))
    assert run.steps[:4] == [0] * 4
    assert run.steps[-4:] == [512] * 4  # of 640


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path):
    whole = Run()
    whole.train(range(3))
    first = Run()
    first.train(range(2))
    first.accelerator.save_state(str(tmp_path))
    second = Run()
    second.accelerator.load_state(str(tmp_path))
    assert second.pruner.now_epoch == 1
    assert second.quantizer.current_step == 8
    second.train(range(2, 3))
    expected = whole.model.state_dict()
    for key, value in second.model.state_dict().items():
        assert torch.equal(value, expected[key]), key
    held = torch.load(tmp_path / "custom_checkpoint_0.pkl", weights_only=True)
    assert held["format"] == 1  # nothing but tensors and text


def test_accumulated_gradients_make_one_step():
    run = Run(gradient_accumulation_steps=2)
    run.train(range(3))
    assert len(run.steps) == 6
    assert run.quantizer.current_step == 6
    assert run.zeros() == 512


def test_masks_hold_in_mixed_precision():
    run = Run(mixed_precision="bf16")
    run.train(range(3))
    assert run.zeros() == 512
    run.quantizer.strip()
    assert run.pruner.strip() is run.model
    assert type(run.model[0]) is nn.Linear


def test_a_wrong_order_is_explained():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = AGPPruner(model, RULES)
    with pytest.raises(ConfigError, match="accelerator: received 'SGD'"):
        follow(optimizer, accelerator, pruner)
    with pytest.raises(StageError, match=r"before compress\(\) of AGPPruner"):
        follow(accelerator, optimizer, pruner)
    other = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1)
    pruner.compress()
    with pytest.raises(ConfigError, match="contains none of the weights"):
        follow(accelerator, other, pruner)


def test_a_distiller_with_a_projection_goes_on_from_a_checkpoint(tmp_path):
    def start():
        torch.manual_seed(0)
        accelerator = Accelerator(cpu=True)
        teacher = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 5))
        model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
        x = torch.randn(16, 20)
        rules = [{}, {"op_names": ["0"], "loss": "mse"}]
        distiller = Distiller(model, rules, teacher=teacher, example_inputs=x)
        distiller.compress()
        prepared, optimizer = accelerator.prepare(
            model, torch.optim.AdamW(model.parameters(), lr=1e-2)
        )
        follow(accelerator, optimizer, distiller)
        return accelerator, prepared, optimizer, distiller, x

    def train(accelerator, model, optimizer, distiller, x):
        for _ in range(3):
            optimizer.zero_grad()
            model(x)
            accelerator.backward(distiller.loss())
            optimizer.step()

    first = start()
    train(*first)
    first[0].save_state(str(tmp_path))
    train(*first)
    second = start()
    second[0].load_state(str(tmp_path))
    train(*second)
    assert torch.equal(first[3].parameters()[0], second[3].parameters()[0])
    for one, other in zip(first[1].parameters(), second[1].parameters(), strict=True):
        assert torch.equal(one, other)
