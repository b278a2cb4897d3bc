"""Vision models of transformers, from small configurations, without weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from zoo.registry import add


def vision(name: str, model: str, config: str, size: int = 64, **settings: Any) -> None:
    def factory() -> torch.nn.Module:
        return getattr(hf, model)(getattr(hf, config)(**settings))

    add(f"hf_{name}", factory, lambda: {"pixel_values": torch.randn(2, 3, size, size)})


def classifier(name: str, prefix: str, size: int = 64, **settings: Any) -> None:
    model, config = f"{prefix}ForImageClassification", f"{prefix}Config"
    vision(name, model, config, size, num_labels=10, **settings)


STAGES = {"hidden_sizes": [32, 48, 64, 96], "depths": [2, 2, 2, 2]}
VIT = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 112,
    "image_size": 64,
    "patch_size": 16,
}
SWIN = {
    "image_size": 64,
    "patch_size": 4,
    "embed_dim": 24,
    "depths": [2, 2, 2],
    "num_heads": [2, 4, 8],
    "window_size": 4,
}

# Convolutional networks.
classifier("resnet18", "ResNet", embedding_size=32, layer_type="basic", **STAGES)
classifier("resnet50", "ResNet", embedding_size=32, layer_type="bottleneck", **STAGES)
REGNET = {"embedding_size": 24, "hidden_sizes": [32, 48, 64, 96], "depths": [1, 2, 2, 1]}
classifier("regnet_x", "RegNet", layer_type="x", groups_width=8, **REGNET)
classifier("regnet_y", "RegNet", layer_type="y", groups_width=8, **REGNET)
classifier("convnext", "ConvNext", **STAGES)
classifier("convnextv2", "ConvNextV2", **STAGES)
classifier("mobilenet_v1", "MobileNetV1", depth_multiplier=0.5, image_size=64)
classifier("mobilenet_v2", "MobileNetV2", depth_multiplier=0.5, image_size=64)
classifier(
    "efficientnet",
    "EfficientNet",
    width_coefficient=0.5,
    depth_coefficient=1.0,
    image_size=64,
    hidden_dim=640,
)
classifier("poolformer", "PoolFormer", **STAGES)
classifier("focalnet", "FocalNet", image_size=64, embed_dim=24, depths=[1, 1, 2, 1])
classifier(
    "swiftformer", "SwiftFormer", image_size=64, embed_dims=[24, 32, 48, 64], depths=[2, 2, 2, 2]
)
classifier("hgnet_v2", "HGNetV2")
classifier("bit", "Bit", embedding_size=32, num_groups=8, **STAGES)

# Vision transformers.
classifier("vit", "ViT", **VIT)
classifier("vit_eager", "ViT", attn_implementation="eager", **VIT)
classifier("deit", "DeiT", **VIT)
classifier("beit", "Beit", use_relative_position_bias=True, **VIT)
classifier(
    "dinov2", "Dinov2", mlp_ratio=2, **{k: v for k, v in VIT.items() if k != "intermediate_size"}
)
classifier("swin", "Swin", **SWIN)
classifier("swinv2", "Swinv2", **SWIN)
classifier(
    "pvt",
    "Pvt",
    image_size=64,
    hidden_sizes=[24, 32, 48, 64],
    depths=[1, 1, 1, 1],
    num_attention_heads=[1, 2, 3, 4],
)
classifier(
    "pvt_v2",
    "PvtV2",
    image_size=64,
    hidden_sizes=[24, 32, 48, 64],
    depths=[1, 1, 1, 1],
    num_attention_heads=[1, 2, 3, 4],
)
classifier(
    "cvt",
    "Cvt",
    embed_dim=[24, 48, 96],
    num_heads=[1, 3, 6],
    depth=[1, 2, 3],
)
classifier(
    "levit",
    "Levit",
    image_size=64,
    hidden_sizes=[64, 96, 128],
    num_attention_heads=[4, 6, 8],
    depths=[2, 2, 2],
)
classifier(
    "mobilevit",
    "MobileViT",
    image_size=64,
    hidden_sizes=[48, 64, 80],
    neck_hidden_sizes=[16, 16, 24, 32, 48, 64, 160],
)
classifier("mobilevitv2", "MobileViTV2", image_size=64, width_multiplier=0.5)
classifier(
    "hiera", "Hiera", image_size=[64, 64], embed_dim=24, depths=[1, 1, 2, 1], num_heads=[1, 2, 4, 8]
)

# Dense prediction and detection.
SEGFORMER = {
    "hidden_sizes": [16, 32, 48, 64],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 2, 4, 8],
    "decoder_hidden_size": 64,
    "num_labels": 10,
}
vision("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", **SEGFORMER)


def upernet() -> torch.nn.Module:
    backbone = hf.ConvNextConfig(out_features=["stage1", "stage2", "stage3", "stage4"], **STAGES)
    config = hf.UperNetConfig(
        backbone_config=backbone, hidden_size=48, num_labels=10, auxiliary_in_channels=64
    )
    config.auxiliary_channels = 24
    return hf.UperNetForSemanticSegmentation(config)


def detr() -> torch.nn.Module:
    backbone = hf.ResNetConfig(out_features=["stage4"], embedding_size=32, **STAGES)
    config = hf.DetrConfig(
        use_timm_backbone=False,
        backbone_config=backbone,
        use_pretrained_backbone=False,
        backbone=None,
        num_queries=10,
        d_model=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        num_labels=10,
    )
    return hf.DetrForObjectDetection(config)


def yolos() -> torch.nn.Module:
    settings = {**VIT, "image_size": [64, 64], "num_detection_tokens": 10}
    return hf.YolosForObjectDetection(hf.YolosConfig(num_labels=10, **settings))


def pixels() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 64, 64)}


add("hf_upernet_convnext", upernet, pixels)
add("hf_detr", detr, pixels)
add("hf_yolos", yolos, pixels)
