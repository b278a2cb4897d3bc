"""The seam between pruners and criteria: one layer at a time, or all of them together."""

import torch
from torch import nn

from lilliput.registry import pruners
from lilliput.torch import AGPPruner, OneShotPruner, Pruner, WeightMasker


def model_of(count=3):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(count)))


class Alone(WeightMasker):
    """Masks as they were written before there was calc_masks."""

    def __init__(self, model, pruner):
        super().__init__(model, pruner)
        self.calls = []

    def calc_mask(self, sparsity, wrapper, wrapper_idx=None):
        self.calls.append((sparsity, wrapper.name, wrapper_idx))
        mask = torch.ones_like(wrapper.weight)
        mask[: round(4 * sparsity)] = 0
        return {"weight_mask": mask}


class AlonePruner(OneShotPruner):
    masker_type = Alone


class Together(WeightMasker):
    """All but the largest layer lose everything."""

    def calc_masks(self, targets):
        largest = max(targets, key=lambda target: target[0].weight.abs().sum().item())[0]
        return [
            (wrapper, {"weight_mask": torch.full_like(wrapper.weight, float(wrapper is largest))})
            for wrapper, _ in targets
        ]


class TogetherPruner(OneShotPruner):
    masker_type = Together


def zeros(model):
    return [int((layer.weight == 0).sum()) for layer in model]


def test_a_masker_of_single_layers_is_called_once_for_each():
    model = model_of()
    rules = [{"sparsity": 0.5}, {"op_names": ["1"], "sparsity": 0.25}]
    pruner = AlonePruner(model, rules)
    pruner.compress()
    pruner.step()
    assert pruner.masker.calls == [(0.5, "0", 0), (0.25, "1", 1), (0.5, "2", 2)]
    assert zeros(model) == [8, 4, 8]


def test_a_masker_may_look_at_all_layers_together():
    model = model_of()
    largest = max(range(3), key=lambda i: model[i].weight.abs().sum().item())
    TogetherPruner(model, [{"sparsity": 0.5}]).compress()
    assert zeros(model) == [0 if i == largest else 16 for i in range(3)]


def test_a_pruner_that_overrides_calc_mask_never_asks_the_masker():
    class Own(AlonePruner):
        def calc_mask(self, wrapper, wrapper_idx=None):
            return wrapper.weight > 0

    model = model_of()
    positive = [layer.weight.detach() > 0 for layer in model]
    pruner = Own(model, [{"sparsity": 0.5}])
    pruner.compress()
    assert pruner.masker.calls == []
    assert all(
        torch.equal(w.weight_mask == 1, p)
        for w, p in zip(pruner.get_modules_wrapper(), positive, strict=False)
    )


def test_a_pruner_with_a_constructor_of_its_own_needs_no_masker():
    class Bare(OneShotPruner):
        def __init__(self, model, config_list):
            Pruner.__init__(self, model, config_list)

        def calc_mask(self, wrapper, wrapper_idx=None):
            return wrapper.weight > 0

    model = model_of()
    pruner = Bare(model, [{"sparsity": 0.5}])
    pruner.compress()
    assert min(zeros(model)) > 0
    pruner.strip()


def test_schedules_ask_any_masker(monkeypatch):
    monkeypatch.setitem(pruners._classes, "together", TogetherPruner)
    monkeypatch.setitem(pruners._aliases, "together", "together")
    model = model_of()
    pruner = AGPPruner(model, [{"final_sparsity": 0.5, "end_epoch": 1}], None, "together")
    pruner.compress()
    assert zeros(model) == [0, 0, 0]
    pruner.update_epoch(1)
    assert sorted(zeros(model)) == [0, 16, 16]


def test_asking_outside_of_an_update_changes_nothing():
    model = model_of()
    pruner = AlonePruner(model, [{"sparsity": 0.5}])
    wrapper = pruner.get_modules_wrapper()[0]
    first = pruner.masker.calc_masks(pruner.targets())
    assert [w.name for w, _ in first] == ["0", "1", "2"]
    assert zeros(model) == [0, 0, 0]
    assert wrapper.if_calculated is False
