"""OpenVINO IR, read back and executed by OpenVINO."""

import numpy as np
import pytest
import torch
from digits_net import agreement, data, quantized
from torch import nn

from lilliput.errors import ExportError, StateError
from lilliput.torch import PTQQuantizer, export_openvino, open_file

openvino = pytest.importorskip("openvino")


def constants(path):
    """Return the types of the constants that hold weights, by name."""
    ops = openvino.Core().read_model(path).get_ops()
    return {
        x.friendly_name: x.get_output_element_type(0).to_string()
        for x in ops
        if x.get_type_name() == "Constant" and x.friendly_name.endswith("_quantized")
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model, quantizer = quantized()
    path = tmp_path_factory.mktemp("ir") / "digits.xml"
    return model, export_openvino(quantizer, path, data()[0][:8])


def test_all_layers_run_on_integers_and_each_tensor_is_within_a_step(exported):
    _, result = exported
    found = result.runtimes["openvino"]
    assert [*result.runtimes] == ["openvino"] and found.local_lsb <= 1.01 and found.sqnr > 40
    assert result.integer_share == 1.0
    assert all(layer.kernel.endswith("_I8") for layer in result.layers)
    rows = result.compare_layers()
    assert len(rows) == 7 and max(row["lsb"] for row in rows) < 3


def test_weights_are_stored_as_8_bit_integers(exported):
    found = constants(exported[1].path)
    weights = {name: kind for name, kind in found.items() if "weight" in name}
    assert len(weights) == 4 and set(weights.values()) == {"i8"}


def test_the_opened_file_names_the_digits_that_the_simulation_names(exported):
    model, result = exported
    file = open_file(result.path)
    same, right = agreement(model, file)
    assert same == 1.0 and right > 0.9
    assert result.bytes == file.bytes == sum(x.stat().st_size for x in result.path.parent.iterdir())
    assert [x.to_dict() for x in file.tensors()] == [
        {"kind": "input", "name": "x", "shape": ["?", 1, "?", "?"], "dtype": "float32"},
        {"kind": "output", "name": "output", "shape": ["?", 10], "dtype": "float32"},
    ]
    assert file.operations()["Convolution"] == 3


def test_the_float_twin_is_timed_in_openvino(exported):
    receipt = exported[1].receipt
    assert receipt.before.runtime == receipt.after.runtime
    assert receipt.after.runtime.startswith("OpenVINO")


@pytest.mark.parametrize(("dtype", "scheme"), [("int", "symmetric"), ("uint", "affine")])
def test_four_bit_weights_are_packed_and_exact(tmp_path, dtype, scheme):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    x = torch.randn(5, 64)
    rule = {"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": 4}
    rule |= {"quant_dtype": dtype, "quant_scheme": scheme}
    quantizer = PTQQuantizer(model, [{**rule, "granularity": "per_group", "group_size": 16}])
    quantizer.compress()
    result = export_openvino(quantizer, tmp_path / "m.xml", x)
    assert set(constants(result.path).values()) == {"i4" if dtype == "int" else "u4"}
    with torch.no_grad():
        np.testing.assert_allclose(open_file(result.path)(x), model(x), atol=1e-5)
    assert result.integer_share == 0.0  # unpacked on the way, and multiplied in float
    assert {layer.weight_dtype for layer in result.layers} == {f"{dtype}4"}


def test_a_file_that_openvino_computes_otherwise_is_refused(tmp_path, monkeypatch):
    from lilliput.export.targets import openvino as target

    compiled = target.compiled

    def wrong(data, options=None):
        model = compiled(data, options)

        def run(feeds):
            return {i: np.array(x) * 0.5 for i, x in enumerate(model(feeds).values())}

        return run

    monkeypatch.setattr(target, "compiled", wrong)
    path = tmp_path / "m.xml"
    path.write_text("an older file")
    with pytest.raises(ExportError, match="as executed by openvino"):
        export_openvino(nn.Linear(4, 2), path, torch.randn(3, 4))
    assert [x.name for x in tmp_path.iterdir()] == ["m.xml"]  # as it was, and no weights beside it


def test_no_graph_is_left_beside_other_weights(tmp_path, monkeypatch):
    from lilliput.export.targets import openvino as target
    from lilliput.files import write_atomically

    x, path = torch.randn(3, 4), tmp_path / "m.xml"
    export_openvino(nn.Linear(4, 2), path, x)

    def fails(place, data):
        if place.suffix == ".xml":
            raise OSError("no room")
        write_atomically(place, data)

    monkeypatch.setattr(target, "write_atomically", fails)
    with pytest.raises(ExportError, match="no room"):
        export_openvino(nn.Linear(4, 2), path, x)
    assert not path.exists()


@pytest.mark.parametrize(
    ("path", "message"), [("m.onnx", "ending in .xml"), ("no/m.xml", "folder that does not exist")]
)
def test_a_wrong_path_is_refused(tmp_path, path, message):
    with pytest.raises(ExportError, match=message):
        export_openvino(nn.Linear(4, 2), tmp_path / path, torch.randn(3, 4))


def test_a_broken_file_is_refused(tmp_path):
    (tmp_path / "m.xml").write_text("<net>")
    with pytest.raises(StateError, match="OpenVINO cannot read the file"):
        open_file(tmp_path / "m.xml")
