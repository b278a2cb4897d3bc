import copy
import json
import math

import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError, StageError, StateError
from lilliput.pruning.sensitivity_files import read_curves, write_curves
from lilliput.torch import LevelPruner, SensitivityAnalysis


class Net(nn.Module):
    """One of each: Embedding, Conv1d, batch norm and Linear."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 6)
        self.conv = nn.Conv1d(6, 8, 3)
        self.norm = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.fc(self.norm(self.conv(self.embed(tokens).transpose(1, 2))).mean(2))


TOKENS = torch.arange(20).reshape(4, 5) % 10


def val_func(model):
    return model(TOKENS).sum().item()


def scan(model=None, func=val_func, **settings):
    settings = {"prune_type": "level", "sparsities": [0.25, 0.5], **settings}
    return SensitivityAnalysis(Net().eval() if model is None else model, func, **settings)


def test_every_metric_is_that_of_the_model_with_this_layer_pruned():
    found = scan().analysis()
    assert list(found) == ["embed", "conv", "fc"]
    for layer, curve in found.items():
        for sparsity, metric in curve.items():
            model = Net().eval()
            LevelPruner(model, [{"op_names": [layer], "sparsity": sparsity}]).compress()
            assert metric == val_func(model)


def test_the_default_sparsities_are_those_of_nni():
    model = nn.Linear(10, 10)
    analysis = SensitivityAnalysis(model, lambda model: 1.0, prune_type="level")
    assert list(analysis.analysis()["weight"]) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def messy(model):
    """An evaluator that forgets eval(), so that statistics move, and tampers with weights."""
    model.train()
    value = model(TOKENS).sum().item()
    with torch.no_grad():
        model.fc.bias.add_(1)
    return value


def raising(model):
    if (model.conv.weight == 0).any():
        raise RuntimeError("out of memory")
    return messy(model)


@pytest.mark.parametrize("func", [messy, raising])
def test_model_modes_and_optimizer_are_restored_bit_by_bit(func):
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    model(TOKENS).sum().backward()
    optimizer.step()
    model.norm.eval()
    parameters = list(model.parameters())
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    modes = [module.training for module in model.modules()]
    if func is raising:
        with pytest.raises(RuntimeError, match="out of memory"):
            scan(model, func).analysis()
    else:
        scan(model, func).analysis()
    for saved, now in zip(before, (model.state_dict(), optimizer.state_dict()), strict=True):
        torch.testing.assert_close(now, saved, rtol=0, atol=0, equal_nan=True)
    assert [module.training for module in model.modules()] == modes
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert type(model.conv) is nn.Conv1d
    assert not model.conv._forward_hooks


def test_the_config_list_selects_and_excludes():
    rules = [
        {"op_types": ["Conv1d", "Linear"], "sparsity": 0.5},
        {"op_names": ["fc"], "exclude": True},
    ]
    assert list(scan(config_list=rules).analysis()) == ["conv"]


def test_specified_layers_are_scanned_and_unknown_ones_named():
    analysis = scan()
    assert list(analysis.analysis(specified_layers=["fc"])) == ["fc"]
    with pytest.raises(ConfigError, match="'cnov' is not among .* Did you mean 'conv'"):
        analysis.analysis(specified_layers=["cnov"])


def test_sparsity_is_relative_to_what_remains():
    model = Net()
    counts = []
    analysis = scan(model, lambda m: counts.append(int((m.fc.weight == 0).sum())) or 0.0)
    LevelPruner(model, [{"op_names": ["fc"], "sparsity": 0.5}]).compress()
    analysis.update_already_pruned("fc", 0.5)
    analysis.analysis(specified_layers=["fc"])
    assert counts == [12, 15, 18]
    with pytest.raises(ConfigError, match=r"received 1.5, expected \[0, 1\)"):
        analysis.update_already_pruned("fc", 1.5)


@pytest.mark.parametrize(
    ("mode", "value", "count"),
    [
        ("minimize", 0.6, 5),
        ("dropped", 0.4, 5),
        ("maximize", 0.6, 1),
        ("raised", -0.4, 5),
        (None, None, 9),
    ],
)
def test_the_scan_of_a_layer_stops_beyond_the_limit(mode, value, count):
    model = nn.Linear(10, 10)
    sign = -1 if mode == "raised" else 1
    analysis = SensitivityAnalysis(
        model,
        lambda m: sign * float((m.weight != 0).float().mean()),
        prune_type="level",
        early_stop_mode=mode,
        early_stop_value=abs(value) if mode == "raised" else value,
    )
    assert len(analysis.analysis()["weight"]) == count


@pytest.mark.parametrize("metric", [math.nan, math.inf])
def test_a_metric_that_is_no_number_ends_a_scan_and_survives_files(metric, tmp_path):
    model = nn.Linear(10, 10)

    def func(m):
        return 1.0 if (m.weight == 0).float().mean() < 0.45 else -metric

    def run():
        return SensitivityAnalysis(
            model, func, None, "level", "dropped", 0.1, checkpoint_dir=tmp_path
        )

    first = run()
    first.analysis()
    assert list(first.sensitivities["weight"]) == [0.1, 0.2, 0.3, 0.4, 0.5]
    again = run()
    assert math.isnan(again.analysis()["weight"][0.5])
    again.plot(tmp_path / "curves.svg")


def test_a_baseline_that_is_no_number_is_refused():
    with pytest.raises(AlgorithmError, match="returned nan for the unpruned model"):
        scan(func=lambda model: math.nan).analysis()
    with pytest.raises(AlgorithmError, match=r"<lambda> returned 'good', expected a number"):
        scan(func=lambda model: "good").analysis()


def test_the_model_comes_first_or_where_nni_put_it():
    model = Net()
    calls = []

    def func(*args, **kwargs):
        calls.append((args, kwargs))
        return 0.0

    analysis = scan(model, func, sparsities=[0.5])
    analysis.analysis(val_args=[1], val_kwargs={"k": 2}, specified_layers=["fc"])
    analysis.analysis(val_args=[model], specified_layers=["fc"])
    analysis.analysis(val_kwargs={"net": model}, specified_layers=["fc"])
    expected = [((model, 1), {"k": 2})] * 2 + [((model,), {})] * 2 + [((), {"net": model})] * 2
    assert calls == expected
    assert scan(model, lambda: 2.0).analysis()["fc"] == {0.25: 2.0, 0.5: 2.0}


def test_csv_is_that_of_nni(tmp_path):
    analysis = scan(early_stop_mode="minimize", early_stop_value=1e9)
    analysis.analysis()
    analysis.export(tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "layername,0.25,0.5"
    assert [line.count(",") for line in lines[1:]] == [1, 1, 1]  # short rows
    assert read_curves(tmp_path / "out.csv") == analysis.sensitivities


@pytest.mark.parametrize(
    "text", ["", "layer,0.1\nfc,1", "layername,x\nfc,1", "layername,0.1\nfc,1,2"]
)
def test_other_tables_are_refused(text, tmp_path):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(ConfigError, match="no sensitivity table"):
        read_curves(tmp_path / "bad.csv")


def test_a_scan_continues_where_it_was_interrupted(tmp_path):
    whole = scan().analysis()
    calls = []

    def func(model):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return val_func(model)

    with pytest.raises(KeyboardInterrupt):
        scan(func=func, checkpoint_dir=tmp_path).analysis()
    assert len(json.loads((tmp_path / "sensitivity.json").read_text())["metrics"]["embed"]) == 2
    assert scan(func=func, checkpoint_dir=tmp_path).analysis() == whole
    assert len(calls) == 8  # seven measurements, one of them tried twice
    assert scan(func=func, checkpoint_dir=tmp_path).analysis() == whole
    assert len(calls) == 8


def test_a_stale_scan_is_refused(tmp_path):
    scan(checkpoint_dir=tmp_path).analysis()
    other = Net().eval()
    with torch.no_grad():
        other.fc.weight[0, 0] += 1e-6
    with pytest.raises(
        StateError, match=r"sensitivity.json was created with different settings: weights"
    ):
        scan(other, checkpoint_dir=tmp_path).analysis()
    analysis = scan(checkpoint_dir=tmp_path)
    analysis.update_already_pruned("fc", 0.1)
    with pytest.raises(StateError, match="already_pruned"):
        analysis.analysis()
    (tmp_path / "sensitivity.json").write_text("{}")
    with pytest.raises(StateError, match="no readable scan"):
        scan(checkpoint_dir=tmp_path).analysis()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsities": [0.5, 1.0]}, r"expected numbers in \(0, 1\)"),
        ({"sparsities": []}, r"expected numbers in \(0, 1\)"),
        ({"early_stop_mode": "drop", "early_stop_value": 1}, "Did you mean 'dropped'"),
        ({"early_stop_mode": "dropped"}, "belong together"),
        ({"prune_type": "agp"}, "'agp' is AGPPruner, which does not prune .* in one shot"),
        ({"prune_type": "taylor"}, "has to observe training"),
        ({"prune_type": "levle"}, "Did you mean 'level'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        scan(**settings)


def test_load_state_dict_changes_the_model():
    model = Net()
    zeros = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    scan(model).load_state_dict(zeros)
    assert not model.fc.weight.any()


def test_curves_need_an_analysis():
    with pytest.raises(StageError, match=r"call analysis\(\) first"):
        scan().curves_svg()


@pytest.mark.parametrize("name", ["=1+2", "+x", "-x", "@x", "\tx", "'=x", "a,b", 'a"b', "plain"])
def test_a_layer_name_is_never_a_formula_and_comes_back_as_it_was(tmp_path, name):
    curves = {name: {0.5: 1.0}}
    write_curves(tmp_path / "out.csv", curves, [0.5])
    cell = (tmp_path / "out.csv").read_text().splitlines()[1].lstrip('"')
    assert not cell.startswith(("=", "+", "-", "@", "\t"))
    assert read_curves(tmp_path / "out.csv") == curves
