"""Reports to test with: one made from data alone with 160 layers, and one with hostile names."""

import math
import random

import pytest

from lilliput.measure.receipt import Figures, Receipt
from lilliput.report.document import (
    ChannelGroup,
    Curve,
    HistogramPair,
    LayerRow,
    Report,
    TriedPoint,
)

HOSTILE = "<script>document.title='owned'</script>\"'&</script><!--"


def make_receipt():
    runtime = "ONNX Runtime 1.31, 2 threads, batch 1"
    before = Figures(
        *("trained model", runtime, 25_557_032, 25_557_032, 4_089_184_256, 102_230_128),
        *(84.2, 91.0, 50, 0.8034),
    )
    after = Figures(
        *("small_int8.onnx", runtime, 9_411_220, 9_411_220, 1_322_907_648, 9_702_410),
        *(15.1, 16.4, 50, 0.7981),
    )
    note = "Coarser weights in 3 layers, or 16-bit sums would saturate on this CPU."
    return Receipt(before, after, "accuracy", 0.0312, notes=(note,))


def bell(draw, center, width, bins, gap=0.0):
    """A histogram like that of weights, with a gap around zero like that of pruned ones."""
    places = [-1 + 2 * (i + 0.5) / bins for i in range(bins)]
    heights = [
        0 if abs(x) < gap else draw.uniform(0.8, 1.2) * math.exp(-(((x - center) / width) ** 2) / 2)
        for x in places
    ]
    return [round(1000 * h / sum(heights)) for h in heights]


def make_large(layers=160, targets=("weight", "input"), bins=64):
    """A report such as a ResNet of that many layers gives, without running one."""
    draw = random.Random(0)
    rows, histograms, curves, groups = [], [], [], []
    for i in range(layers):
        name, wide = f"layer{1 + i // 60}.{i % 60 // 4}.conv{i % 4 + 1}", 64 * 2 ** (i // 40)
        left = max(8, round(wide * draw.uniform(0.2, 0.95)))
        sqnr = {t: round(draw.gauss(38, 5), 2) for t in targets}
        rows.append(
            LayerRow(
                name=name,
                type="Conv2d",
                shape=[left, left, 3, 3],
                shape_before=[wide, wide, 3, 3],
                parameters=left * left * 9,
                parameters_before=wide * wide * 9,
                nonzeros=left * left * 9,
                macs=left * left * 9 * 196,
                macs_before=wide * wide * 9 * 196,
                bits=8,
                sqnr=sqnr,
                ms=round(draw.uniform(0.01, 2.0), 4),
                ms_before=round(draw.uniform(1.0, 4.0), 4),
                kernel="QLinearConv",
            )
        )
        for target in targets:
            histograms.append(
                HistogramPair(
                    layer=name,
                    target=target,
                    low=-0.31,
                    high=0.31,
                    before=bell(draw, 0, 0.25, bins),
                    after=bell(draw, 0, 0.27, bins, draw.choice([0, 0.06, 0.12])),
                    zeros_before=0.0,
                    zeros=round(draw.random() * 0.5, 3),
                )
            )
        fall = draw.uniform(0.02, 0.6) ** 2
        points = [(s / 10, round(0.8034 - fall * (s / 10) ** 3, 4)) for s in range(1, 10)]
        curves.append(Curve(layer=name, baseline=0.8034, points=points))
    names = [row.name for row in rows]
    for i in range(0, layers - 1, 2):
        group = ChannelGroup(
            name=f"{names[i]}.weight", size=64, makes=[names[i]], reads=[names[i + 1]]
        )
        groups.append(group)
    groups.append(
        ChannelGroup(
            name="fc.weight", size=1000, makes=["fc"], reason="they are the model's output"
        )
    )
    return Report(
        title="ResNet-152, 45 % of the channels, 8 bits",
        created="2026-11-16T11:30:00+00:00",
        receipt=make_receipt().to_dict(),
        layers=rows,
        sensitivity=curves,
        histograms=histograms,
        points=make_points(draw),
        groups=groups,
        recipe=RECIPE,
        environment=ENVIRONMENT,
        reproduce="lilliput run recipe.yaml --seed 0\nlilliput report run/report.json",
    )


def make_points(draw):
    tried = []
    for i in range(28):
        share = draw.uniform(0.08, 1.0)
        metric = 0.805 - 0.11 * (1 - share) ** 3 - draw.uniform(0, 0.02)
        tried.append(
            TriedPoint(
                name=f"sparsity {1 - share:.2f}, run {i}",
                bytes=round(102e6 * share),
                macs=round(4.1e9 * share**1.2),
                p50=round(84 * share**0.8, 2),
                metric=round(metric, 4),
                sparsity=round(1 - share, 3),
            )
        )
    return tried


RECIPE = """lilliput: 1
model: imagenet:resnet
data: imagenet:batches
evaluate: imagenet:accuracy
seed: 0
steps:
  - prune: agp
    config: [{op_types: [Conv2d], final_sparsity: 0.45}]
    options: {pruning_algorithm: l1}
    epochs: 15
  - speedup: {}
  - finetune: {epochs: 10}
  - quantize: qat
    config: [{op_types: [Conv2d, Linear]}]
    epochs: 3
  - export: onnx
    file: small_int8.onnx
"""
ENVIRONMENT = {
    "packages": {"lilliput": "0.1.0", "torch": "2.13.0", "onnxruntime": "1.31.1"},
    "python": "3.11.9",
    "os": "Debian GNU/Linux 13 (trixie)",
    "machine": "x86_64",
    "cpu": "Example CPU @ 2.50GHz",
    "flags": {"avx2": True, "avx512": True, "vnni": True, "amx": False},
    "cores": 2,
    "threads": 2,
}


def make_hostile():
    """A report whose every text tries to break out of its place."""
    figures = Figures(HOSTILE, HOSTILE, 10, 10, 10, 10, 1.0, 1.0, 1, 0.5)
    return Report(
        title=HOSTILE,
        created=HOSTILE,
        receipt=Receipt(figures, figures, HOSTILE, notes=(HOSTILE,)).to_dict(),
        layers=[
            LayerRow(
                name=f"{HOSTILE}{i}",
                type=HOSTILE,
                shape=[4, 4],
                parameters=16,
                nonzeros=8,
                macs=16,
                kernel=HOSTILE,
                sqnr={"weight": 30.0},
            )
            for i in range(3)
        ],
        sensitivity=[Curve(layer=HOSTILE, baseline=0.9, points=[(0.5, 0.8)])],
        histograms=[
            HistogramPair(layer=f"{HOSTILE}{i}", target="weight", low=-1, high=1, before=[5, 5])
            for i in range(14)
        ],
        points=[TriedPoint(name=f"{HOSTILE}{i}", bytes=i + 1, metric=0.5 + i) for i in range(3)],
        groups=[
            ChannelGroup(name=HOSTILE, size=4, makes=[HOSTILE], reads=["b"]),
            ChannelGroup(name="b", size=4, makes=["b"], reason=HOSTILE),
        ],
        recipe=HOSTILE,
        environment={"cpu": HOSTILE, "packages": {HOSTILE: HOSTILE}, "flags": {HOSTILE: True}},
        reproduce=HOSTILE,
        notes=[HOSTILE],
    )


@pytest.fixture(scope="session", name="make_large")
def _make_large():
    return make_large


@pytest.fixture(scope="session")
def large():
    return make_large()


@pytest.fixture(scope="session")
def hostile():
    return make_hostile()
