"""Compression under the real Trainer of transformers: masks, schedules, checkpoints, precision."""

import shutil

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.utils import logging

from lilliput.errors import StageError, StateError
from lilliput.integrations.transformers import CompressionCallback
from lilliput.torch import AGPPruner, Distiller, LSQQuantizer, QATQuantizer

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
]

RULES = [{"op_types": ["Linear"], "final_sparsity": 0.8, "end_epoch": 2}]
STEPS = 4  # in an epoch


@pytest.fixture(autouse=True)
def _quiet():
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
        self.seen = []

    def forward(self, x, labels=None):
        if self.training:
            self.seen.append(sparsity(self))
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8 * STEPS, 20, generator=generator)
    labels = torch.randint(0, 5, (8 * STEPS,), generator=generator)
    return [{"x": a, "labels": b} for a, b in zip(x, labels, strict=True)]


def sparsity(module):
    return round(float((module.net[0].weight == 0).float().mean()), 2)


def trainer(folder, model, callback, **options):
    settings = {"num_train_epochs": 3, "save_strategy": "no", "learning_rate": 1e-2} | options
    settings |= {"per_device_train_batch_size": 8 // settings.get("gradient_accumulation_steps", 1)}
    settings |= {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    arguments = TrainingArguments(str(folder), **settings)
    rows = data()
    return Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callback])


def weights(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


def test_the_schedule_is_followed_and_strip_leaves_a_plain_model(tmp_path):
    model = Net()
    keys = list(model.state_dict())
    callback = CompressionCallback(AGPPruner(model, RULES), strip=True)
    trainer(tmp_path, model, callback).train()
    assert model.seen == [0.0] * STEPS + [0.7] * STEPS + [0.8] * STEPS
    assert list(model.state_dict()) == keys
    assert type(model.net[0]) is nn.Linear
    assert sparsity(model) == 0.8


def test_a_pruner_without_a_model_takes_that_of_the_trainer(tmp_path):
    model = Net()
    pruner = AGPPruner(config_list=RULES)
    trainer(tmp_path, model, CompressionCallback(pruner)).train()
    assert pruner.is_wrapped
    raw = model.net[0]._parameters["weight"]
    assert int((raw == 0).sum()) == 512  # of 640: masked in place, not in forward only


@pytest.mark.parametrize(
    "stop",
    [pytest.param(STEPS, marks=pytest.mark.slow), STEPS + 2],
    ids=["after an epoch", "within an epoch"],
)
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path, stop):
    def prepare(folder):
        model = Net()
        pruner = AGPPruner(model, RULES)
        quantizer = QATQuantizer(model, [{"op_types": ["Linear"]}])
        options = {"save_strategy": "steps", "save_steps": stop, "save_total_limit": None}
        callback = CompressionCallback(pruner, quantizer)
        return model, trainer(tmp_path / folder, model, callback, **options)

    whole, run = prepare("run")
    run.train()
    for step in (2 * stop, 3 * STEPS):
        shutil.rmtree(tmp_path / "run" / f"checkpoint-{step}", ignore_errors=True)
    saved = sorted(x.name for x in (tmp_path / "run" / f"checkpoint-{stop}" / "lilliput").iterdir())
    assert saved == ["0_AGPPruner", "1_QATQuantizer"]

    model, run = prepare("run")
    run.train(resume_from_checkpoint=True)
    assert len(model.seen) == 3 * STEPS - stop
    assert_equal(weights(model), weights(whole))

    moved = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "run" / f"checkpoint-{stop}", moved)
    model, run = prepare("fresh")
    with pytest.raises(StateError, match=r"TrainingArguments\(resume_from_checkpoint=\.\.\.\)"):
        run.train(resume_from_checkpoint=str(moved))
    model, run = prepare("fresh")
    run.args.resume_from_checkpoint = str(moved)
    run.train(resume_from_checkpoint=str(moved))
    assert_equal(weights(model), weights(whole))


def test_the_state_of_another_checkpoint_is_refused(tmp_path):
    options = {"save_strategy": "steps", "save_steps": STEPS + 1, "max_steps": STEPS + 1}
    for folder, final in (("one", 0.8), ("other", 0.5)):
        model = Net()
        rules = [{"op_types": ["Linear"], "final_sparsity": final, "end_epoch": 2}]
        callback = CompressionCallback(AGPPruner(model, rules))
        trainer(tmp_path / folder, model, callback, **options).train()
    model = Net()
    run = trainer(tmp_path / "one", model, CompressionCallback(AGPPruner(model, RULES)))
    with pytest.raises(StateError, match="not that of the weights which were loaded"):
        run.train(resume_from_checkpoint=str(tmp_path / "other" / f"checkpoint-{STEPS + 1}"))


def test_the_best_checkpoint_brings_its_masks(tmp_path):
    model = Net()
    pruner = AGPPruner(model, RULES)
    options = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    run = trainer(tmp_path, model, CompressionCallback(pruner), **options)
    worse = iter([2.0, 1.0, 3.0])  # the second epoch is the best
    run.evaluate = lambda *_, **__: {"eval_loss": next(worse)}
    run.train()
    assert run.state.best_model_checkpoint.endswith(f"checkpoint-{2 * STEPS}")
    assert sparsity(model) == 0.7
    assert pruner.now_epoch == 1


def test_accumulated_gradients_and_steps_that_count_as_epochs(tmp_path):
    model = Net()
    callback = CompressionCallback(AGPPruner(model, RULES), steps_per_epoch=1)
    options = {"num_train_epochs": 1, "gradient_accumulation_steps": 2}
    trainer(tmp_path, model, callback, **options).train()
    assert model.seen == [0.0, 0.0, 0.7, 0.7, 0.8, 0.8, 0.8, 0.8]


def test_masks_hold_in_mixed_precision(tmp_path):
    model = Net()
    trainer(tmp_path, model, CompressionCallback(AGPPruner(model, RULES)), bf16=True).train()
    raw = model.net[0]._parameters["weight"]
    assert raw.dtype == torch.float32
    assert int((raw == 0).sum()) == 512


def test_learned_scales_are_trained(tmp_path):
    model = Net()
    quantizer = LSQQuantizer(model, [{"op_types": ["Linear"]}])
    run = trainer(tmp_path, model, CompressionCallback(quantizer), num_train_epochs=2)
    run.train()
    held = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    scales = [p for wrapper in quantizer.get_modules_wrapper() for p in wrapper.parameters()]
    assert scales
    assert all(id(scale) in held for scale in scales)


def test_a_bert_is_pruned_saved_and_opened_again(tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=50, intermediate_size=32, max_position_embeddings=16, **sizes)
    model = BertForSequenceClassification(config)
    tokens = torch.randint(0, 50, (16, 8))
    rows = [{"input_ids": x, "labels": x[0] % 2} for x in tokens]
    callback = CompressionCallback(AGPPruner(model, RULES), strip=True)
    run = trainer(tmp_path / "run", model, callback)
    run.train_dataset = rows
    run.train()
    model.save_pretrained(tmp_path / "small")
    opened = BertForSequenceClassification.from_pretrained(tmp_path / "small")
    assert_equal(weights(opened), weights(model))
    weight = opened.bert.encoder.layer[0].intermediate.dense.weight
    assert int((weight == 0).sum()) == round(16 * 32 * 0.8)


def test_another_model_is_refused_before_anything_happens(tmp_path):
    pruner = AGPPruner(Net(), RULES)
    with pytest.raises(StageError, match="bound to a different model"):
        trainer(tmp_path, Net(), CompressionCallback(pruner))
    assert not pruner.is_wrapped


def test_a_teacher_joins_the_loss_of_the_trainer_and_not_that_of_evaluation(tmp_path):
    config = BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        vocab_size=30,
    )
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    distiller = Distiller(model, [{"temperature": 2.0, "weight": 3.0}])
    pruner = AGPPruner(model, RULES)
    losses = []

    def compute_loss(outputs, labels, num_items_in_batch=None):
        loss = nn.functional.cross_entropy(outputs.logits, labels)
        if not distiller.has_run:
            return loss
        losses.append((loss.item(), distiller.loss()))
        return loss + losses[-1][1]

    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 30, (16, 6), generator=generator)
    rows = [{"input_ids": x, "labels": torch.tensor(i % 2)} for i, x in enumerate(tokens)]
    arguments = TrainingArguments(
        str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=8,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_strategy="no",
    )
    runner = Trainer(
        model,
        arguments,
        train_dataset=rows,
        eval_dataset=rows,
        compute_loss_func=compute_loss,
        callbacks=[CompressionCallback(distiller, pruner, strip=True)],
    )
    runner.train()
    assert len(losses) == 4
    metrics = runner.evaluate()
    with torch.no_grad():
        model.eval()
        labels = torch.arange(16) % 2
        wanted = nn.functional.cross_entropy(model(tokens).logits, labels).item()
    assert metrics["eval_loss"] == pytest.approx(wanted, rel=1e-4)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
