"""Rewriting programs: config lists and imports in today's spelling, and nothing that is not sure."""

import textwrap

import pytest

from lilliput.compat.nni.reading.rewriting import rewrite


def written(source):
    return rewrite(textwrap.dedent(source).encode()).decode()


def stays(source):
    return written(source) == textwrap.dedent(source)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{'sparse_ratio': 0.5, 'op_types': ['Linear']}", "{'sparsity': 0.5, 'op_types': ['Linear']}"),
        ('{"sparsity_per_layer": args.s}', '{"sparsity": args.s}'),
        ("{'support_op': 'fc', 'prune': False}", "{'op_names': ['fc'], 'exclude': True}"),
        ("{'support_type': ['A'], 'support_op': ['b'], 'sparsity': .5}",
         "{'op_types': ['A'], 'sparsity': .5}, \n{'op_names': ['b'], 'sparsity': .5}"),
        ("{'op_names': names, 'sparse_ratio': 1e-1}", "{'op_names': names, 'sparsity': 1e-1}"),
        ("{'op_types': ['Linear'], 'exclude_op_names': ['fc']}",
         "{'op_types': ['Linear'], 'op_names': ['!fc']}"),
    ],
)  # fmt: skip
def test_a_rule_is_rewritten_in_its_place(old, new):
    assert written(f"config_list = [{old}]  # rules\n") == f"config_list = [{new}]  # rules\n"


@pytest.mark.parametrize(
    "rule",
    [
        "{'sparsity': 0.5, 'op_types': ['default']}",  # is of today
        "{'sparse_ratio': 0.5, **others}",
        "{'sparse_ratio': 0.5, key: 3}",
        "{'sparse_ratio': 0.5, 'sparse_threshold': 3}",  # has no equivalent
        "{'op_partial_names': [prefix], 'sparsity': 0.5}",
        "{'support_op': names, 'sparsity': 0.5}",
        "{'op_names': ['a'], 'prune': flag}",
        "{'quant_dtype': dtype, 'q_bits': 8}",
        "{'quant_dtype': 'int8', 'op_types': ['Linear']}",  # v3: one scale per tensor, today per channel
        "{  # why\n'sparse_ratio': 0.5}",
    ],
)
def test_a_rule_that_is_not_sure_stays(rule):
    assert stays(f"config_list = [{rule}]\n")


def test_a_rule_over_several_lines_keeps_its_indentation_and_line_ends():
    source = "if x:\r\n    config_list = [\r\n        {\r\n            'q_bits': 8\r\n        }\r\n    ]\r\n"
    expected = source.replace("'q_bits': 8\r\n", "'quant_bits': 8,\r\n")
    assert rewrite(source.encode()).decode() == expected


def test_lists_that_are_no_config_lists_stay():
    assert stays("prices = [{'sparse_ratio': 0.5, 'prune': False}]\n")


def test_positions_count_bytes():
    source = "t = 'ä€𝄞'; config_list = [{'q_bits': 8}]; u = 'ü'\n"
    assert written(source) == source.replace("q_bits", "quant_bits")


ALIKE = """
    from nni.compression.torch import L1FilterPruner as P, LevelPruner
    config_list = [{'sparsity': 0.5, 'op_types': ['Conv2d']}]
    pruner = P(model, config_list)
    model = pruner.compress()
    LevelPruner(model, config_list, optimizer).compress()
    pruner.export_model('model.pth')
"""


def test_an_import_is_rewritten_if_the_program_uses_nothing_else():
    assert (
        written(ALIKE).splitlines()[1]
        == "from lilliput.torch import L1NormPruner as P, LevelPruner"
    )
    assert written(ALIKE).splitlines()[2:] == textwrap.dedent(ALIKE).splitlines()[2:]


@pytest.mark.parametrize(
    "use",
    [
        "pruner = P(model, config_list, None, True, x)",  # another argument today
        "class Mine(P): pass",
        "isinstance(pruner, P)",
        "table = {'l1': P}",
        "train(P(model, config_list))",
        "P(*arguments)",
        "P(model, config_list).get_masks()",
        "P(model, config_list).export_model('a', 'b')",  # masks in NNI's form
        "P(model, config_list)\nprint(model.conv1.weight_mask)",
        "p = P(model, config_list)\ntrain(p)",
    ],
)
def test_an_import_stays_where_the_class_is_used_in_any_other_way(use):
    assert stays(f"from nni.compression.torch import L1FilterPruner as P\n{use}\n")


@pytest.mark.parametrize(
    "program",
    [
        "from nni.compression.torch import SlimPruner\nSlimPruner(model, config_list)",
        "from nni.compression.torch import TaylorFOWeightFilterPruner as T\nT(model, config_list, o)",
        "from nni.compression.pytorch.pruning import L1NormPruner\nL1NormPruner(m, c).compress()",
        "from nni.compression.pruning import L1NormPruner\nL1NormPruner(m, c).compress()",
        "from nni.compression.torch import Pruner\nclass Mine(Pruner): pass",
        "from nni.compression.torch import *\nLevelPruner(m, c)",
        "from nni.compression.torch import (  # why\n    LevelPruner,\n)",
        "from nni import trace",
        "import nni.compression.torch as t\nt.LevelPruner(m, c)",
    ],
)
def test_an_import_stays_where_today_something_else_would_happen(program):
    assert stays(f"{program}\n")


def test_of_several_names_those_that_are_sure_move():
    source = "if x:\n    from nni.compression.torch import Pruner, LevelPruner, AGP_Pruner as A\n"
    source += "class Mine(Pruner): pass\n"
    assert written(source).splitlines()[1:3] == [
        "    from lilliput.torch import LevelPruner, AGPPruner as A",
        "    from nni.compression.torch import Pruner",
    ]
