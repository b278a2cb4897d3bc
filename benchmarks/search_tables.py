"""The sections of docs/results.md on search; results_page.py writes them."""

from __future__ import annotations

from collections.abc import Iterator

from page_parts import Record, ours, percent, section, table


@section("Bits under an average", "search.py bits", "search_bits")
def search_bits(record: Record) -> Iterator[str]:
    yield (
        f"{record['network']}, weights of 4 or 8 bits, 5 on average, {record['layers']} layers. How often "
        f"the class is that of the float network, on {record['photos']:,} photos; what is chosen is chosen "
        f"on {record['calibrated']} others. Recovered: of what 4 bits for all layers lose."
    )
    yield ""
    rows, random = [], []
    shares = [x for x in SHARES if any(x in row for row in record["rows"].values())]
    for title, row in record["rows"].items():
        if title.startswith("random"):
            random.append(row)
            continue
        cells = [title, f"{row['average bits']:.2f}", percent(row["same class"])]
        cells += [shown_share(row, name) for name in shares]
        rows.append([ours(cell, title == "Lilliput") for cell in cells])
    same = sum(row["same class"] for row in random) / len(random)
    bits = sum(row["average bits"] for row in random) / len(random)
    cells = [f"at random, {len(random)} times", f"{bits:.2f}", percent(same)]
    for name in shares:
        held = [row[name] for row in random]
        cells.append(f"{percent(min(held))} to {percent(max(held))}")
    rows.append(cells)
    head = ["", "bits on average", "same class as float", *(SHARES[x] for x in shares)]
    yield from table(head, rows)
    yield ""
    yield (
        "± is one standard error over the photos. Scores alone: without exchanges that are judged by the "
        f"outputs on the calibration photos ({record['trials']} trials at most). Noise of each "
        "weight: the least total of squared rounding errors, each as a share of its weight. Other tools "
        "chose by the same photos (`search_peers.py`); all choices are quantized in the same way."
    )
    if len(shares) > 1:
        yield (
            "Biases are corrected in all rows but the first. Shares recovered are relative to the loss of 4 "
            "bits without that correction and, in the last column, with it."
        )


SHARES = {"recovered": "recovered", "recovered of corrected": "of what corrected 4 bits lose"}


def shown_share(row: Record, name: str) -> str:
    if name not in row:
        return ""
    return f"{percent(row[name])} ± {100 * row[f'{name}, standard error']:.1f}"


@section("What sensitivities cost and are worth", "search.py scores", "search_scores")
def search_scores(record: Record) -> Iterator[str]:
    rows = []
    for row in record["networks"].values():
        cells = [row["network"], f"{row['layers']} × {row['choices']}", str(row["inputs"])]
        cells += [f"{row['CPU seconds']:.0f} s", f"{row['one at a time, CPU seconds']:.0f} s"]
        cells += [f"{row['times cheaper']:.1f}×"]
        ranks = ["rank correlation", *(f"rank correlation at {n} bits" for n in (8, 4))]
        rows.append([*cells, *(f"{row[x]:.3f}" for x in ranks)])
    head = ["", "layers × choices", "inputs", "all at once", "one at a time", "cheaper"]
    note = (
        "CPU time on one thread, as many inputs for each trial as for all sensitivities together. Rank "
        "correlation (Spearman) with how far the outputs move on other inputs when one layer is quantized: "
        "divergence of the classes, or squared distance of the embeddings."
    )
    yield from table([*head, "rank correlation", "at 8 bits", "at 4 bits"], rows, note)


@section("Latency as a search expects it", "search_latency.py time", "search_latency")
def search_latency(record: Record) -> Iterator[str]:
    rows = []
    for kind, row in record["kinds"].items():
        for title, suffix in (("table", ""), ("MACs", " by MACs")):
            error, rank = row[f"mean error{suffix}"], row[f"rank correlation{suffix}"]
            cells = [f"{kind}, by {title}", percent(error), f"{rank:.3f}"]
            rows.append([ours(cell, title == "table") for cell in cells])
    row = next(iter(record["kinds"].values()))
    again = ", ".join(f"{k} {percent(x['measured again'])}" for k, x in record["kinds"].items())
    note = (
        f"{row['random networks']} random networks cut out of EfficientNet-Lite0 and quantized, all layers "
        f"(int8) or some (mixed); ONNX Runtime, CPU time of {row['threads']} thread, batch {row['batch']}. "
        f"The table was filled from {row['networks timed for the table']} other networks. "
        f"MACs are scaled by the median. The same network measured again differs by: {again}."
    )
    yield from table(["", "mean error", "rank correlation"], rows, note)


@section("A search on two workers", "search_workers.py speed", "search_workers")
def search_workers(record: Record) -> Iterator[str]:
    if "speed" in record:
        row = record["speed"]
        one, two = row["seconds"].values()
        yield (
            f"{row['trials']} trials on Fashion-MNIST: {one:.0f} s on one worker, {two:.0f} s on two, "
            f"{row['times faster']:.2f} × as fast, and the same config list."
        )
        yield ""
    if "kills" in record:
        held = record["kills"]
        parts = [
            f"{held[x]['same config list']} of {held[x]['killed']} searches {text}"
            for x, text in (
                ("workers", "in which a worker was killed"),
                ("searches", "that were killed and continued"),
            )
        ]
        yield (
            "`kill -9` at random moments (`search_workers.py kills`): the same config list as without one "
            f"in {' and '.join(parts)}."
        )


def half_the_latency(record: Record) -> Iterator[str]:
    seeds, rows = record["seeds"], []
    names = {
        "control": "not pruned, trained as long",
        "uniform": "the same share of every layer, L1",
        "fastnas": "channels by FastNAS of ModelOpt",
        "search": "channels by `Search`",
        "int8": "channels by `Search`, all layers in 8 bits",
        "bits": "channels by `Search`, layers in 8 bits or floating point",
    }
    for key, title in names.items():
        held = [seed[key] for seed in seeds if key in seed]
        if not held:
            continue
        figures = [100 * x["accuracy"] for x in held]
        mean = sum(figures) / len(figures)
        cells = [title, f"{mean:.2f} %", ", ".join(f"{x:.2f}" for x in figures)]
        for what in ("latency", "macs"):
            cells.append(f"{sum(x[what] for x in held) / len(held):.2f}")
        rows.append([ours(cell, key in ("search", "int8", "bits")) for cell in cells])
    yield from table(["", "accuracy", "by seed", "latency", "MACs"], rows)
    options, whole = record["options"], [100 * seed["dense"]["accuracy"] for seed in seeds]
    network = {"cifar-10": "ResNet-20 on CIFAR-10", "fashion-mnist": "ResNet-8 on Fashion-MNIST"}
    yield ""
    yield (
        f"{network[options['data']]} ({sum(whole) / len(whole):.2f} %), then {options['tune_epochs']} epochs "
        f"more each way; test images as ONNX Runtime executes them, one thread, batch {record['batch']}. "
        "Choices are made by validation images. FastNAS keeps a share of the operations, the largest whose "
        "file is fast enough; uniform shares grow by 3 %. Latency falls in steps, by whole blocks of "
        "channels, so both may end below half of it. Networks are in floating point where no bits are named."
    )
    if len(seeds) > len(set(whole)) == 1:
        yield "One dense network for all seeds, which is cut once each way; seeds differ in the training."


@section("Half the latency of ResNet-20 on CIFAR-10", "search_accuracy.py time", "search_cifar-10")
def search_cifar(record: Record) -> Iterator[str]:
    yield from half_the_latency(record)


@section(
    "Half the latency of ResNet-8 on Fashion-MNIST",
    "search_accuracy.py time --data fashion-mnist",
    "search_fashion-mnist",
)
def search_fashion(record: Record) -> Iterator[str]:
    yield from half_the_latency(record)
