"""The entropy coder against the entropy, against itself with other lanes, and against constriction."""

import numpy as np
import pytest

from lilliput.compact.ans import SLOTS, Reader, Writer, entropy
from lilliput.errors import StateError


def batches_of(seed, count=40, most=300):
    """Return random batches of bits and of symbols, with their probabilities."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        size = int(rng.integers(1, most))
        if rng.random() < 0.5:
            zeros = rng.integers(1, SLOTS, size)
            found.append(("bits", zeros, None, rng.random(size) * SLOTS >= zeros))
        else:
            sizes = rng.integers(1, SLOTS // 7, (3, 6))
            bounds = np.pad(sizes.cumsum(1), ((0, 0), (1, 1)), constant_values=((0, 0), (0, SLOTS)))
            context = rng.integers(0, 3, size)
            slot = rng.integers(0, SLOTS, size)
            symbol = (bounds[context][:, 1:] <= slot[:, None]).sum(1)
            found.append(("symbols", bounds.astype(np.int64), context, symbol))
    return found


def write(batches, lanes):
    writer = Writer()
    for kind, table, context, known in batches:
        writer.bits(table, known) if kind == "bits" else writer.symbols(table, context, known)
    return writer.finish(lanes), writer.cost


def read(data, batches, lanes):
    reader = Reader(data, lanes)
    found = [
        reader.bits(table, None) if kind == "bits" else reader.symbols(table, context, None)
        for kind, table, context, _ in batches
    ]
    reader.close()
    return found


@pytest.mark.parametrize("lanes", [1, 2, 7, 64, 1000])
def test_what_was_written_is_read_with_any_number_of_lanes(lanes):
    batches = batches_of(lanes)
    data, _ = write(batches, lanes)
    for found, (*_, known) in zip(read(data, batches, lanes), batches, strict=True):
        np.testing.assert_array_equal(found, known)


def test_a_stream_is_as_long_as_the_probabilities_say():
    batches = batches_of(3, count=400)
    data, cost = write(batches, 1)
    expected = 0.0
    for kind, table, context, known in batches:
        if kind == "bits":
            share = np.where(known, SLOTS - table, table) / SLOTS
        else:
            share = (table[context, known + 1] - table[context, known]) / SLOTS
        expected -= np.log2(share).sum()
    assert cost == pytest.approx(expected)
    assert expected / 8 <= len(data) < expected / 8 * 1.001 + 8


def test_constriction_reads_the_same_stream():
    """An independent implementation of the same coder: bits of one half, which it represents exactly."""
    constriction = pytest.importorskip("constriction")
    rng = np.random.default_rng(0)
    symbols = rng.integers(0, 4, 500)
    bounds = np.arange(5)[None] * (SLOTS // 4)
    writer = Writer()
    writer.symbols(bounds, np.zeros(500, np.int64), symbols)
    words = np.frombuffer(writer.finish(1), "<u4")
    # Its stack has the state on top: low half below the high one, under them the words, last one first.
    coder = constriction.stream.stack.AnsCoder(np.concatenate([words[:1:-1], words[:2]]))
    model = constriction.stream.model.Uniform(4)
    np.testing.assert_array_equal(coder.decode(model, 500), symbols)


@pytest.mark.parametrize("lanes", [1, 64])
@pytest.mark.parametrize("harm", ["cut", "longer", "state", "word"])
def test_a_damaged_stream_is_refused(lanes, harm):
    batches = batches_of(5, count=200)
    data = bytearray(write(batches, lanes)[0])
    if harm == "cut":
        data = data[:-8]
    elif harm == "longer":
        data += bytes(4)
    elif harm == "state":
        data[4:8] = bytes(4)
    else:
        data[-3] ^= 0xFF
    with pytest.raises(StateError, match="stream"):
        read(bytes(data), batches, lanes)


def test_entropy_is_that_of_the_shares():
    counts = np.array([1, 0, 7, 8])
    shares = counts[counts > 0] / 16
    assert entropy(counts) == pytest.approx(-16 * (shares * np.log2(shares)).sum())
