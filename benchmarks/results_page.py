"""Write docs/results.md, docs/papers.md and the table in the README from the JSON of the benchmarks.

    ./run python benchmarks/results_page.py

A test compares them with what this writes, so that no figure goes stale or is typed by hand.
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

Every table is written by `benchmarks/results_page.py` from the JSON in `benchmarks/results`; the command
above a table measures it again. A ratio compares two things that took turns on the same machine. Expect
other ones on another CPU.
"""
IN_README = ("resnet50", "lite0", "minilm", "stories15m")  # of the trained networks


def page() -> str:
    """Return docs/results.md."""
    import search_tables  # noqa: F401  (registers its sections behind those of this file)

    parts = [HEAD]
    for title, command, files, write in SECTIONS:
        if not all((RESULTS / f"{file}.json").is_file() for file in files):
            continue  # nothing is shown that was not measured and kept
        records = [load(file) for file in files]
        where = machine(one for record in records for one in machines(record))
        lines = [f"## {title}", "", f"`./run python benchmarks/{command}` · {where}", ""]
        parts.append("\n".join([*lines, *write(*records)]) + "\n")
    return "\n".join(parts)


def readme(text: str) -> str:
    """Return the README with its table written anew."""
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
    yield from table(head, rows)
    tested = record["tested"]
    yield ""
    yield (
        "Speed is against the float file in the same runtime: ONNX Runtime, one thread, one example, "
        f"median of {record['rounds']} rounds in turns. "
        f"The CNNs see {tested} photos, and the class that float gives is right; MiniLM finds {tested} "
        "Reuters news by their titles (R@1). Default settings for the CNNs; dynamic quantization of the "
        "inputs of linear layers for the language models. Layers are counted that have weights: in both "
        "files of MiniLM, the products of queries, keys and values stay in float."
    )
    if "stories15m" in record["networks"]:
        yield ""
        yield (
            "stories15M has 4-bit weights, its head included, which the other tool leaves in float; the "
            "inputs of its `down_proj` layers are not quantized."
        )
    if "resemblyzer" in record["networks"]:
        yield ""
        yield (
            "Resemblyzer's first LSTM layer is excluded from quantization, as the export's own note advised "
            "on these recordings; with it the embeddings are much less precise."
        )


@section("The same on a CPU without VNNI", "trained.py", "trained_no_vnni")
def trained_without_vnni(record: Record) -> Iterator[str]:
    yield (
        "Kernels for 8 bits can overflow on such a CPU. Lilliput's files for it are made so that they do "
        "not, which costs the last bit of some weights."
    )
    yield ""
    yield from trained(record)


def overflow(record: Record, names: Iterable[str]) -> str:
    """Say what both tools' files keep on a CPU without VNNI."""
    scores = []
    for network in (record["networks"][name] for name in names):
        both = [percent(row["score"]) for title, row in network["rows"].items() if title != "float"]
        scores.append(f"{network['title']} {' against '.join(both)}")
    return (
        "On a CPU without VNNI, kernels for 8 bits can overflow. Lilliput's files for it are made so that "
        f"they do not; the same class as float there, beside the other tool: {', '.join(scores)} "
        "([table](docs/results.md#the-same-on-a-cpu-without-vnni))."
    )


def shown_score(measure: str, score: float) -> str:
    return f"{score:.1f}" if measure == "perplexity" else percent(score)


def shown_speed(row: Record) -> str:
    return ", ".join(f"{x:.2f}× {kind}".strip() for kind, x in row["speedups"].items())


@section("What making a quantized file takes", "trained.py", "trained")
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


@section("Which channels to remove, without training", "criteria.py", "criteria")
def criteria(record: Record) -> Iterator[str]:
    states = ["masked", "recalibrated", "matched", "reconstructed"]
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
    yield from table(["", *states, "latency"], rows)
    yield ""
    yield (
        "Channels (MiniLM: heads and neurons) ranked over all layers; latency of the cut network, 1 before. "
        "Recalibrated: `recalibrate(model, batches)`, which wants batches like those of the training. These "
        "are photos of fruit, and a network that lost *nothing* loses its classes by them all the same; "
        "matched: `recalibrate(model, batches, original=original)`. An empty cell was not measured."
    )


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
    yield from table(head, rows)
    yield ""
    yield (
        f"`LeastSquaresPruner` and `reconstruct` see {network['calibrated']} photos without labels; judged "
        f"on {record['tested']} others, where one standard error is about 1.5 points. All settings were "
        f"chosen on Lite0. Distilled: {network['minutes']:.0f} minutes of CPU time on the training photos, "
        "the original as teacher; the weights of the last step count, not the best ones. The divergence is "
        "that of the probabilities of the classes (Kullback-Leibler, nats; empty: not measured)."
    )


@section(
    "What masks cost in training",
    "train_step.py [--compile]",
    *(f"train_step_{x}" for x in ("eager", "compiled")),
)
def train_step(eager: Record, compiled: Record) -> Iterator[str]:
    yield "Training step / plain step, CPU time, one thread."
    yield ""
    columns = [
        (f"{network}, {mode}", record["ratios"][network])
        for mode, record in (("eager", eager), ("compiled", compiled))
        for network in ("CNN", "encoder")
    ]
    yield from ratios(columns, eager["ratios"]["CNN"], skip="plain")


@section("What quantization costs in training", "qat_step.py", "qat_step")
def qat_step(record: Record) -> Iterator[str]:
    yield "Training step / float step, CPU time, one thread; weights and inputs of all layers."
    yield ""
    columns = [(name, record["ratios"][name]) for name in ("CNN", "encoder")]
    yield from ratios(columns, record["ratios"]["CNN"], skip="float")


@section("What it costs in `model.fit`", "keras_step.py", "keras_step")
def keras_step(record: Record) -> Iterator[str]:
    yield "Training step / plain step of `model.fit`, CPU time, one thread, CNN of 0.6 M weights."
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
        f"Half of every layer's channels, {len(models)} small networks, random weights: {counts['equal']} "
        f"are cut and give the masked model's outputs (relative error {max(errors):.0e} at most), "
        f"{counts['refused']} are refused with the reason, {counts['wrong'] + counts['crash']} are wrong. "
        f"Torch-Pruning runs on {peers['ok']} of them (same output shape; its outputs are not compared)."
    )


@section("Half of a ResNet", "structured_accuracy.py --pruners L1NormPruner", "structured_accuracy")
def structured(record: Record) -> Iterator[str]:
    dense, cut = record["runs"][:2]
    yield (
        f"A ResNet of {dense['parameters'] / 1e6:.2f} M parameters on Fashion-MNIST, 10,000 test images, one "
        f"seed, `max_macs: 0.5`, {record['options']['tune_epochs']} epochs of fine-tuning after the cut."
    )
    yield ""
    rows = [
        ["trained", percent(dense["accuracy"]), "1", "1", "1"],
        ["trained, the same epochs more", percent(dense["control_accuracy"]), "1", "1", "1"],
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
        "A ResNet of 0.24 M parameters on Fashion-MNIST, 10,000 test images as ONNX Runtime executes them, "
        "one seed; first and last layer at 8 bits in W4."
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
        f"A CNN of {record['parameters'] / 1e6:.2f} M weights on Fashion-MNIST, 10,000 test images, one "
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
        f"{record['kills']} runs of a recipe, each killed with `kill -9` at a random moment and resumed: "
        f"{record['identical']} end with the same bytes in every file as an uninterrupted run."
    )


@section("The mask of one large layer", "mask_time.py", "mask_time")
def mask_time(record: Record) -> Iterator[str]:
    yield f"{record['weights']:,} weights, {record['zeros']:,} zeros asked for and made."
    yield ""
    rows = [[name, f"{seconds:.2f} s"] for name, seconds in record["seconds"].items()]
    yield from table(["", f"{record['threads']} threads"], rows)


@section("Peak memory of a cut", "cut_memory.py", "cut_memory")
def cut_memory(record: Record) -> Iterator[str]:
    yield "Pruning half of all channels and cutting them out, random weights, peak over what the model holds."
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
