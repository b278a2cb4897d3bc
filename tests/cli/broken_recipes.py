"""Recipes that are wrong in one way, made at random from right ones.

Each mutation returns the bytes of a file, its suffix, and the words of which the message must have one:
the name of the key, the value, or the line. It also states its fixes: what the message must say so that
the user knows what to write instead. A mutation that can go wrong in several ways has one for each.
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


def into(mutations):
    """Return a decorator that states the fixes of a fault: a message must have one of them."""
    return lambda *fixes: lambda mutation: mutations.append((mutation, fixes)) or mutation


MUTATIONS = []  # each with its fixes
fixed_by = into(MUTATIONS)


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


@fixed_by("Known: lilliput, model, data, train")
def typo_in_a_top_key(draw):
    value = base(draw)
    key = draw.choice(list(value))
    wrong = typo(draw, key)
    rename(value, key, wrong)
    return (*dump(draw, value), [wrong])


@fixed_by("Known: lilliput, model, data, train", "but found")
def an_unknown_top_key(draw):
    value = base(draw)
    wrong = "".join(draw.choices(string.ascii_lowercase, k=9))
    value[wrong] = junk(draw)
    return (*dump(draw, value), [wrong, "line "])


@fixed_by(
    "is missing: module:factory",
    "is missing: Version of the recipe language: 1",
    "() -> iterable of (inputs, targets)",
    "is missing: What to do, in order",
)
def a_missing_top_key(draw):
    value = base(draw)
    key = draw.choice(["lilliput", "model", "data", "steps"])
    del value[key]
    return (*dump(draw, value), [key])


@fixed_by(
    "expected module:",
    "should be a valid",
    "should be 1",
    "expected cross_entropy, mse",
    "at least 1 item",
    "expected a mapping with one of",
    "is missing: Version",
)
def a_wrong_type_at_the_top(draw):
    value = base(draw)
    key = draw.choice([key for key in value if key != "seed"])
    value[key] = junk(draw)
    return (*dump(draw, value), [key, "step 1"])


@fixed_by(
    "expected module:",
    "It has: build, batches",
    "expected a function",
    "there is no module 'no_such_module' in the working directory",
    "Did you mean",
)
def a_bad_reference(draw):
    value = base(draw)
    key = draw.choice(
        [k for k in ("model", "data", "optimizer", "evaluate", "inputs") if k in value]
    )
    wrong = ["tiny_cli", "tiny_cli.build", "1tiny:build", ":build", "tiny_cli:", "tiny cli:x"]
    wrong += ["no_such_module:build", "tiny_cli:no_such", "tiny_cli:NUMBER", "tiny_cl:build"]
    value[key] = draw.choice(wrong)
    return (*dump(draw, value), [key])


@fixed_by(
    "should be a valid integer", "should be greater than or equal to 0", "should be less than"
)
def a_bad_seed(draw):
    value = base(draw)
    value["seed"] = draw.choice([-1, 2**40, "zero", 1.5, [], True])
    return (*dump(draw, value), ["seed"])


@fixed_by("should be 1", "is missing: Version of the recipe language: 1")
def a_bad_version(draw):
    value = base(draw)
    value["lilliput"] = draw.choice([0, 2, "1", 1.5, None, [1]])
    return (*dump(draw, value), ["lilliput"])


@fixed_by("give one")
def two_ways_to_train(draw):
    value = base(draw)
    value |= {"train": "tiny_cli:train_epoch", "loss": "mse"}
    return (*dump(draw, value), ["train"])


@fixed_by("expected cross_entropy, mse or module:function", "should be a valid string")
def an_unknown_loss(draw):
    value = copy.deepcopy(RECIPE)
    value["loss"] = draw.choice([typo(draw, "cross_entropy"), "huber", 3])
    return (*dump(draw, value), ["loss"])


@fixed_by("one of prune, factorize, recover, speedup, finetune, distill, quantize, export, analyze")
def typo_in_a_verb(draw):
    value = base(draw)
    index = draw.randrange(len(value["steps"]))
    verb = next(iter(value["steps"][index]))
    wrong = typo(draw, verb)
    rename(value["steps"][index], verb, wrong)
    return (*dump(draw, value), [f"step {index + 1}"])


@fixed_by("one of prune, factorize, recover, speedup, finetune, distill, quantize, export, analyze")
def a_step_that_is_none(draw):
    value = base(draw)
    index = draw.randrange(len(value["steps"]))
    value["steps"][index] = draw.choice([3, "prune it", [], {}, None, [["prune", "agp"]], 2.5])
    return (*dump(draw, value), [f"step {index + 1}"])


@fixed_by("make each of them a separate step")
def two_verbs_in_a_step(draw):
    value = base(draw)
    index = draw.randrange(len(value["steps"]))
    value["steps"][index] |= {"prune": "level", "quantize": "ptq"}
    return (*dump(draw, value), [f"step {index + 1}"])


@fixed_by("should be a valid list", "at least 1 item")
def steps_that_are_no_list(draw):
    value = base(draw)
    value["steps"] = draw.choice([[], {}, "prune", 3, None, {"prune": "agp"}])
    return (*dump(draw, value), ["steps"])


@fixed_by("Known: optimizer", "Known: export")
def typo_in_a_step_key(draw):
    value = base(draw)
    index = draw.choice([i for i, step in enumerate(value["steps"]) if len(step) > 1])
    step = value["steps"][index]
    key = draw.choice(list(step)[1:])
    wrong = typo(draw, key)
    rename(step, key, wrong)
    return (*dump(draw, value), [f"step {index + 1}"])


@fixed_by("Known: admm", "Known: bnn", "but found")
def an_unknown_algorithm(draw):
    value = base(draw)
    index = draw.choice(
        [i for i, s in enumerate(value["steps"]) if "prune" in s or "quantize" in s]
    )
    verb = next(iter(value["steps"][index]))
    wrong = draw.choice(["magnitude", "gptq", "awq", "int8", "???"])
    value["steps"][index][verb] = wrong
    return (*dump(draw, value), [f"step {index + 1}", "line "])


@fixed_by("should be a valid integer", "should be greater than or equal to 0")
def bad_epochs(draw):
    value = copy.deepcopy(RECIPE)
    index = draw.choice([0, 3])
    value["steps"][index]["epochs"] = draw.choice([-1, -100, 1.5, "ten", [], {}, True])
    return (*dump(draw, value), ["epochs"])


@fixed_by(
    "is missing: Epochs to train",
    "should be a valid dictionary",
    "should be greater than or equal to 1",
)
def bad_finetuning(draw):
    value = copy.deepcopy(RECIPE)
    value["steps"][2]["finetune"] = draw.choice([{}, {"epochs": 0}, {"epoch": 3}, 3, [], None])
    return (*dump(draw, value), ["step 3"])


@fixed_by("Did you mean", "Known: ")
def typo_in_a_rule(draw):
    value = base(draw)
    rule = value["steps"][0]["config"][0]
    key = draw.choice(list(rule))
    wrong = typo(draw, key)
    rename(rule, key, wrong)
    return (*dump(draw, value), [wrong, "step 1"])


@fixed_by(
    "should be a valid list",
    "should be a valid number",
    "should be a valid string",
    "expected a fraction in [0, 1)",
    "at least 1 item",
)
def a_bad_value_in_a_rule(draw):
    value = base(draw)
    rule = value["steps"][0]["config"][0]
    key = draw.choice(list(rule))
    rule[key] = draw.choice([-0.5, 1, 70, {"a": 1}, [], [1, 2], [None], True])
    return (*dump(draw, value), [key, "step 1"])


@fixed_by(
    "no_such.yaml: there is no such file",
    "expected a list of rules such as [{",
    "expected a dict of keys",
    "write at least one rule, such as [{",
)
def a_config_that_is_none(draw):
    value = base(draw)
    value["steps"][0]["config"] = draw.choice([3, [], [3], ["Conv2d"], "no_such.yaml", True, [[]]])
    return (*dump(draw, value), ["step 1"])


@fixed_by("does not use it; ")
def a_key_of_another_algorithm(draw):
    value = base(draw)
    value["steps"][0]["config"][0] |= {"quant_bits": 8}
    return (*dump(draw, value), ["quant_bits"])


@fixed_by("remove it from the options", "It takes")
def an_unknown_option(draw):
    value = base(draw)
    wrong = draw.choice(["prunning_algorithm", "example_input", "foo", "optimizer", "config_list"])
    value["steps"][0]["options"] = {wrong: 1}
    return (*dump(draw, value), [wrong])


@fixed_by("should be a valid dictionary", "expected a one-shot pruner such as")
def a_bad_option_value(draw):
    value = copy.deepcopy(RECIPE)
    wrong = draw.choice(["l3", "", 7, None, [], {"a": 1}])
    value["steps"][0]["options"] = draw.choice([{"pruning_algorithm": wrong}, 3, ["x"], "x"])
    return (*dump(draw, value), ["options"])


@fixed_by("cut channels out first", "without a prune step", "prune first", "choose another name")
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


@fixed_by("or more, or omit end_epoch")
def a_schedule_that_does_not_end(draw):
    value = copy.deepcopy(RECIPE)
    value["steps"][0]["config"][0]["end_epoch"] = draw.randrange(5, 90)
    return (*dump(draw, value), ["end_epoch"])


@fixed_by("expected the name of a file", "expected a name that ends in", "should be a valid string")
def a_bad_file_name(draw):
    value = copy.deepcopy(RECIPE)
    wrong = ["small.tflite", "small", "", "../small.onnx", "/tmp/small.onnx", "a/b.onnx", 3, None]
    value["steps"][4]["file"] = draw.choice(wrong)
    return (*dump(draw, value), ["file"])


@fixed_by("expected 'onnx' or")
def a_bad_format(draw):
    value = copy.deepcopy(RECIPE)
    value["steps"][4]["export"] = draw.choice(["onx", "tflite", "tensorrt", 3, None, []])
    return (*dump(draw, value), ["step 5"])


@fixed_by(
    "expected a list of rules at the top", "--algorithm chooses another", "expected a mapping"
)
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


@fixed_by(
    "put quotes around",
    "expected",
    "cannot start any token",
    "not allowed here",
    "unexpected end of stream",
    "write the keys out",
    "write a plain value",
)
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


@fixed_by("Expecting", "Invalid control character", "Extra data", "Unterminated string")
def bad_json(draw):
    text = json.dumps(base(draw), indent=2)
    at = draw.randrange(2, len(text) - 2)
    while text[at] not in '{}[]",:':
        at = draw.randrange(2, len(text) - 2)
    return (text[:at] + text[at + 1 :]).encode(), ".json", ["line "]


@fixed_by("found duplicate key")
def a_duplicate_key(draw):
    text = yaml_of(base(draw))
    key = draw.choice(["model", "data", "steps"])
    return f"{text}{key}: again\n".encode(), ".yaml", ["line", key]


@fixed_by(
    "is empty, expected a recipe",
    "is larger than 1 MiB",
    "is not UTF-8",
    "another document",
    "remove the %YAML directive",
    "Expecting value",
)
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


@fixed_by("nested deeper than")
def deep_nesting(draw):
    depth = draw.choice([60, 300, 3000])
    opening, closing = draw.choice([("[", "]"), ('{"a": ', "}")])
    text = f"{opening * depth}1{closing * depth}"
    return f'{{"steps": {text}}}'.encode(), draw.choice([".yaml", ".json"]), ["nested", "line"]


@fixed_by("more than")
def an_alias_bomb(draw):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for one, two in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{two}: &{two} [{', '.join([f'*{one}'] * 10)}]")
    return "\n".join([*lines, "steps: *i"]).encode(), ".yaml", ["alias", "values"]


@fixed_by("put it in quotes if it is a name", "expected a number", "should be a valid integer")
def a_number_that_is_none(draw):
    text = yaml_of(RECIPE)
    wrong = draw.choice([".nan", ".inf", "-.inf", "1e999", "2026-01-01", "0x"])
    old = draw.choice(["0.7", "epochs: 4"])
    return (
        text.replace(old, old.replace(old[-3:] if old == "0.7" else "4", wrong)).encode(),
        ".yaml",
        [""],
    )


@fixed_by("ends in .yaml, .yml, .json")
def a_bad_suffix(draw):
    return yaml_of(RECIPE).encode(), draw.choice([".txt", ".toml", ".py", ""]), [".yaml"]


def broken_recipe(seed):
    """Return the name of the mutation, the bytes, the suffix, the words to look for, and the fixes."""
    draw = random.Random(seed)
    mutation, fixes = MUTATIONS[seed % len(MUTATIONS)]
    return (mutation.__name__, *mutation(draw), fixes)
