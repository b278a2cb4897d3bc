import copy

import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError, StageError, UnsupportedModelError
from lilliput.frameworks.torch.backend import TorchBackend
from lilliput.torch import Compressor, LevelPruner, Pruner, Quantizer

RULES = [{"op_types": ["Linear"], "sparsity": 0.5}]


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))


def fingerprint(model):
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    return [type(m) for m in model.modules()], list(model.state_dict()), hooks


def test_constructing_changes_nothing_in_the_model():
    model = make_model()
    before, weights = fingerprint(model), copy.deepcopy(model.state_dict())
    LevelPruner(model, RULES, torch.optim.SGD(model.parameters(), lr=0.1))
    assert fingerprint(model) == before
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


def test_compress_returns_the_same_model_also_one_that_comes_late():
    model = make_model()
    assert LevelPruner(model, RULES).compress() is model
    other = make_model()
    assert LevelPruner(config_list=RULES).compress(other) is other
    assert torch.equal(model[0].weight, other[0].weight)


def test_compressing_twice_changes_nothing_more():
    model = make_model()
    pruner = LevelPruner(model, RULES)
    first = pruner.compress()[0].weight.detach().clone()
    assert torch.equal(pruner.compress()[0].weight, first)


def test_one_compressor_serves_one_model():
    pruner = LevelPruner(make_model(), RULES)
    with pytest.raises(StageError, match="bound to another model"):
        pruner.compress(make_model())


def test_calls_without_a_model_are_refused():
    with pytest.raises(StageError, match="has no model"):
        LevelPruner(config_list=RULES).compress()
    for call in ("strip", "state", "explain"):
        with pytest.raises(StageError):
            getattr(LevelPruner(config_list=RULES), call)()
    with pytest.raises(StageError):
        LevelPruner(config_list=RULES).export_model("x.pth")


@pytest.mark.parametrize("model", [3, object(), torch.zeros(2), nn.Linear])
def test_what_is_not_a_model_is_refused(model):
    with pytest.raises(UnsupportedModelError, match=r"expected a torch\.nn\.Module"):
        LevelPruner(model, RULES)


def test_an_algorithm_for_another_framework_is_refused():
    class OnlyKeras(LevelPruner):
        backends = ("keras",)

    with pytest.raises(UnsupportedModelError, match="OnlyKeras works on keras models"):
        OnlyKeras(make_model(), RULES)


def test_every_wrapper_gets_its_own_copy_of_an_attribute():
    pruner = LevelPruner(make_model(), RULES)
    pruner.set_wrappers_attribute("seen", [])
    pruner.set_wrappers_attribute("total", torch.zeros(2))
    first, second = pruner.get_modules_wrapper()
    first.seen.append(1)
    first.total.add_(1)
    assert second.seen == [] and torch.equal(second.total, torch.zeros(2))
    assert "total" in dict(first.named_buffers())


def test_attributes_set_before_binding_reach_the_wrappers():
    pruner = LevelPruner(config_list=RULES)
    pruner.set_wrappers_attribute("seen", [])
    pruner.compress(make_model())
    assert [w.seen for w in pruner.get_modules_wrapper()] == [[], []]


def test_collectors_see_each_forward_until_removed():
    model = make_model()
    pruner = LevelPruner(model, RULES)
    pruner.set_wrappers_attribute("seen", [])
    identifier = pruner.add_activation_collector(lambda w, i, o: w.seen.append(o.detach()))
    pruner.compress()
    out = model(torch.ones(2, 6))
    first, second = pruner.get_modules_wrapper()
    assert len(first.seen) == len(second.seen) == 1
    assert torch.equal(second.seen[0], out)
    pruner.remove_activation_collector(identifier)
    model(torch.ones(2, 6))
    assert len(first.seen) == 1
    with pytest.raises(StageError, match="no collector"):
        pruner.remove_activation_collector(identifier)


def test_the_optimizer_drives_step_and_strip_unhooks_it():
    class Counting(LevelPruner):
        steps = 0

        def step(self):
            self.steps += 1

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Counting(model, RULES, optimizer)
    pruner.compress()
    for _ in range(3):
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
    assert pruner.steps == 3
    pruner.strip()
    optimizer.step()
    assert pruner.steps == 3
    assert not optimizer._optimizer_step_post_hooks


def test_masks_follow_an_overridden_step_or_update_epoch_without_an_optimizer():
    class Growing(Pruner):
        count = 0

        def __init__(self, your_input):  # as in 2019, super() is never called
            self.your_input = your_input

        def step(self):
            self.count += 1

        def update_epoch(self, epoch):
            self.count = epoch

        def calc_mask(self, layer_info, weight):
            mask = torch.ones_like(weight)
            mask.flatten()[: self.count] = 0
            return mask

    model = nn.Linear(4, 4)
    pruner = Growing("x")
    pruner.compress(model)
    zeros = []
    for call in (pruner.step, pruner.step, lambda: pruner.update_epoch(9)):
        call()
        zeros.append(int((model.weight == 0).sum()))
    assert zeros == [1, 2, 9]


class Forwarding(torch.optim.Optimizer):
    """Only looks like an optimizer, as that of accelerate does."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups


def test_an_optimizer_around_another_one_is_refused_by_name():
    model = make_model()
    optimizer = Forwarding(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="'Forwarding', which cannot be hooked.*the one inside"):
        LevelPruner(model, RULES, optimizer).compress()


def test_an_optimizer_of_another_model_is_refused():
    optimizer = torch.optim.SGD(make_model().parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="none of the weights"):
        LevelPruner(make_model(), RULES, optimizer)
    with pytest.raises(ConfigError, match="expected a torch.optim.Optimizer"):
        LevelPruner(make_model(), RULES, optimizer="sgd")


def test_preprocess_model_may_replace_layers_before_they_are_looked_up():
    class Widening(LevelPruner):
        order = []

        def preprocess_model(self, model):
            self.order.append("preprocess")
            model[2] = nn.Linear(5, 7)

        def bind_model(self, model):
            self.order.append(("bind", [w.name for w in self.get_modules_wrapper()]))

    model = make_model()
    pruner = Widening(model, RULES)
    assert model[2].out_features == 4
    pruner.compress()
    assert model[2].out_features == 7
    assert pruner.order == ["preprocess", ("bind", ["0", "2"])]
    assert int((model[2].weight == 0).sum()) == round(35 * 0.5)


def test_an_own_validate_config_permits_own_keys():
    class Checked(Pruner):
        def validate_config(self, model, config_list):
            if "temperature" not in config_list[0]:
                raise ValueError("temperature?")

        def calc_mask(self, wrapper, wrapper_idx=None):
            return None

    pruner = Checked(make_model(), [{"op_types": ["Linear"], "temperature": 3}])
    assert pruner.get_modules_wrapper()[0].config["temperature"] == 3
    with pytest.raises(ValueError, match=r"temperature\?"):
        Checked(make_model(), [{"op_types": ["Linear"]}])


def test_a_rule_class_adds_typed_keys():
    from lilliput import PruneRule

    class WarmRule(PruneRule):
        temperature: float = 1.0

    class Warm(Pruner):
        rule = WarmRule

        def calc_mask(self, wrapper, wrapper_idx=None):
            return None

    assert Warm(make_model(), [{}]).get_modules_wrapper()[0].config["temperature"] == 1.0
    with pytest.raises(ConfigError, match="temperature"):
        Warm(make_model(), [{"temperature": "hot"}])


def test_copying_a_compressor_is_refused_with_the_way_out():
    with pytest.raises(StageError, match="copy the model"):
        copy.deepcopy(LevelPruner(make_model(), RULES))


def test_a_failing_hook_leaves_the_model_as_it_was():
    class Failing(Quantizer):
        def bind_model(self, model):
            raise RuntimeError("no")

        def quantize_weight(self, weight, wrapper, **kwargs):
            return weight

    model = make_model()
    before = fingerprint(model)
    with pytest.raises(RuntimeError, match="no"):
        Failing(model, [{"op_types": ["Linear"]}]).compress()
    assert fingerprint(model) == before


def test_an_optimizer_made_after_compress_can_be_bound():
    model = make_model()
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = LevelPruner(model, RULES, first)
    pruner.compress()
    second = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner.bind_optimizer(second)
    assert not first._optimizer_step_post_hooks and len(second._optimizer_step_post_hooks) == 1
    with pytest.raises(ConfigError, match="none of the weights"):
        pruner.bind_optimizer(torch.optim.SGD(make_model().parameters(), lr=0.1))
    assert pruner.optimizer is second


def test_tasks_patched_by_an_author_run_beside_the_engines_own():
    class Patching(LevelPruner):
        def __init__(self, model, config_list, optimizer):
            super().__init__(model, config_list, optimizer)
            self.log = []
            self.patch_optimizer(lambda: self.log.append("task"))

        def step(self):
            self.log.append("step")

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = Patching(model, RULES, optimizer)
    pruner.compress()
    pruner.compress()
    optimizer.step()
    assert pruner.log == ["task", "step"]
    pruner.strip()
    optimizer.step()
    assert len(pruner.log) == 2


def test_masks_follow_an_update_epoch_that_comes_from_a_mixin():
    class Counting:
        def update_epoch(self, epoch):
            self.count = epoch

    class Mixed(Counting, Pruner):
        count = 0

        def calc_mask(self, layer_info, weight):
            mask = torch.ones_like(weight)
            mask.flatten()[: self.count] = 0
            return mask

    model = nn.Linear(4, 4)
    pruner = Mixed(model, [{"op_types": ["Linear"]}])
    pruner.compress()
    pruner.update_epoch(5)
    assert int((model.weight == 0).sum()) == 5


def test_a_plain_compressor_only_watches():
    model = make_model()
    watcher = Compressor(model, [{"op_types": ["Linear"]}])
    seen = []
    watcher.add_activation_collector(lambda wrapper, input_, output: seen.append(wrapper.name))
    out = model(torch.ones(1, 6))
    watcher.compress()
    assert torch.equal(model(torch.ones(1, 6)), out) and seen == ["0", "2", "0", "2"]


def test_wrappers_are_in_the_mode_of_their_model():
    model = make_model().eval()
    pruner = LevelPruner(model, RULES)
    pruner.compress()
    assert not any(wrapper.training for wrapper in pruner.get_modules_wrapper())
    model.train()
    assert all(wrapper.training for wrapper in pruner.get_modules_wrapper())


@pytest.mark.parametrize("is_given_early", [True, False])
def test_the_layers_of_a_model_are_looked_up_once(monkeypatch, is_given_early):
    calls = []
    original = TorchBackend.layers
    monkeypatch.setattr(
        TorchBackend, "layers", lambda self, model: calls.append(1) or original(self, model)
    )
    model = make_model()
    pruner = LevelPruner(model if is_given_early else None, RULES)
    pruner.compress(model)
    assert len(calls) == 1


def test_a_model_that_another_compressor_changed_in_between_is_looked_up_again():
    model = make_model()
    first, second = LevelPruner(model, RULES), LevelPruner(model, RULES)
    second.compress()
    first.compress()
    assert all(w.weight_mask.min() == 0 for w in first.get_modules_wrapper())


SURFACE = """
    adapts add_activation_collector backends bind_model bind_optimizer bound_model callback
    companions compress config_list default_types explain export_model get_modules_wrapper get_wrappers
    is_wrapped kind load_state optimizer paper patch_optimizer preprocess_model
    remove_activation_collector rule selection set_wrappers_attribute state step strip
    tracked update_epoch validate_config
"""


def test_the_public_surface_is_what_users_and_authors_call():
    assert [name for name in dir(Compressor) if name[0] != "_"] == sorted(SURFACE.split())
