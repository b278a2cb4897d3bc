"""Recipes that are wrong in one way, made at random from right ones.

Each mutation returns the bytes of a file, its suffix, and the words of which the message must have one:
the name of the key, the value, or the line.
"""

import copy
import io
import json
import random
import string

RECIPE = {
    "lilliput": 1,
    "model": "tiny_cli:build",
    "data": "tiny_cli:batches",
    "loss": "cross_entropy",
    "optimizer": "tiny_cli:make_optimizer",
    "evaluate": "tiny_cli:accuracy",
    "inputs": "tiny_cli:example_inputs",
    "seed": 0,
    "steps": [
        {
            "prune": "agp",
            "config": [{"op_types": ["Conv2d"], "final_sparsity": 0.7}],
            "options": {"pruning_algorithm": "l1"},
            "epochs": 4,
        },
        {"speedup": {}},
        {"finetune": {"epochs": 2}},
        {"quantize": "qat", "config": [{"op_types": ["Conv2d", "Linear"]}], "epochs": 1},
        {"export": "onnx", "file": "small.onnx"},
    ],
}
SMALL = {
    "lilliput": 1,
    "model": "tiny_cli:build",
    "data": "tiny_cli:batches",
    "train": "tiny_cli:train_epoch",
    "steps": [
        {"prune": "level", "config": [{"op_types": ["Linear"], "sparsity": 0.5}]},
        {"quantize": "ptq", "batches": 2},
    ],
}


def typo(draw, word):
    """Return a word with one letter lost, doubled, changed or swapped."""
    while True:
        i = draw.randrange(len(word))
        letter = draw.choice(string.ascii_lowercase)
        found = draw.choice(
            [
                word[:i] + word[i + 1 :],
                word[:i] + word[i] + word[i:],
                word[:i] + letter + word[i + 1 :],
                word[:i] + word[i + 1 : i + 2] + word[i] + word[i + 2 :],
            ]
        )
        if found and found != word and found not in ("l2",):
            return found


def dump(draw, value):
    """Return a recipe as the bytes of a YAML or JSON file, and the suffix."""
    if draw.random() < 0.3:
        return json.dumps(value, indent=draw.choice([None, 2])).encode(), ".json"
    from ruamel.yaml import YAML

    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = draw.random() < 0.3
    yaml.dump(value, stream)
    return stream.getvalue().encode(), draw.choice([".yaml", ".yml"])


def base(draw):
    return copy.deepcopy(draw.choice([RECIPE, RECIPE, SMALL]))


def rename(mapping, old, new):
    items = [(new if key == old else key, value) for key, value in mapping.items()]
    mapping.clear()
    mapping.update(items)


def junk(draw):
    """Return a value that fits nowhere."""
    return draw.choice([-7, 3.5, True, [], ["x", 1], {"a": 1}, "", "???", [[]], 10**30])


# -- mutations of the values -------------------------------------------------------------------------


def typo_in_a_top_key(draw):
    value = base(draw)
    key = draw.choice(list(value))
    wrong = typo(draw, key)
    rename(value, key, wrong)
    return (*dump(draw, value), [wrong])


def an_unknown_top_key(draw):
    value = base(draw)
    wrong = "".join(draw.choices(string.ascii_lowercase, k=9))
    value[wrong] = junk(draw)
    return (*dump(draw, value), [wrong, "line "])


def a_missing_top_key(draw):
    value = base(draw)
    key = draw.choice(["lilliput", "model", "data", "steps"])
    del value[key]
    return (*dump(draw, value), [key])


def a_wrong_type_at_the_top(draw):
    value = base(draw)
    key = draw.choice([key for key in value if key != "seed"])
    value[key] = junk(draw)
    return (*dump(draw, value), [key, "step 1"])


def a_bad_reference(draw):
    value = base(draw)
    key = draw.choice(
        [k for k in ("model", "data", "optimizer", "evaluate", "inputs") if k in value]
    )
    wrong = ["tiny_cli", "tiny_cli.build", "1tiny:build", ":build", "tiny_cli:", "tiny cli:x"]
    wrong += ["no_such_module:build", "tiny_cli:no_such", "tiny_cli:NUMBER", "tiny_cl:build"]
    value[key] = draw.choice(wrong)
    return (*dump(draw, value), [key])


def a_bad_seed(draw):
    value = base(draw)
    value["seed"] = draw.choice([-1, 2**40, "zero", 1.5, [], True])
    return (*dump(draw, value), ["seed"])


def a_bad_version(draw):
    value = base(draw)
    value["lilliput"] = draw.choice([0, 2, "1", 1.5, None, [1]])
    return (*dump(draw, value), ["lilliput"])


def two_ways_to_train(draw):
    value = base(draw)
    value |= {"train": "tiny_cli:train_epoch", "loss": "mse"}
    return (*dump(draw, value), ["train"])


def an_unknown_loss(draw):
    value = copy.deepcopy(RECIPE)
    value["loss"] = draw.choice([typo(draw, "cross_entropy"), "huber", 3])
    return (*dump(draw, value), ["loss"])


def typo_in_a_verb(draw):
    value = base(draw)
    index = draw.randrange(len(value["steps"]))
    verb = next(iter(value["steps"][index]))
    wrong = typo(draw, verb)
    rename(value["steps"][index], verb, wrong)
    return (*dump(draw, value), [f"step {index + 1}"])


def a_step_that_is_none(draw):
    value = base(draw)
    index = draw.randrange(len(value["steps"]))
    value["steps"][index] = draw.choice([3, "prune it", [], {}, None, [["prune", "agp"]], 2.5])
    return (*dump(draw, value), [f"step {index + 1}"])


def two_verbs_in_a_step(draw):
    value = base(draw)
    index = draw.randrange(len(value["steps"]))
    value["steps"][index] |= {"prune": "level", "quantize": "ptq"}
    return (*dump(draw, value), [f"step {index + 1}"])


def steps_that_are_no_list(draw):
    value = base(draw)
    value["steps"] = draw.choice([[], {}, "prune", 3, None, {"prune": "agp"}])
    return (*dump(draw, value), ["steps"])


def typo_in_a_step_key(draw):
    value = base(draw)
    index = draw.choice([i for i, step in enumerate(value["steps"]) if len(step) > 1])
    step = value["steps"][index]
    key = draw.choice(list(step)[1:])
    wrong = typo(draw, key)
    rename(step, key, wrong)
    return (*dump(draw, value), [f"step {index + 1}"])


def an_unknown_algorithm(draw):
    value = base(draw)
    index = draw.choice(
        [i for i, s in enumerate(value["steps"]) if "prune" in s or "quantize" in s]
    )
    verb = next(iter(value["steps"][index]))
    wrong = draw.choice(["magnitude", "gptq", "awq", "int8", "???"])
    value["steps"][index][verb] = wrong
    return (*dump(draw, value), [f"step {index + 1}", "line "])


def bad_epochs(draw):
    value = copy.deepcopy(RECIPE)
    index = draw.choice([0, 3])
    value["steps"][index]["epochs"] = draw.choice([-1, -100, 1.5, "ten", [], {}, True])
    return (*dump(draw, value), ["epochs"])


def bad_finetuning(draw):
    value = copy.deepcopy(RECIPE)
    value["steps"][2]["finetune"] = draw.choice([{}, {"epochs": 0}, {"epoch": 3}, 3, [], None])
    return (*dump(draw, value), ["step 3"])


def typo_in_a_rule(draw):
    value = base(draw)
    rule = value["steps"][0]["config"][0]
    key = draw.choice(list(rule))
    wrong = typo(draw, key)
    rename(rule, key, wrong)
    return (*dump(draw, value), [wrong, "step 1"])


def a_bad_value_in_a_rule(draw):
    value = base(draw)
    rule = value["steps"][0]["config"][0]
    key = draw.choice(list(rule))
    rule[key] = draw.choice([-0.5, 1, 70, {"a": 1}, [], [1, 2], [None], True])
    return (*dump(draw, value), [key, "step 1"])


def a_config_that_is_none(draw):
    value = base(draw)
    value["steps"][0]["config"] = draw.choice([3, [], [3], ["Conv2d"], "no_such.yaml", True, [[]]])
    return (*dump(draw, value), ["step 1"])


def a_key_of_another_algorithm(draw):
    value = base(draw)
    value["steps"][0]["config"][0] |= {"quant_bits": 8}
    return (*dump(draw, value), ["quant_bits"])


def an_unknown_option(draw):
    value = base(draw)
    wrong = draw.choice(["prunning_algorithm", "example_input", "foo", "optimizer", "config_list"])
    value["steps"][0]["options"] = {wrong: 1}
    return (*dump(draw, value), [wrong])


def a_bad_option_value(draw):
    value = copy.deepcopy(RECIPE)
    wrong = draw.choice(["l3", "", 7, None, [], {"a": 1}])
    value["steps"][0]["options"] = draw.choice([{"pruning_algorithm": wrong}, 3, ["x"], "x"])
    return (*dump(draw, value), ["options"])


def a_wrong_order(draw):
    value = copy.deepcopy(RECIPE)
    steps = value["steps"]
    prune, speedup, tune, quantize, export = steps
    value["steps"] = draw.choice(
        [
            [tune, speedup],
            [quantize, prune],
            [prune, quantize, speedup],
            [prune, export, export],
            [quantize, speedup, export],
        ]
    )
    return (*dump(draw, value), ["step 1", "step 2", "step 3"])


def a_schedule_that_does_not_end(draw):
    value = copy.deepcopy(RECIPE)
    value["steps"][0]["config"][0]["end_epoch"] = draw.randrange(5, 90)
    return (*dump(draw, value), ["end_epoch"])


def a_bad_file_name(draw):
    value = copy.deepcopy(RECIPE)
    wrong = ["small.tflite", "small", "", "../small.onnx", "/tmp/small.onnx", "a/b.onnx", 3, None]
    value["steps"][4]["file"] = draw.choice(wrong)
    return (*dump(draw, value), ["file"])


def a_bad_format(draw):
    value = copy.deepcopy(RECIPE)
    value["steps"][4]["export"] = draw.choice(["onx", "tflite", "tensorrt", 3, None, []])
    return (*dump(draw, value), ["step 5"])


def not_a_mapping(draw):
    value = draw.choice([[1, 2], "prune", 7, [RECIPE], True, 2.5, [["a"]]])
    return (*dump(draw, value), ["expected", "unknown key"])


# -- mutations of the text ---------------------------------------------------------------------------


def yaml_of(value):
    from ruamel.yaml import YAML

    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.dump(value, stream)
    return stream.getvalue()


def bad_yaml(draw):
    lines = yaml_of(base(draw)).splitlines()
    at = draw.randrange(1, len(lines))
    wrong = ["steps: [1, 2", "\tmodel: x", "model: 'open", "}: {", "a: b: c", "? [", "- - : -"]
    wrong += [
        "model: &a *b",
        "x: *nothing",
        "x: !!python/object:os.system {}",
        "<<: {a: 1}",
        "x: !tag 3",
    ]
    wrong += ["'" + "x" * 50, "{", "]", "key: |\n text\n  : x\n\t- a", "@x: 1", "`a: 2"]
    lines.insert(at, draw.choice(wrong))
    return "\n".join(lines).encode(), ".yaml", ["line ", "YAML"]


def bad_json(draw):
    text = json.dumps(base(draw), indent=2)
    at = draw.randrange(2, len(text) - 2)
    while text[at] not in '{}[]",:':
        at = draw.randrange(2, len(text) - 2)
    return (text[:at] + text[at + 1 :]).encode(), ".json", ["line "]


def a_duplicate_key(draw):
    text = yaml_of(base(draw))
    key = draw.choice(["model", "data", "steps"])
    return f"{text}{key}: again\n".encode(), ".yaml", ["line", key]


def no_text(draw):
    text = yaml_of(RECIPE)
    wrong = [
        bytes(draw.randrange(256) for _ in range(300)) + b"\xff\xfe",
        b"",
        b"   \n\n",
        b"# a comment\n",
    ]
    wrong += [text.encode("utf-16"), text.replace("a", "ä").encode("latin-1"), b"\0" * 500]
    wrong += [b"x" * (1 << 20) + b"yy", b"---\n---\n", b"%YAML 1.1\n---\n" + text.encode()]
    return draw.choice(wrong), draw.choice([".yaml", ".json"]), [""]


def deep_nesting(draw):
    depth = draw.choice([60, 300, 3000])
    opening, closing = draw.choice([("[", "]"), ('{"a": ', "}")])
    text = f"{opening * depth}1{closing * depth}"
    return f'{{"steps": {text}}}'.encode(), draw.choice([".yaml", ".json"]), ["nested", "line"]


def an_alias_bomb(draw):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for one, two in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{two}: &{two} [{', '.join([f'*{one}'] * 10)}]")
    return "\n".join([*lines, "steps: *i"]).encode(), ".yaml", ["alias", "values"]


def a_number_that_is_none(draw):
    text = yaml_of(RECIPE)
    wrong = draw.choice([".nan", ".inf", "-.inf", "1e999", "2026-01-01", "0x"])
    old = draw.choice(["0.7", "epochs: 4"])
    return (
        text.replace(old, old.replace(old[-3:] if old == "0.7" else "4", wrong)).encode(),
        ".yaml",
        [""],
    )


def a_bad_suffix(draw):
    return yaml_of(RECIPE).encode(), draw.choice([".txt", ".toml", ".py", ""]), [".yaml"]


MUTATIONS = [
    typo_in_a_top_key,
    an_unknown_top_key,
    a_missing_top_key,
    a_wrong_type_at_the_top,
    a_bad_reference,
    a_bad_seed,
    a_bad_version,
    two_ways_to_train,
    an_unknown_loss,
    typo_in_a_verb,
    a_step_that_is_none,
    two_verbs_in_a_step,
    steps_that_are_no_list,
    typo_in_a_step_key,
    an_unknown_algorithm,
    bad_epochs,
    bad_finetuning,
    typo_in_a_rule,
    a_bad_value_in_a_rule,
    a_config_that_is_none,
    a_key_of_another_algorithm,
    an_unknown_option,
    a_bad_option_value,
    a_wrong_order,
    a_schedule_that_does_not_end,
    a_bad_file_name,
    a_bad_format,
    not_a_mapping,
    bad_yaml,
    bad_json,
    a_duplicate_key,
    no_text,
    deep_nesting,
    an_alias_bomb,
    a_number_that_is_none,
    a_bad_suffix,
]


def broken_recipe(seed):
    """Return the name of the mutation, the bytes, the suffix, and the words to look for."""
    draw = random.Random(seed)
    mutation = MUTATIONS[seed % len(MUTATIONS)]
    return (mutation.__name__, *mutation(draw))
