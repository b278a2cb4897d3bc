"""What the classes behind NNI's paths refuse, and how they read constructors and trainers."""

import copy

import pytest
import torch
from torch import nn

from lilliput.compat.nni import install, uninstall
from lilliput.compat.nni.classes.training import call_trainer
from lilliput.errors import ConfigError, StageError

RULES = [{"op_types": ["Linear"], "sparsity": 0.5}]


@pytest.fixture(autouse=True)
def shim():
    install()
    yield
    uninstall()


@pytest.fixture
def evaluator():
    from nni.compression import TorchEvaluator

    model = nn.Linear(4, 4)
    evaluator = TorchEvaluator(lambda *_: None, torch.optim.SGD(model.parameters(), lr=0.1))
    evaluator.model = model
    return evaluator


def test_an_evaluator_says_which_trainer_it_expects():
    from nni.compression import LightningEvaluator, TransformersEvaluator

    with pytest.raises(ConfigError, match=r"received a plain NoneType.*nni.trace\(Trainer\)"):
        LightningEvaluator(None, None)
    with pytest.raises(ConfigError, match="expected a transformers Trainer"):
        TransformersEvaluator(None)


def test_what_has_no_sense_is_refused_with_the_way_out(evaluator):
    from nni.compression.pruning import LevelPruner, TaylorPruner
    from nni.compression.pytorch.pruning import L1NormPruner
    from nni.compression.quantization import PtqQuantizer, QATQuantizer

    model, rules = evaluator.model, [{"op_types": ["Linear"], "sparse_ratio": 0.5}]
    quant = [{"op_types": ["Linear"], "target_names": ["weight"], "quant_dtype": "int8"}]
    with pytest.raises(ConfigError, match="only available for LevelPruner"):
        L1NormPruner(nn.Linear(4, 4), RULES, "balance")
    with pytest.raises(ConfigError, match="received 'NoneType', expected a pruner or quantizer"):
        LevelPruner.from_compressor(None, rules)
    with pytest.raises(StageError, match="calibration runs the evaluator's steps"):
        PtqQuantizer(model, quant, None).compress(1, None)
    with pytest.raises(StageError, match="prunes immediately"):
        LevelPruner(model, rules, evaluator).compress(10, None)
    pruner = LevelPruner(model, rules)
    with pytest.raises(StageError, match="evaluator= to from_compressor"):
        QATQuantizer.from_compressor(pruner, quant).compress(10, None)
    with pytest.raises(ConfigError, match="neither max_steps nor max_epochs"):
        TaylorPruner.from_compressor(pruner, rules, 2, evaluator=evaluator).compress()


def test_a_class_that_is_traced_stays_a_class_and_notes_its_arguments():
    import nni

    @nni.trace
    class Data:
        def __init__(self, size, *, shuffle=False):
            super(Data, self).__init__()  # noqa: UP008
            self.size, self.shuffle = size, shuffle

    class More(Data):
        pass

    made = Data(3, shuffle=True)
    assert isinstance(made, Data) and isinstance(More(1), Data)
    assert (made.trace_symbol, made.trace_args, made.trace_kwargs) == (
        Data,
        (3,),
        {"shuffle": True},
    )
    assert not hasattr(More(1), "trace_args")


def test_a_call_that_fits_no_form_is_shown_the_forms():
    from nni.compression.torch import L1FilterPruner

    with pytest.raises(ConfigError, match=r"received \(Linear, list, int\), expected \(model"):
        L1FilterPruner(nn.Linear(4, 4), RULES, 3)
    with pytest.raises(ConfigError, match="dependency_aware needs dummy_input"):
        L1FilterPruner(nn.Linear(4, 4), RULES, dependency_aware=True)


def test_a_trainer_gets_what_its_parameters_name():
    seen = []

    def by_name(model, optimizer, criterion, epoch, scheduler=None, verbose=False):
        seen.append((model, optimizer, criterion, epoch, scheduler, verbose))

    def without_epoch(net, optim, loss_fn, scheduler=None):
        seen.append((net, optim, loss_fn, scheduler))

    def other_order(model, criterion, optimizer):
        seen.append((model, criterion, optimizer))

    def keywords(model, **given):
        seen.append((model, given))

    for trainer in (by_name, without_epoch, other_order, keywords):
        call_trainer(trainer, "model", "optimizer", "criterion", 7)
    assert seen == [
        ("model", "optimizer", "criterion", 7, None, False),
        ("model", "optimizer", "criterion", None),
        ("model", "criterion", "optimizer"),
        ("model", {"optimizer": "optimizer", "criterion": "criterion", "epoch": 7}),
    ]
    with pytest.raises(ConfigError, match="'loader' has no default"):
        call_trainer(lambda model, optimizer, criterion, loader: None, "m", "o", "c", 0)


def test_masks_can_be_loaded_again_and_the_model_wrapped_again():
    from nni.compression.pruning import LevelPruner

    model = nn.Sequential(nn.Linear(4, 4))
    pruner = LevelPruner(model, RULES)
    _, masks = pruner.compress()
    pruner.unwrap_model()
    assert type(model[0]) is nn.Linear
    pruner.wrap_model()
    flipped = {"0": {"weight": 1 - masks["0"]["weight"]}}
    pruner.update_masks(flipped)
    pruner.track_forward(torch.ones(1, 4))
    assert torch.equal(pruner.get_masks()["0"]["weight"], flipped["0"]["weight"])
    assert not model[0].weight.any()


def test_the_slim_pruner_of_v3_is_another_algorithm(evaluator):
    from nni.compression.pruning import SlimPruner

    with pytest.raises(StageError, match=r"lilliput.torch.SlimPruner"):
        SlimPruner(evaluator.model, [{"op_types": ["BatchNorm2d"]}], evaluator, 100)


def zero_rows(mask):
    return (mask == 0).flatten(1).all(1).nonzero().flatten().tolist()


def test_the_mode_global_takes_a_share_of_all_weights_by_scores_as_they_are():
    from nni.compression.pytorch.pruning import L1NormPruner

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[0].weight *= 1.5
    scores = [layer.weight.detach().abs().sum(1) for layer in model]
    _, masks = L1NormPruner(model, RULES, "global").compress()
    left, gone = 48, [[], []]  # half of 32 + 64 weights
    for _, layer, row in sorted((float(x), i, j) for i in (0, 1) for j, x in enumerate(scores[i])):
        if left < (4, 8)[layer]:
            break
        left -= (4, 8)[layer]
        gone[layer].append(row)
    assert [zero_rows(masks[name]["weight"]) for name in ("0", "1")] == [sorted(x) for x in gone]
    assert gone[0] and gone[1] and len(gone[0]) != len(gone[1])


def test_global_sort_of_the_first_stack_ranks_filters_of_all_layers():
    from nni.algorithms.compression.pytorch.pruning import TaylorFOWeightFilterPruner

    def trainer(model, optimizer, criterion, epoch):
        optimizer.zero_grad()
        criterion(model(x), x[:, :8]).backward()
        scores.extend(
            (layer.weight * layer.weight.grad).square().sum(1).detach() for layer in model
        )
        optimizer.step()

    torch.manual_seed(0)
    model, x, scores = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(16, 8), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    pruner = TaylorFOWeightFilterPruner(
        model, RULES, optimizer, trainer, nn.MSELoss(), 1, global_sort=True
    )
    pruner.compress()
    lowest = torch.cat(scores).argsort()[:8].tolist()
    found = [zero_rows(wrapper.weight_mask) for wrapper in pruner.get_modules_wrapper()]
    assert found == [sorted(i for i in lowest if i < 8), sorted(i - 8 for i in lowest if i >= 8)]


def test_masks_that_were_never_calculated_are_not_handed_out(tmp_path):
    from nni.algorithms.compression.pytorch.pruning import AGPPruner, TaylorFOWeightFilterPruner
    from nni.compression.pytorch.pruning import ActivationMeanRankPruner

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    missing = "2 of 2 batches are missing for layer '0' and 1 others"
    pruner = TaylorFOWeightFilterPruner(model, RULES, optimizer, statistics_batch_num=2)
    pruner.compress()
    with pytest.raises(StageError, match=missing):
        pruner.export_model(str(tmp_path / "model.pth"), str(tmp_path / "mask.pth"))
    with pytest.raises(StageError, match=missing):
        pruner.get_masks()
    assert list(tmp_path.iterdir()) == []
    pruner._unwrap_model()
    with pytest.raises(StageError, match=missing):
        ActivationMeanRankPruner(model, RULES, None, 2).compress()
    rules = [{"op_types": ["Linear"], "final_sparsity": 0.5, "end_epoch": 1}]
    scheduled = AGPPruner(model, rules, optimizer, pruning_algorithm="taylorfo")
    scheduled.compress()
    scheduled.update_epoch(1)
    with pytest.raises(StageError, match="20 of 20 batches are missing"):
        scheduled.export_model(str(tmp_path / "model.pth"), str(tmp_path / "mask.pth"))


@pytest.mark.parametrize("name", ["L1NormPruner", "FPGMPruner"])
def test_dependent_layers_have_the_sparsity_that_was_asked_in_the_second_stack(name):
    import nni.compression.pytorch.pruning as pruning

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(8, 8, 1) for _ in range(3))

        def forward(self, x):
            return self.c(self.a(x) + self.b(x))

    torch.manual_seed(0)
    rules = [{"op_names": ["a", "b"], "sparsity": 0.75}]
    options = {"mode": "dependency_aware", "dummy_input": torch.randn(1, 8, 4, 4)}
    _, masks = getattr(pruning, name)(Sum(), rules, **options).compress()
    assert {name: float((mask["weight"] == 0).float().mean()) for name, mask in masks.items()} == {
        "a": 0.75,
        "b": 0.75,
    }
    assert zero_rows(masks["a"]["weight"]) == zero_rows(masks["b"]["weight"])


def test_an_iterative_pruner_with_nothing_to_cut_keeps_its_masks(caplog):
    from nni.compression.pytorch.pruning import AGPPruner

    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    rules = [{"op_types": ["Conv2d"], "sparsity": 0.05}]  # a fifth of a channel
    options = {"total_iteration": 2, "finetuner": lambda model: None, "speedup": True}
    pruner = AGPPruner(model, rules, "l1", dummy_input=torch.randn(2, 1, 8, 8), **options)
    small, masks = pruner.compress()
    assert small is model and masks["0"]["weight"].all()
    assert "the model is unchanged" in caplog.text


def test_a_total_sparsity_is_reached_step_by_step():
    from nni.compression.pytorch.pruning import AGPPruner

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    sizes = torch.cat([layer.weight.detach().abs().flatten() for layer in model])
    zeros = []

    def finetuner(model):
        zeros.append(sum(int((layer.weight == 0).sum()) for layer in model))

    rules = [{"total_sparsity": 0.75, "op_types": ["Linear"]}]
    AGPPruner(copy.deepcopy(model), [{**rules[0], "end_epoch": 2}], "level", 4).compress()
    AGPPruner(model, rules, "level", 4, finetuner=finetuner).compress()
    assert zeros == [round(675 * (1 - (1 - t / 4) ** 3)) for t in range(5)]
    border = sizes.sort().values[675 - 1]
    for layer, first in zip(model, sizes.split([600, 300]), strict=True):
        assert torch.equal(layer.weight.flatten() == 0, first <= border)
