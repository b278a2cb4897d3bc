"""Command lines that are wrong in one way, made at random from right ones.

Each returns the arguments, and the words of which the message must have one; above it stand its fixes,
of which the message must have one too. ``recipe.yaml``, ``rules.yaml``, ``notes.txt`` and the folder
``folder`` exist where they run.
"""

import random
import string

from broken_recipes import into, typo

MODEL = "tiny_cli:build"
ACCURACY = ["--evaluate", "tiny_cli:accuracy"]
RIGHT = {
    "run": ["recipe.yaml"],
    "prune": [MODEL, "--sparsity", "0.5", "--data", "tiny_cli:batches"],
    "quantize": [MODEL, "--bits", "8", "--data", "tiny_cli:batches"],
    "speedup": ["folder", "--data", "tiny_cli:batches"],
    "export": [MODEL, "small.onnx", "--data", "tiny_cli:batches"],
    "inspect": [MODEL],
    "analyze": [MODEL, "--evaluate", "tiny_cli:accuracy"],
    "auto": [MODEL, "--target", "macs=0.5", *("--data", "tiny_cli:batches"), *ACCURACY],
    "repair": [MODEL, "rules.yaml", "--drop=0.1", *("--data", "tiny_cli:batches"), *ACCURACY],
    "benchmark": [MODEL, "--data", "tiny_cli:batches"],
    "compare": ["a.onnx", "b.onnx"],
    "report": ["folder"],
    "compact": ["weights.safetensors"],
    "list": [],
    "doctor": [],
    "config check": ["rules.yaml"],
    "config explain": ["rules.yaml", "--model", MODEL, "--algorithm", "level"],
    "config schema": ["agp"],
    "config migrate": ["rules.yaml"],
}
WITH_SEED = ["run", "auto", "repair", "prune", "quantize", "speedup", "export", "analyze"]
NEEDS = [name for name, arguments in RIGHT.items() if arguments]

MUTATIONS = []  # each with its fixes
fixed_by = into(MUTATIONS)


def line(command, *arguments):
    return [*command.split(), *arguments]


@fixed_by("Did you mean")
def typo_in_a_command(draw):
    name = draw.choice([x for x in RIGHT if " " not in x])
    wrong = typo(draw, name)
    return [wrong, *RIGHT[name]], [wrong]


@fixed_by("Did you mean")
def typo_in_a_command_of_config(draw):
    wrong = typo(draw, draw.choice(["check", "explain", "schema", "migrate"]))
    return ["config", wrong, "rules.yaml"], [wrong]


@fixed_by("Did you mean", "It has: --")
def an_unknown_option(draw):
    name = draw.choice(list(RIGHT))
    known = ["--json", "--quiet", "--dry-run"]
    wrong = draw.choice([f"--{''.join(draw.choices(string.ascii_lowercase, k=8))}", "-Z"])
    if draw.random() < 0.6:
        wrong = f"--{typo(draw, draw.choice(known)[2:])}"
    return line(name, *RIGHT[name], wrong), [wrong]


@fixed_by("usage: lilliput ")
def a_missing_argument(draw):
    name = draw.choice(NEEDS)
    return line(name), ["Missing argument", "missing"]


@fixed_by("usage: lilliput ")
def one_argument_too_many(draw):
    takes_any_number = ("benchmark", "config migrate")
    name = draw.choice([x for x in RIGHT if x not in takes_any_number])
    extra = ["one", "two", "three"]
    return line(name, *RIGHT[name], *extra), ["one", "two", "three"]


@fixed_by("requires an argument")
def an_option_without_value(draw):
    name = draw.choice(WITH_SEED)
    return line(name, *RIGHT[name], "--seed"), ["--seed"]


@fixed_by("does not take a value")
def a_flag_with_value(draw):
    name = draw.choice(list(RIGHT))
    return line(name, *RIGHT[name], "--json=yes"), ["--json"]


@fixed_by(
    "should be a valid integer",
    "should be greater than or equal to 0",
    "should be less than or equal to",
)
def a_bad_seed(draw):
    name = draw.choice(WITH_SEED)
    wrong = draw.choice(["abc", "-1", "1.5", "", str(2**70), "nan", "0x"])
    return line(name, *RIGHT[name], f"--seed={wrong}"), ["--seed"]


@fixed_by(
    "should be a valid integer",
    "should be a valid number",
    "should be greater than or equal to",
    "should be less than or equal to",
)
def a_bad_number(draw):
    name, option, values = draw.choice(
        [
            ("prune", "--epochs", ["-1", "many", "2.5"]),
            ("prune", "--finetune", ["-3", "x"]),
            ("prune", "--sparsity", ["half", "0,5", "50%"]),
            ("quantize", "--bits", ["0", "17", "eight"]),
            ("quantize", "--batches", ["0", "-4", "all"]),
            ("analyze", "--bits", ["99", "four"]),
            ("analyze", "--batches", ["0"]),
            ("benchmark", "--runs", ["0", "x"]),
            ("benchmark", "--batches", ["-1"]),
            ("compare", "--runs", ["-1", "x"]),
        ]
    )
    return line(name, *RIGHT[name], f"{option}={draw.choice(values)}"), [option]


@fixed_by("expected a fraction in [0, 1)")
def a_share_that_is_none(draw):
    wrong = draw.choice(["1", "80", "-0.1", "nan", "inf", "1.5"])
    return line("prune", MODEL, f"--sparsity={wrong}"), ["sparsity"]


@fixed_by("expected numbers in (0, 1)")
def bad_sparsities(draw):
    wrong = draw.choice(["a,b", "", "0.5;0.6", "0,1", "0.5,2", "-1"])
    return line("analyze", MODEL, "--evaluate", "tiny_cli:accuracy", f"--sparsities={wrong}"), [
        "sparsities"
    ]


@fixed_by("expected numbers such as")
def a_bad_shape(draw):
    name = draw.choice(["inspect", "benchmark"])
    wrong = draw.choice(["a,b", "1,,3", "1,-3", "", "1;3", "0,3", "1.5,2"])
    return line(name, MODEL, f"--input-shape={wrong}"), ["--input-shape"]


@fixed_by("there is no such file")
def a_missing_file(draw):
    name = draw.choice(["run", "config check", "config migrate", "report", "config explain"])
    wrong = draw.choice(["recipes.yaml", "nothing.json", "no/such/recipe.yaml", "recipe.yml"])
    extra = ["--model", MODEL] if name == "config explain" else []
    return line(name, wrong, *extra), [wrong]


@fixed_by("expected a YAML or JSON file")
def a_folder_for_a_file(draw):
    name = draw.choice(["run", "config check"])
    return line(name, "folder"), ["folder"]


@fixed_by("ends in .yaml, .yml, .json", "expected the folder of a run, or report.json")
def a_file_of_another_kind(draw):
    name = draw.choice(["run", "config check", "config migrate", "report"])
    return line(name, "notes.txt"), ["notes.txt"]


@fixed_by("there is no such file")
def a_missing_model_file(draw):
    pair = draw.choice([("a.onnx", "b.onnx"), ("a.tflite", "a.onnx"), ("a.json", "b.json")])
    return line("compare", *pair), ["a."]


@fixed_by("expected report.json or receipt.json of a run")
def damaged_model_files(draw):
    return line("compare", "damaged.json", "damaged.json"), ["damaged.json"]


@fixed_by(
    "expected module:factory",
    "expected a function",
    "Did you mean",
    "there is no module 'no_such_module' in the working directory",
)
def a_bad_model(draw):
    name = draw.choice(["inspect", "prune", "export", "analyze", "benchmark"])
    wrong = [
        "tiny_cli",
        "tiny_cli:buil",
        "no_such_module:build",
        "tiny_cli.py",
        "",
        "tiny_cli:NUMBER",
    ]
    chosen = draw.choice(wrong)
    rest = RIGHT[name][1:]
    return line(name, chosen, *rest), ["model", "MODEL", chosen]


@fixed_by(
    "expected module:function",
    "expected a function",
    "Did you mean",
    "there is no module 'no_such' in the working directory",
    "expected cross_entropy, mse",
)
def a_bad_function(draw):
    name, option = draw.choice(
        [
            ("prune", "--data"),
            ("quantize", "--evaluate"),
            ("analyze", "--evaluate"),
            ("prune", "--optimizer"),
            ("prune", "--loss"),
            ("export", "--inputs"),
        ]
    )
    chosen = draw.choice(["tiny_cli", "tiny_cli:bach", "no_such:x", "tiny_cli:NUMBER", "???"])
    return line(name, MODEL, *RIGHT[name][1:], option, chosen), [option[2:], chosen]


@fixed_by("Known: admm", "Known: bnn")
def an_unknown_algorithm(draw):
    name, option = draw.choice(
        [
            ("prune", "--algorithm"),
            ("quantize", "--algorithm"),
            ("config check", "--algorithm"),
            ("config migrate", "--algorithm"),
        ]
    )
    wrong = draw.choice(["magnitude", "ptqq", "gptq", "???", "lvl"])
    return line(name, *RIGHT[name], option, wrong), [wrong]


@fixed_by("Known: admm")
def an_unknown_schema(draw):
    wrong = draw.choice(["agpp", "recipes", "x", "QATt"])
    return ["config", "schema", wrong], [wrong]


@fixed_by("Known: admm")
def nothing_to_list(draw):
    return ["list", draw.choice(["zz*", "lev", "qatt"])], ["matches"]


@fixed_by("expected KEY=VALUE, such as")
def a_bad_option_pair(draw):
    name = draw.choice(["prune", "quantize", "export"])
    wrong = draw.choice(["adaround", "=3", "two words=1", "a-b=1", ""])
    return line(name, *RIGHT[name], "--option", wrong), ["--option"]


@fixed_by("It takes")
def an_unknown_option_of_the_algorithm(draw):
    name = draw.choice(["prune", "quantize"])
    wrong = draw.choice(["adaronud", "smoooth", "foo"])
    return line(name, *RIGHT[name], "--option", f"{wrong}=1"), [wrong]


@fixed_by("omit --config")
def config_twice(draw):
    return line("prune", MODEL, "--config", "rules.yaml", "--sparsity", "0.5"), ["--config"]


@fixed_by("no_rules.yaml: there is no such file")
def a_missing_config(draw):
    return line("prune", MODEL, "--config", "no_rules.yaml"), ["no_rules.yaml"]


@fixed_by("ends in .onnx or .tflite", "expected the name of a file")
def a_bad_export(draw):
    wrong = draw.choice(["small.pt", "small", "small.onx", "a/b.onnx", "../small.onnx", ".onnx"])
    if draw.random() < 0.5:
        return line("export", MODEL, wrong), ["small", "onnx", "file"]
    return line("quantize", *RIGHT["quantize"], "--export", wrong), ["small", "onnx", "file"]


@fixed_by("expected a folder to write into")
def a_file_for_the_output(draw):
    name = draw.choice(["run", "prune", "quantize", "export"])
    return line(name, *RIGHT[name], "--output", "notes.txt"), ["notes.txt"]


@fixed_by("expected one of torch, onnx")
def a_bad_format(draw):
    wrong = draw.choice(["onx", "int8", "tflite", "pt"])
    return line("benchmark", MODEL, "--format", wrong), ["--format", wrong]


@fixed_by("benchmark one at a time")
def two_models(draw):
    return line("benchmark", MODEL, "tiny_cli:other"), ["tiny_cli:other"]


@fixed_by("expected", "such as latency=0.5", "as in latency=0.5", "Did you mean")
def a_goal_that_cannot_be_read(draw):
    wrong = draw.choice(
        ["latency", "latency=", "latency=fast", "macs=-1", "latncy=0.5", "bytes=1 apple"]
    )
    given = ["--data", "tiny_cli:batches", *ACCURACY]
    return line("auto", MODEL, f"--target={wrong}", *given), [wrong.partition("=")[0]]


@fixed_by("auto needs --data module:function and --evaluate module:function")
def a_goal_without_functions(draw):
    given = draw.choice([[], ACCURACY, ["--data", "tiny_cli:batches"]])
    return line("auto", MODEL, "--target", "macs=0.5", *given), ["--evaluate"]


@fixed_by("pass --evaluate module:function")
def nothing_to_analyze(draw):
    return line("analyze", MODEL), ["--evaluate"]


@fixed_by("--model is missing")
def nothing_to_explain(draw):
    return line("config", "explain", "rules.yaml"), ["--model"]


@fixed_by("expected torch or keras")
def a_bad_framework(draw):
    return line("config migrate", "rules.yaml", "--framework", draw.choice(["jax", "torc"])), [
        "--framework"
    ]


@fixed_by("ends in .html", "create it first")
def a_bad_page(draw):
    return ["report", "good.json", "--output", draw.choice(["x.pdf", "no/x.html", "page"])], [
        "--output"
    ]


def broken_command(seed):
    """Return the name of the mutation, the arguments, the words to look for, and the fixes."""
    draw = random.Random(seed)
    mutation, fixes = MUTATIONS[seed % len(MUTATIONS)]
    return (mutation.__name__, *mutation(draw), fixes)
