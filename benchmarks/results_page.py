"""Generate docs/results.md, docs/papers.md and the README's table from the benchmarks' JSON files.

    ./run python benchmarks/results_page.py

A test compares them with this script's output, so that figures are neither outdated nor typed by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from coverage_table import status
from page_parts import SECTIONS, Record, machine, ours, percent, section, table
from record import RESULTS, machines

ROOT = Path(__file__).parent.parent
PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
HEAD = """# Results

`benchmarks/results_page.py` generates every table from the JSON files in `benchmarks/results`; the command
above a table reruns its measurement. The two sides of a ratio were measured alternately on the same machine.
Expect different ratios on a different CPU.
"""
IN_README = ("resnet50", "lite0", "minilm", "stories15m")  # of the trained networks


def page() -> str:
    """Return docs/results.md."""
    import search_tables  # noqa: F401  (registers its sections behind those of this file)

    parts = [HEAD]
    for title, command, files, write in SECTIONS:
        if not all((RESULTS / f"{file}.json").is_file() for file in files):
            continue  # only stored measurements are shown
        records = [load(file) for file in files]
        command = commands(records, command)
        where = machine(one for record in records for one in machines(record))
        lines = [f"## {title}", "", f"`./run python benchmarks/{command}` · {where}", ""]
        parts.append("\n".join([*lines, *write(*records)]) + "\n")
    return "\n".join(parts)


def commands(records: Iterable[Record], usual: str) -> str:
    """Return how a section was measured: as its files say, else as usual."""
    held = [x for record in records for x in record.get("commands", [])]
    return "`, `./run python benchmarks/".join(dict.fromkeys(held)) or usual


def readme(text: str) -> str:
    """Return the README with its table replaced."""
    record = load("trained")
    command = "./run python benchmarks/trained.py"
    shown = {name: record["networks"][name] for name in IN_README}
    where = machine(machines(record))
    lines = [*trained(record | {"networks": shown}), "", f"`{command}` · {where}"]
    lines += ["", overflow(load("trained_no_vnni"), ("resnet50", "lite0"))]
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, *lines, END + rest.partition(END)[2]])


def load(name: str) -> Record:
    record: Record = json.loads((RESULTS / f"{name}.json").read_text())
    return record


# The sections


@section("Trained networks, quantized", "trained.py", "trained")
def trained(record: Record) -> Iterator[str]:
    head = ["", "file", "", "speed", "", "layers on integers"]
    rows = []
    for network in record["networks"].values():
        size = f"{network['parameters'] / 1e6:.1f} M parameters"
        rows.append([f"**{network['title']}**, {size}", "", "", "", "", ""])
        whole = network["rows"]["float"]["megabytes"]
        for title, row in network["rows"].items():
            score = f"{network['measure']}: {shown_score(network['measure'], row['score'])}"
            if title == "float":
                rows.append([title, f"{whole:.1f} MB", "", "1", score, ""])
                continue
            cells = [f"{row['megabytes']:.1f} MB", f"÷ {whole / row['megabytes']:.1f}"]
            cells += [shown_speed(row), score, "{} of {}".format(*row["integer_layers"])]
            name = title if title == "Lilliput" else f"ONNX Runtime's `{title}`"
            rows.append([ours(cell, title == "Lilliput") for cell in [name, *cells]])
    tested = record["tested"]
    note = (
        "Speed is relative to the float file in ONNX Runtime with one thread and batch size 1 (median of "
        f"{record['rounds']} interleaved rounds). The CNNs are evaluated on {tested} photos, with the float "
        f"model's prediction as ground truth; MiniLM retrieves {tested} Reuters articles by their titles "
        "(R@1). The CNNs use default settings; the language models use dynamic quantization of the inputs of "
        "linear layers. ONNX Runtime's tools run with `per_channel=True`, which makes their files more "
        "accurate than their defaults do. Only layers with weights are counted: in both MiniLM files, the "
        "matrix products of queries, keys and values stay in float."
    )
    yield from table(head, rows, note)
    if "stories15m" in record["networks"]:
        yield ""
        yield (
            "stories15M has 4-bit weights, including the output head, which the other tool leaves in float. "
            "The inputs of its `down_proj` layers are not quantized."
        )
    if "resemblyzer" in record["networks"]:
        yield ""
        yield (
            "Resemblyzer's first LSTM layer is excluded from quantization, as the export's own note "
            "recommended for these recordings; quantizing it makes the embeddings much less precise."
        )


@section("The same on a CPU without VNNI", "trained.py", "trained_no_vnni")
def trained_without_vnni(record: Record) -> Iterator[str]:
    yield (
        "8-bit kernels can overflow on such a CPU. Lilliput exports files that cannot, at the cost of the "
        "last bit of some weights."
    )
    yield ""
    yield from trained(record)


def overflow(record: Record, names: Iterable[str]) -> str:
    """Return a sentence on the accuracy of both tools' files on a CPU without VNNI."""
    scores = []
    for network in (record["networks"][name] for name in names):
        both = [percent(row["score"]) for title, row in network["rows"].items() if title != "float"]
        scores.append(f"{network['title']} {' against '.join(both)}")
    return (
        "On CPUs without VNNI, 8-bit kernels can overflow; files that Lilliput exports for them do not. "
        f"Agreement with the float model's class there, Lilliput against the other tool: {', '.join(scores)} "
        "([table](docs/results.md#the-same-on-a-cpu-without-vnni))."
    )


def shown_score(measure: str, score: float) -> str:
    return f"{score:.1f}" if measure == "perplexity" else percent(score)


def shown_speed(row: Record) -> str:
    return ", ".join(f"{x:.2f}× {kind}".strip() for kind, x in row["speedups"].items())


@section("What producing a quantized file takes", "trained.py", "trained")
def quantizing(record: Record) -> Iterator[str]:
    rows = []
    for network in record["networks"].values():
        for title, row in network["rows"].items():
            if title != "float":
                cells = [
                    network["title"],
                    title,
                    f"{row['cpu_seconds']:.0f} s",
                    f"{row['sqnr']:.1f} dB",
                ]
                rows.append([ours(cell, title == "Lilliput") for cell in cells])
    yield from table(["", "", "CPU time from the PyTorch model", "outputs against float"], rows)


@section("One network in every runtime", "targets.py", "targets")
def targets(record: Record) -> Iterator[str]:
    head = ["", "file", "", "speed", "same class as float", "same class as the simulation"]
    rows = [
        [
            name,
            f"{row['bytes'] / 1e6:.1f} MB",
            f"÷ {row['smaller']:.1f}",
            f"{row['faster']:.2f}×",
            percent(row["same_class_as_float"]),
            percent(row["same_class_as_simulation"]),
        ]
        for name, row in record["rows"].items()
    ]
    note = (
        f"{record['network']} in 8 bits; size and speed are relative to the float file of the same runtime, "
        "by CPU time of one thread. All layers run on integers in all of them."
    )
    yield from table(head, rows, note)


@section("Which channels to remove, without training", "criteria.py", "criteria")
def criteria(record: Record) -> Iterator[str]:
    states = ["masked", "recalibrated", "reconstructed"]
    rows = []
    for network in record["networks"].values():
        kept = f"{percent(network['share'])} of the MACs"
        title = f"**{network['title']}**, {kept}: {network['measure']}"
        rows.append([title, *[""] * (len(states) + 1)])
        for title, row in network["rows"].items():
            scores = [percent(row[x]) if x in row else "" for x in states]
            title = "nothing removed" if title == "nothing" else title
            cells = [title, *scores, f"{row['latency']:.2f}" if "latency" in row else "1"]
            rows.append([ours(cell, title == "least squares") for cell in cells])
    note = (
        "Channels (for MiniLM, heads and neurons) are ranked globally across layers; latency is that of the "
        "cut network relative to the original. *Recalibrated* is `recalibrate(model, batches)`, which needs "
        "batches that resemble the training data. Here the batches are photos of fruit, so even the "
        "unpruned network gets worse. Empty cells were not measured."
    )
    yield from table(["", *states, "latency"], rows, note)


@section("EfficientNet-Lite with fewer multiplications", "pruned.py", "pruned")
def pruned(record: Record) -> Iterator[str]:
    rows = []
    for name, network in record["networks"].items():
        rows.append([f"**{name}**", "", "", percent(network["fruit"]), ""])
        for row in network["rows"]:
            for state in ("untrained", "distilled"):
                if state in row:
                    figures = [percent(row[state][x]) for x in ("same", "fruit")]
                    far = row[state].get("divergence")
                    figures.append("" if far is None else f"{far:.3f}")
                    steps = row[state].get("steps")
                    title = state if steps is None else f"{state}, {steps} steps"
                    rows.append([percent(row["share"]), title, *figures])
    head = ["MACs", "", "same class as float", "kind of fruit", "divergence from float"]
    note = (
        f"`LeastSquaresPruner` and `reconstruct` see {network['calibrated']} unlabelled photos; the results "
        f"are evaluated on {record['tested']} others, where one standard error is about 1.5 points. All "
        f"settings were chosen on Lite0. *Distilled* means {network['minutes']:.0f} minutes of CPU time on "
        "the training photos with the original as teacher; the weights of the last step are evaluated, not "
        "the best ones. Divergence is the Kullback-Leibler divergence between class probabilities, in nats "
        "(empty cells were not measured)."
    )
    yield from table(head, rows, note)


@section(
    "What masks cost in training",
    "train_step.py [--compile]",
    *(f"train_step_{x}" for x in ("eager", "compiled")),
)
def train_step(eager: Record, compiled: Record) -> Iterator[str]:
    yield "CPU time of a training step divided by that of a plain step, one thread."
    yield ""
    columns = [
        (f"{network}, {mode}", record["ratios"][network])
        for mode, record in (("eager", eager), ("compiled", compiled))
        for network in ("CNN", "encoder")
    ]
    yield from ratios(columns, eager["ratios"]["CNN"], skip="plain")


@section("What quantization costs in training", "qat_step.py", "qat_step")
def qat_step(record: Record) -> Iterator[str]:
    yield (
        "CPU time of a training step divided by that of a float step, one thread; the weights and inputs of "
        "all layers are quantized."
    )
    yield ""
    columns = [(name, record["ratios"][name]) for name in ("CNN", "encoder")]
    yield from ratios(columns, record["ratios"]["CNN"], skip="float")


@section("What it costs in `model.fit`", "keras_step.py", "keras_step")
def keras_step(record: Record) -> Iterator[str]:
    yield (
        "CPU time of a `model.fit` training step divided by that of a plain step, one thread, for a CNN with "
        "0.6 M weights."
    )
    yield ""
    columns = [(name, found["ratios"]) for name, found in record["backends"].items()]
    yield from ratios(columns, columns[0][1], skip="plain")


def ratios(columns: list[tuple[str, Record]], names: Iterable[str], skip: str) -> Iterator[str]:
    rows = []
    for name in names:
        if name != skip:
            cells = [f"{found[name]:.2f}" if name in found else "" for _, found in columns]
            title = f"{name} (the noise)" if name == f"{skip} again" else name
            rows.append([title, *cells])
    yield from table(["", *(title for title, _ in columns)], rows)


@section("Cutting channels out of 142 architectures", "speedup_coverage.py", "speedup_coverage")
def coverage(record: Record) -> Iterator[str]:
    models = record["models"].values()
    counts = Counter(status(one) for one in models)
    peers = Counter(one.get("peer", {}).get("status", "not run") for one in models)
    errors = [one["float32"]["error"] for one in models if status(one) == "equal"]
    yield (
        f"Half of every layer's channels are removed from {len(models)} small networks with random weights: "
        f"{counts['equal']} are cut and reproduce the masked model's outputs (relative error at most "
        f"{max(errors):.0e}), {counts['refused']} are refused with a reason, and "
        f"{counts['wrong'] + counts['crash']} are wrong. Torch-Pruning runs on {peers['ok']} of them (same "
        "output shape; its outputs are not compared)."
    )


@section("What finding and cutting channels costs", "real_size.py", "real_size")
def real_size(record: Record) -> Iterator[str]:
    yield (
        "CPU seconds on one thread, median of "
        f"{record['runs']} runs: constructing a pruner for half of every layer's channels, `compress()` and "
        "`speedup()` with its check in double precision and its receipt. Torch-Pruning checks nothing. "
        "Random weights, two images of 224 × 224; the last two rows are residual networks of many layers."
    )
    yield ""
    rows = [
        [name, *(f"{x:.2f} s" if isinstance(x, float) else "fails" for x in row.values())]
        for name, row in record["networks"].items()
    ]
    yield from table(["", "Lilliput", "Torch-Pruning"], rows)


@section("Half of a ResNet", "structured_accuracy.py --pruners L1NormPruner", "structured_accuracy")
def structured(record: Record) -> Iterator[str]:
    dense, cut = record["runs"][:2]
    yield (
        f"A ResNet with {dense['parameters'] / 1e6:.2f} M parameters on Fashion-MNIST, 10,000 test images, "
        f"one seed, `max_macs: 0.5`, {record['options']['tune_epochs']} epochs of fine-tuning after the cut."
    )
    yield ""
    rows = [
        ["trained", percent(dense["accuracy"]), "1", "1", "1"],
        ["trained for as many more epochs", percent(dense["control_accuracy"]), "1", "1", "1"],
    ]
    kept = [f"{cut[key]:.2f}" for key in ("macs_kept", "parameters_kept", "onnx_latency_ratio")]
    rows.append(["**cut and fine-tuned**", percent(cut["after_speedup"]), *kept])
    yield from table(["", "accuracy", "MACs", "parameters", "time in ONNX Runtime"], rows)


@section(
    "Accuracy at 8 and 4 bits",
    "quantization_accuracy.py --only low_bits",
    "quantization_accuracy_low_bits",
)
def low_bits(record: Record) -> Iterator[str]:
    yield (
        "A ResNet with 0.24 M parameters on Fashion-MNIST, 10,000 test images, executed by ONNX Runtime, one "
        "seed; with W4, the first and last layers keep 8 bits."
    )
    yield ""
    rows = []
    for row in record["rows"]:
        layers = f"{row['integer_layers']} of {row['layers']}" if "layers" in row else ""
        size = f"{row['bytes'] / 1e6:.2f} MB"
        rows.append([row["title"], f"{100 * row['executed']:.2f} %", layers, size])
    yield from table(["", "accuracy", "layers on integers", "file"], rows)


@section("Keras, as LiteRT executes it", "keras_accuracy.py", "keras_accuracy")
def keras_accuracy(record: Record) -> Iterator[str]:
    yield (
        f"A CNN with {record['parameters'] / 1e6:.2f} M weights on Fashion-MNIST, 10,000 test images, one "
        f"seed, {record['epochs']} epochs per stage."
    )
    yield ""
    rows = [
        [
            name,
            f"{row['executed']:.2f} %",
            f"{row['bytes'] / 1000:,.0f} kB",
            percent(row["integer_share"]),
        ]
        for name, row in record["results"].items()
    ]
    yield from table(["", "accuracy", "file", "multiplications on integers"], rows)


@section("LSQ on Keras and on torch", "keras_lsq.py", "keras_lsq_tensorflow")
def keras_lsq(record: Record) -> Iterator[str]:
    yield (
        "A small CNN on Fashion-MNIST, 10,000 test images (simulated), one seed. From the same float "
        f"weights, all weights and inputs are trained in 4 bits for {record['epochs']} epochs, "
        "with the same batches on both frameworks. The run whose initial "
        "weights differ in their last digits shows the noise."
    )
    yield ""
    yield from table(
        ["", "accuracy"], [[name, f"{value:.2f} %"] for name, value in record["results"].items()]
    )


@section("Sparsity and accuracy", "sparsity_accuracy.py", "sparsity_accuracy")
def sparsity(record: Record) -> Iterator[str]:
    yield f"A small CNN on scikit-learn's digits, mean of {record['seeds']} seeds."
    yield ""
    rows = [[name, *map(percent, values)] for name, values in record["accuracy"].items()]
    yield from table(
        ["zeros", *(f"{level:.0%}".replace("%", " %") for level in record["levels"])], rows
    )
    yield ""
    yield "![Accuracy against sparsity](images/sparsity_accuracy.svg)"


@section("Killed and resumed", "kill_resume.py --kills 50", "kill_resume")
def kill_resume(record: Record) -> Iterator[str]:
    yield (
        f"{record['kills']} recipe runs were each killed with `kill -9` at a random moment and resumed: in "
        f"{record['identical']} of them, every file is byte-identical to that of an uninterrupted run."
    )


@section("The mask of one large layer", "mask_time.py", "mask_time")
def mask_time(record: Record) -> Iterator[str]:
    yield f"{record['weights']:,} weights; {record['zeros']:,} zeros requested and produced."
    yield ""
    rows = [[name, f"{seconds:.2f} s"] for name, seconds in record["seconds"].items()]
    yield from table(["", f"{record['threads']} threads"], rows)


@section("Peak memory of a cut", "cut_memory.py", "cut_memory")
def cut_memory(record: Record) -> Iterator[str]:
    yield (
        "Peak memory while half of all channels are pruned and cut out (random weights), in addition to the "
        "model itself."
    )
    yield ""
    rows = [
        [name, f"{row['weights [MB]']:.0f} MB", f"{row['peak / weights']:.1f} × the weights"]
        for name, row in record["models"].items()
    ]
    yield from table(["", "weights", "peak"], rows)


@section("What installing and importing it takes", "footprint.py", "footprint")
def footprint(record: Record) -> Iterator[str]:
    rows = [[name, f"{value:.3g}"] for name, value in record["results"].items()]
    yield from table(["", ""], rows)


def main() -> None:
    from papers.page import page as papers

    PAGE.write_text(page())
    (ROOT / "docs" / "papers.md").write_text(papers())
    README.write_text(readme(README.read_text()))


if __name__ == "__main__":
    main()
