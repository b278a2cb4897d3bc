"""Bits as chosen by other tools: 4 or 8 for each weight of EfficientNet-Lite0, 5 on average.

    python benchmarks/search_peers.py modelopt     # pip install nvidia-modelopt
    python benchmarks/search_peers.py mct          # pip install model-compression-toolkit torchvision

FastNAS, which prunes channels, is called by ``search_accuracy.py``.

Each tool sees the photographs that Lilliput's search sees. What it chose is kept in
``results/search_peers.json``; ``search.py bits`` quantizes all choices in the same way and judges them by
the same photographs. A tool may need other versions of packages than Lilliput, so it has its own process.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from record import RESULTS, read_json, write_json
from torch import Tensor, nn

RESULT = RESULTS / "search_peers.json"
AVERAGE = 5.0
_KEPT: list[Any] = []


def kept_choices() -> dict[str, dict[str, int]]:
    """Return the bits of each layer as chosen by the tools, by the name of the tool."""
    return {name: row["bits"] for name, row in read_json(RESULT).get("tools", {}).items()}


class Padded(nn.Sequential):
    """A convolution with padding before it, both of which tools support."""


def plain(model: nn.Module) -> nn.Module:
    """Return a model with convolutions of torch's own class: the tools support no others."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Conv2d) and type(module) is not nn.Conv2d:
            sizes = (module.in_channels, module.out_channels, module.kernel_size, module.stride)
            own = nn.Conv2d(*sizes, groups=module.groups, bias=module.bias is not None)
            own.weight, own.bias = module.weight, module.bias
            path, _, last = name.rpartition(".")
            setattr(model.get_submodule(path), last, Padded(module.static_padding, own))
    return model.eval()


def modelopt(model: nn.Module, batches: list[Tensor]) -> dict[str, int]:
    """AutoQuantize: gradients, formats of weights alone, one scale per output channel."""
    import modelopt.torch.quantization as mtq

    formats = [
        {
            "quant_cfg": [
                {"quantizer_name": "*", "enable": False},
                {"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": bits, "axis": 0}},
            ],
            "algorithm": "max",
        }
        for bits in (4, 8)
    ]
    found, _ = mtq.auto_quantize(
        model,
        constraints={"effective_bits": AVERAGE},
        quantization_formats=formats,
        module_search_spaces=[
            {
                "module_name_patterns": "*",
                "quantization_formats": formats,
                "allow_no_quant": False,  # it would count as 16 bits
            }
        ],
        data_loader=batches,
        forward_step=lambda model, batch: model(batch),
        # As for a model without labels: the classes that it predicts itself.
        loss_func=lambda output, batch: nn.functional.cross_entropy(output, output.argmax(1)),
        num_calib_steps=len(batches),
        num_score_steps=len(batches),
    )
    return {
        name.removesuffix(".weight_quantizer"): int(module.num_bits)
        for name, module in found.named_modules()
        if name.endswith(".weight_quantizer") and module.is_enabled
    }


def mct(model: nn.Module, batches: list[Tensor]) -> dict[str, int]:
    """Mixed precision of MCT: distances of features, symmetric weights with a scale per output channel."""
    _declare_vision_operators()
    import model_compression_toolkit as toolkit
    import model_compression_toolkit.target_platform_capabilities.schema.mct_current_schema as schema
    from mct_quantizers import QuantizationMethod

    def attribute(bits: int, is_quantized: bool = True) -> Any:
        return schema.AttributeQuantizationConfig(
            weights_quantization_method=QuantizationMethod.SYMMETRIC,
            weights_n_bits=bits,
            weights_per_channel_threshold=True,
            enable_weights_quantization=is_quantized,
        )

    def operation(attributes: dict[str, Any]) -> Any:
        return schema.OpQuantizationConfig(
            default_weight_attr_config=attribute(8, is_quantized=False),
            attr_weights_configs_mapping=attributes,
            activation_quantization_method=QuantizationMethod.UNIFORM,
            activation_n_bits=8,
            supported_input_activation_n_bits=8,
            enable_activation_quantization=False,
            quantization_preserving=False,
            fixed_scale=None,
            fixed_zero_point=None,
            simd_size=1,
            signedness=schema.Signedness.AUTO,
        )

    eight, four = (
        operation({"kernel_attr": attribute(bits), "bias_attr": attribute(32, is_quantized=False)})
        for bits in (8, 4)
    )
    mixed = schema.QuantizationConfigOptions(
        quantization_configurations=(eight, four), base_config=eight
    )
    kinds = schema.OperatorSetNames
    capabilities = schema.TargetPlatformCapabilities(
        default_qco=schema.QuantizationConfigOptions(quantization_configurations=(operation({}),)),
        operator_set=tuple(
            schema.OperatorsSet(name=kind, qc_options=mixed)
            for kind in (kinds.CONV, kinds.DEPTHWISE_CONV, kinds.FULLY_CONNECTED)
        ),
        tpc_minor_version=1,
        tpc_patch_version=0,
        tpc_platform_type="weights of 4 or 8 bits",
        add_metadata=False,
        name="weights of 4 or 8 bits",
    )
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    }
    count = sum(layer.weight.numel() for layer in layers.values())
    settings = toolkit.core.MixedPrecisionQuantizationConfig()
    found, _ = toolkit.ptq.pytorch_post_training_quantization(
        model,
        lambda: ([batch] for batch in batches),
        toolkit.core.ResourceUtilization(weights_memory=count * AVERAGE / 8),
        toolkit.core.CoreConfig(mixed_precision_config=settings),
        capabilities,
    )
    # It names layers as torch.fx does, with a suffix where a norm was folded into one.
    bits = {
        name.removesuffix("_bn"): module.weights_quantizers["weight"].num_bits
        for name, module in found.named_modules()
        if hasattr(module, "weights_quantizers")
    }
    return {name: bits[name.replace(".", "_")] for name in layers}


def _declare_vision_operators() -> None:
    """Declare the operators of torchvision, which no CPU build of torch loads; none of them is called."""
    if find_spec("torchvision") is None:
        return
    library = torch.library.Library("torchvision", "DEF")
    pooling = ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
    names = ["nms", "qnms", "qroi_align", *pooling, *(f"_{name}_backward" for name in pooling)]
    for name in names:
        library.define(f"{name}(Tensor x) -> Tensor")
    _KEPT.append(library)  # operators live as long as the library


def fastnas(
    model: nn.Module,
    flops: float,
    example: Tensor,
    batches: list[Tensor],
    judged: Callable[[nn.Module], float],
    checkpoint: Path,
) -> nn.Module:
    """Return a model that FastNAS has pruned to a share of its operations.

    Its sensitivities are kept in the checkpoint for other shares. Channels come in eights: by default in
    steps of 32, of which small networks do not have many.
    """
    import modelopt.torch.prune as mtp
    from modelopt.torch.prune.fastnas import FastNASConfig

    config = FastNASConfig().model_dump()
    for rules in config.values():
        rules["*"] |= {key: 8 for key in rules["*"] if key.endswith("_divisor")}
    found, _ = mtp.prune(
        copy.deepcopy(model),
        mode=[("fastnas", config)],
        constraints={"flops": f"{100 * flops:.4g}%"},
        dummy_input=example,
        config={
            "data_loader": batches,
            "collect_func": lambda batch: batch,
            "score_func": judged,
            "checkpoint": str(checkpoint),
            "verbose": False,
        },
    )
    pruned: nn.Module = found
    return pruned


def main() -> None:
    from trained_nets import lite_case

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tools = {
        "modelopt": ("nvidia-modelopt", modelopt),
        "mct": ("model-compression-toolkit", mct),
    }
    parser.add_argument("tool", choices=list(tools))
    package, choose = tools[parser.parse_args().tool]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    case = lite_case("lite0", 224)
    weights = {
        name: module.weight.numel()
        for name, module in case.model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    }
    start = time.process_time()
    given = plain(case.model)
    with torch.no_grad():
        torch.testing.assert_close(given(case.example[0]), case.model(case.example[0]))
    # The convolution is the second part of the module with the layer's name.
    bits = {k.removesuffix(".1"): v for k, v in choose(given, case.calibration).items()}
    row: dict[str, Any] = {"CPU seconds": time.process_time() - start}
    average = sum(weights[name] * n for name, n in bits.items()) / sum(weights.values())
    row |= {"version": version(package), "average bits": average, "bits": bits}
    print(package, row)
    earlier = read_json(RESULT)
    write_json(RESULT, {"tools": {**earlier.get("tools", {}), package: row}}, earlier)


if __name__ == "__main__":
    main()
