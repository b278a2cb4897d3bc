"""Factorizer: the frame that third parties write their own algorithm for."""

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError, StageError, StateError
from lilliput.torch import Factorizer, RankRule, SVDFactorizer, load, save


class FirstRows(Factorizer):
    """Keep the first rows of a weight, and make nothing of the others."""

    def factors(self, weight, rank):
        return np.eye(len(weight), rank), weight[:rank]


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 12, 3), nn.Flatten(), nn.Linear(12, 10))


def test_the_layers_multiply_to_the_factors():
    model, expected = make_model().eval(), make_model().eval()
    factorizer = FirstRows(model, [{"op_names": ["0"], "rank": 4}])
    assert factorizer.compress() is model
    weight = expected[0].weight
    squares = weight.detach().double().square()
    with torch.no_grad():
        weight[4:] = 0
    x = torch.randn(2, 3, 3, 3)
    assert torch.allclose(model(x), expected(x), atol=1e-6)
    assert factorizer.result.ranks == {"0": 4}
    kept = float(squares[:4].sum() / squares.sum())
    assert factorizer.result.energies["0"] == pytest.approx(kept, rel=1e-6)
    assert "rank 4, keeps" in str(factorizer.result)


def test_laying_out_makes_the_same_layers_and_asks_for_no_factors():
    model = make_model()
    factorizer = FirstRows(model, [{"rank": 4}])
    factorizer.compress()

    class Lazy(FirstRows):
        def factors(self, weight, rank):
            raise AssertionError("factors() is not for shapes")

    other = make_model()
    lazy = Lazy(other, factorizer.result.config_list())
    assert lazy.lay_out() is other
    assert lazy.result.ranks == factorizer.result.ranks and not lazy.result.energies
    assert "rank 4" in str(lazy.result)
    assert not other[0][0].weight.any()
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 3, 3)
    assert torch.equal(other(x), model(x))


def test_a_model_in_which_nothing_was_replaced_is_laid_out_too(caplog):
    model = make_model()
    factorizer = SVDFactorizer(model, [{"rank": 10, "op_names": ["2"]}])
    factorizer.compress()
    assert factorizer.result.config_list() == [] and "no layer was replaced" in caplog.text
    caplog.clear()
    for other in (make_model(), None):
        again = SVDFactorizer(other, factorizer.result.config_list())
        laid_out = again.lay_out(make_model() if other is None else None)
        laid_out.load_state_dict(model.state_dict())
        assert type(laid_out[2]) is nn.Linear and again.result.ranks == {} == again.result.left
    assert not caplog.records
    assert again.lay_out() is laid_out


def test_an_empty_config_list_is_a_layout_and_nothing_to_compress():
    words = r"config list is empty.* such as \[\{'op_types': \['default'\], 'rank': 8\}\]"
    with pytest.raises(ConfigError, match=words):
        SVDFactorizer(make_model(), []).compress()
    with pytest.raises(ConfigError, match=words):
        SVDFactorizer(None, ()).compress(make_model())
    with pytest.raises(ConfigError, match="expected a list of rules such as .*'rank': 8"):
        SVDFactorizer(make_model(), 5)


def test_rules_of_an_author_choose_the_rank():
    class ShareRule(RankRule):
        share: float | None = Field(None, gt=0, le=1)

        def _check_rank(self):
            return self

    class Half(FirstRows):
        rule = ShareRule

        def rank_of(self, weight, config):
            share = config.get("share")
            return super().rank_of(weight, config) if share is None else int(share * len(weight))

    factorizer = Half(make_model(), [{"op_names": ["0"], "share": 0.25}])
    factorizer.compress()
    assert factorizer.result.ranks == {"0": 3}


def test_mistakes_of_rules_and_of_authors_are_named():
    with pytest.raises(ConfigError, match="expected 'rank'"):
        FirstRows(make_model(), [{"op_names": ["0"]}])

    class Turned(FirstRows):
        def factors(self, weight, rank):
            left, right = super().factors(weight, rank)
            return left.T, right

    model = make_model()
    with pytest.raises(AlgorithmError, match=r"Turned.factors returned the shapes .* layer '0'"):
        Turned(model, [{"op_names": ["0"], "rank": 4}]).compress()
    assert isinstance(model[0], nn.Conv2d)
    with pytest.raises(NotImplementedError, match="must override factors"):
        Factorizer(make_model(), [{"rank": 4}]).compress()
    with pytest.raises(StageError, match=r"FirstRows.*lay_out"):
        FirstRows(make_model(), [{"rank": 4}]).state()


@pytest.mark.parametrize(
    ("rule", "with_vectors", "without"),
    [({"rank": 3}, 0, 0), ({"parameters": 0.5}, 0, 0), ({"energy": 0.5}, 0, 2)],
)
def test_shapes_cost_no_decomposition_unless_the_rank_depends_on_it(
    rule, with_vectors, without, monkeypatch
):
    calls, svd = [], np.linalg.svd

    def counted(*args, compute_uv=True, **kwargs):
        calls.append(compute_uv)
        return svd(*args, compute_uv=compute_uv, **kwargs)

    monkeypatch.setattr(np.linalg, "svd", counted)
    laid_out = SVDFactorizer(make_model(), [rule])
    laid_out.lay_out()
    assert (calls.count(True), calls.count(False)) == (with_vectors, without)
    calls.clear()
    compressed = SVDFactorizer(make_model(), [rule])
    compressed.compress()
    assert calls == [True, True]  # once for each layer
    assert compressed.result.ranks == laid_out.result.ranks


def test_a_file_of_a_factorized_model_says_what_the_plain_one_lacks(tmp_path):
    factorizer = SVDFactorizer(make_model(), [{"rank": 3}])
    save(factorizer.compress(), tmp_path / "two")
    with pytest.raises(StateError, match=r"looks factorized: first call .*lay_out\(\)"):
        load(make_model(), tmp_path / "two")
    other = SVDFactorizer(make_model(), factorizer.result.config_list()).lay_out()
    load(other, tmp_path / "two")
    for a, b in zip(other.parameters(), factorizer.bound_model.parameters(), strict=True):
        assert torch.equal(a, b)
