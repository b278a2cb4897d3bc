"""Compact files: exact, small, and safe to read from strangers."""

import lzma
import struct
import time
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lilliput.compact.fields import Bytes
from lilliput.compact.format import decode, encode
from lilliput.compact.tensors import DTYPES, Stored
from lilliput.errors import LilliputError, StateError

FLOATS = ("float16", "float32", "float64")
BRIEF = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def same(one, other):
    return (
        one.dtype == other.dtype
        and one.bits.shape == other.bits.shape
        and bool((one.bits == other.bits).all())
    )


def grid(rng, shape, bits, axis, dtype):
    """Return weights as a quantizer leaves them."""
    others = tuple(i for i in range(len(shape)) if i != axis)
    weights = rng.standard_normal(shape)
    scale = np.abs(weights).max(axis=others, keepdims=True) / (2 ** (bits - 1) - 1)
    scale = np.asarray(scale, dtype)
    steps = np.round(weights / np.where(scale > 0, scale, 1)).astype(dtype)
    return steps * scale + np.asarray(0, dtype)  # without negative zeros


@st.composite
def tensors(draw):
    """Any tensor that a model may hold: dense, sparse, rounded, shared, in blocks, odd bits."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = tuple(draw(st.lists(st.integers(0, 10), max_size=4)))
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    kind = draw(st.sampled_from(["any bits", "few values", "floats", "grid", "constant"]))
    bits = np.dtype(f"u{DTYPES[dtype][0]}")
    size = int(np.prod(shape))
    if kind == "any bits" or (kind in ("floats", "grid") and dtype not in FLOATS):
        values = np.frombuffer(rng.bytes(size * bits.itemsize), bits).reshape(shape).copy()
    elif kind == "few values":
        table = np.frombuffer(rng.bytes(5 * bits.itemsize), bits)
        values = table[rng.integers(0, 5, shape)]
    elif kind == "constant":
        values = np.full(shape, rng.integers(0, 200), bits)
    elif kind == "floats":
        values = rng.standard_normal(shape).astype(dtype).view(bits)
    else:
        axis = draw(st.integers(0, max(len(shape) - 1, 0)))
        has_axis = len(shape) > 1 and size
        values = np.asarray(
            grid(rng, shape, draw(st.sampled_from([2, 4, 8])), axis, dtype)
            if has_axis
            else rng.integers(-7, 8, shape) * np.asarray(0.3, dtype),
            dtype,
        ).view(bits)
    kept = draw(st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]))
    mask = rng.random(shape) < kept
    if draw(st.booleans()) and len(shape) > 1:
        mask &= rng.random(shape[:1] + (1,) * (len(shape) - 1)) < 0.5
    return Stored(dtype, np.where(mask, values, bits.type(0)))


def check_round_trip(held, note):
    given_ = {f"layer.{i}": one for i, one in enumerate(held)}
    found = decode(encode(given_, note))
    assert found.note == note
    assert set(found.tensors) == set(given_)
    assert all(same(found.tensors[name], one) for name, one in given_.items())


@BRIEF
@given(st.lists(tensors(), max_size=4), st.text(max_size=20).filter(str.isprintable))
def test_every_bit_comes_back(held, note):
    check_round_trip(held, note)


@pytest.mark.slow
@LONG
@given(st.lists(tensors(), max_size=4), st.text(max_size=20).filter(str.isprintable))
def test_every_bit_comes_back_a_thousand_times(held, note):
    check_round_trip(held, note)


def test_large_tensors_go_through_lanes():
    rng = np.random.default_rng(0)
    weights = grid(rng, (100, 2000), 8, 0, np.float32)
    sparse = np.where(rng.random(weights.shape) < 0.3, weights, np.float32(0))
    held = [Stored.of(np.asarray(x, np.float32)) for x in (weights, sparse)]
    check_round_trip(held, "")


def sparse_codes(seed=0, shape=(300, 400), density=0.05, levels=15):
    """Return weights of which few are left, of few values, without any pattern."""
    rng = np.random.default_rng(seed)
    table = np.sort(rng.standard_normal(levels)).astype(np.float32)
    shares = rng.dirichlet(np.ones(levels) * 2)
    values = table[rng.choice(levels, shape, p=shares)]
    return np.where(rng.random(shape) < density, values, np.float32(0))


def ideal_bits(weights):
    """Return the entropy of a mask and of the values under it, each by its own shares."""

    def bits(counts):
        held = counts[counts > 0]
        return float((held * np.log2(held.sum() / held)).sum())

    left = weights[weights != 0]
    mask = bits(np.array([left.size, weights.size - left.size]))
    return mask + bits(np.unique(left, return_counts=True)[1])


def test_without_a_pattern_a_file_is_within_three_percent_of_the_entropy():
    weights = sparse_codes()
    table = 15 * 4  # bytes
    size = len(encode({"w": Stored.of(weights)}))
    assert ideal_bits(weights) / 8 < size < ideal_bits(weights) / 8 * 1.03 + table + 40


def test_eight_bits_per_channel_cost_their_entropy():
    rng = np.random.default_rng(1)
    weights = grid(rng, (64, 2000), 8, 0, np.float32)
    scale = np.abs(weights).max(1, keepdims=True) / np.float32(127)
    counts = np.unique(np.round(weights / scale), return_counts=True)[1]
    ideal = float((counts * np.log2(counts.sum() / counts)).sum()) / 8
    assert ideal < len(encode({"w": Stored.of(weights)})) < ideal * 1.01 + 64 * 4 + 60


def test_columns_and_neighbours_are_found_out():
    """A layer that looks at images: dead borders, and weights that stand together."""
    rng = np.random.default_rng(0)
    picture = np.zeros((100, 20, 20), bool)
    for plane in picture:
        for _ in range(3):
            y, x = rng.integers(4, 14, 2)
            plane[y : y + 2, x : x + 2] = True
    weights = np.where(picture, rng.integers(1, 5, picture.shape), 0).astype(np.float32)
    flat = weights.reshape(100, 400)
    size = len(encode({"w": Stored.of(flat)}))
    assert size < 0.65 * ideal_bits(flat) / 8
    codes = flat.astype(np.uint8).tobytes()
    assert size < 0.75 * len(lzma.compress(codes, preset=9 | lzma.PRESET_EXTREME))


def test_floats_lose_the_entropy_of_their_exponents_only():
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((200, 300)) * 0.05).astype(np.float32)
    exponents = weights.view(np.uint32) >> 23 & 255
    counts = np.unique(exponents, return_counts=True)[1]
    ideal = float((counts * np.log2(counts.sum() / counts)).sum()) / 8 + weights.size * 3
    assert ideal < len(encode({"w": Stored.of(weights)})) < ideal * 1.002 + 60
    noise = Stored("float32", np.frombuffer(rng.bytes(4 * 5000), "u4"))
    assert len(encode({"w": noise})) < 4 * 5000 + 60


@pytest.mark.parametrize("is_keras", [False, True])
def test_units_that_are_dead_in_one_layer_make_the_next_one_cheaper(is_keras):
    rng = np.random.default_rng(0)
    alive = rng.random(200) < 0.3
    one = np.where(alive[:, None] & (rng.random((200, 60)) < 0.2), 1, 0).astype(np.float32)
    two = np.where(alive & (rng.random((30, 200)) < 0.2), 1, 0).astype(np.float32)
    one, two = (one.T.copy(), two.T.copy()) if is_keras else (one, two)
    together = len(encode({"a": Stored.of(one), "b": Stored.of(two)}))
    alone = sum(len(encode({"a": Stored.of(x)})) for x in (one, two))
    fixed = len(encode({}))
    assert together < alone - fixed - 10
    check_round_trip([Stored.of(one), Stored.of(two)], "")


def test_equal_tensors_are_written_once():
    weights = sparse_codes(shape=(50, 60))
    one = len(encode({"a": Stored.of(weights)}))
    two = encode({"a": Stored.of(weights), "b": Stored.of(weights.copy())})
    assert len(two) < one + 12
    assert same(decode(two).tensors["b"], Stored.of(weights))


def test_a_type_that_files_do_not_hold_is_named():
    with pytest.raises(StateError, match=r"'w' has the type complex128.*expected one of bool"):
        encode({"w": Stored("complex128", np.zeros(4, "u8"))})


def signed(content, version=1):
    """Return a file with a checksum that is right, whatever it holds."""
    return b"LILC" + bytes([version]) + struct.pack("<I", zlib.crc32(content)) + content


def sample():
    rng = np.random.default_rng(2)
    return encode(
        {
            "table": Stored.of(sparse_codes(shape=(20, 30), density=0.2)),
            "grid": Stored.of(grid(rng, (8, 40), 4, 0, np.float32)),
            "float": Stored.of(rng.standard_normal(40).astype(np.float32)),
            "count": Stored.of(np.array(938)),
        },
        note="a note",
    )


def mutated(data, rng):
    """Return a file with a few bytes changed, taken out or put in."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(0, len(found)))
        how = rng.integers(0, 4)
        if how == 0:
            found[at] = int(rng.integers(0, 256))
        elif how == 1:
            found[at] ^= 1 << int(rng.integers(0, 8))
        elif how == 2:
            del found[at : at + int(rng.integers(1, 20))]
        else:
            found[at:at] = rng.bytes(int(rng.integers(1, 20)))
    return bytes(found)


def check_mutations(count):
    rng, data = np.random.default_rng(0), sample()
    whole = zlib.decompressobj(-15)
    length = data[9] & 127 | data[10] << 7 if data[9] > 127 else data[9]
    start = 9 + (2 if data[9] > 127 else 1)
    header, body = whole.decompress(data[start : start + length]), data[start + length :]
    refused = 0
    for _ in range(count):
        damaged = mutated(data, rng)
        if damaged != data:
            with pytest.raises(LilliputError, match="compact file"):
                decode(damaged)
        # A stranger knows how to make checksums. The header is the way to most of the code.
        packed = zlib.compressobj(9, zlib.DEFLATED, -15)
        inner = packed.compress(mutated(header, rng)) + packed.flush()
        size = bytes([len(inner) & 127 | 128, len(inner) >> 7])
        for content in (mutated(data[9:], rng), size + inner + body):
            try:
                decode(signed(content), limit=1 << 20)
            except LilliputError:
                refused += 1
    assert refused > count


def test_mutated_files_are_refused():
    check_mutations(200)


@pytest.mark.slow
def test_ten_thousand_mutated_files_are_refused_in_little_memory():
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_mutations(10_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000  # kB


def made_up(dtype, flags, shape, more):
    """Return the file of one tensor as a stranger may write it, without a stream."""
    head = Bytes()
    head.text("")
    for number in (0, 1, 1, 1, 0, 0):  # twins, chunks; tensors, lanes, words, plain bytes
        head.number(number)
    head.text("w")
    for number in (list(DTYPES).index(dtype), len(shape), *shape, flags, *more):
        head.number(number)
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    inner = packed.compress(bytes(head.data)) + packed.flush()
    return signed(bytes([len(inner)]) + inner)


def test_rows_of_nothing_are_not_gone_through():
    data = made_up("uint8", 0, (1 << 26, 1), (0, 7))  # raw, the same byte everywhere
    start = time.process_time()
    assert len(data) < 50 and (decode(data).tensors["w"].bits == 7).all()
    assert time.process_time() - start < 5  # a step for each row took minutes


def test_rows_that_take_long_are_refused_unless_the_shapes_are_known():
    # Raw with a mask: none of the values is there.
    data = made_up("uint8", 4, (1 << 23, 1), (0, 0, 0, 0, 0))
    with pytest.raises(StateError, match="8,388,608 rows to read, expected at most 4,194,304"):
        decode(data)


def test_eight_bit_floats_on_a_grid_are_refused():
    data = made_up("float8_e4m3fn", 3, (4, 4), (0, 1, 0, 3, 0))
    with pytest.raises(StateError, match="float8_e4m3fn and shape .* is on a grid"):
        decode(data)


def test_a_number_on_a_grid_or_in_a_table_is_refused():
    data = bytes.fromhex("4c494c4301a5e08b2b1a63606064646460e048d42b4fcd4ccf28e1636066606260600000")
    with pytest.raises(StateError, match=r"float64 and shape \(\) is on a grid"):
        decode(data)
    for dtype in DTYPES:
        for form in (2, 3):
            with pytest.raises(StateError, match=r"shape \(\) is (on a grid|in a table)"):
                decode(made_up(dtype, form, (), (0, 1, *([0] * (form - 2)), 0, 0)))


def test_sizes_are_checked_before_memory_is_taken():
    data = encode({"w": Stored.of(np.zeros((4096, 4096), np.float32))})
    assert len(data) < 100
    with pytest.raises(StateError, match="take 67,108,864 bytes, expected at most 1,000"):
        decode(data, limit=1000)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not start with 'LILC'"),
        (b"PK\x03\x04 a zip", "does not start with 'LILC'"),
        (b"LILC", "ends too early"),
        (b"LILC\x02" + bytes(20), "version 2; this version of Lilliput reads up to 1: upgrade"),
        (b"LILC\x01" + bytes(20), "checksum differs"),
        (signed(b"\x05\xff\xff\xff\xff\xff"), "header cannot be inflated"),
        (signed(b"\x7f"), "expected at most|ends too early"),
    ],
)
def test_what_is_no_compact_file_is_told_so(data, message):
    with pytest.raises(StateError, match=message):
        decode(data)


@pytest.mark.parametrize("shape", [(5, 0), (1 << 40, 0), (0,)])
@pytest.mark.parametrize("flags", range(0, 128, 4))
def test_empty_tensors_with_any_flags_do_no_harm(shape, flags):
    """Flags that no writer sets for a tensor without numbers: masks, classes of rows, signs."""
    more = [0, 0] if flags & 4 else []
    more += [3] if flags & 4 or flags & 64 else []
    data = made_up("float32", flags, shape, (*more, 0, 0))
    assert decode(data).tensors["w"].bits.shape == shape


def test_a_header_that_inflates_without_end_is_refused():
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = packed.compress(bytes(1 << 26)) + packed.flush()
    size = len(bomb)
    start = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    with pytest.raises(StateError, match="too long"):
        decode(signed(start + bomb))
