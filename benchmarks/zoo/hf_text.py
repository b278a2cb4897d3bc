"""Language, speech and two-tower models of transformers, from small configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

from zoo.registry import Inputs, add

VOCABULARY = 120
LENGTH = 9


def text() -> Inputs:
    ids = torch.randint(5, VOCABULARY, (2, LENGTH))
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def text_pair() -> Inputs:
    source = torch.randint(5, VOCABULARY, (2, LENGTH))
    return {"input_ids": source, "decoder_input_ids": torch.randint(5, VOCABULARY, (2, 7))}


def language(
    name: str, model: str, config: str, make: Callable[[], Inputs] = text, **settings: Any
):
    """Register a model; the settings say what its configuration calls width, depth and heads."""

    def factory() -> torch.nn.Module:
        return getattr(hf, model)(getattr(hf, config)(vocab_size=VOCABULARY, **settings))

    add(f"hf_{name}", factory, make)


BERT = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 112,
    "max_position_embeddings": 40,
    "num_labels": 5,
}


def encoder(
    name: str, prefix: str, head: str = "ForSequenceClassification", **settings: Any
) -> None:
    language(name, prefix + head, f"{prefix}Config", **{**BERT, **settings})


encoder("bert", "Bert")
encoder("bert_masked_lm", "Bert", "ForMaskedLM")
encoder("bert_eager", "Bert", attn_implementation="eager")
encoder("roberta", "Roberta", pad_token_id=1)
encoder("albert", "Albert", embedding_size=24)
encoder("electra", "Electra", embedding_size=24)
encoder("mpnet", "MPNet", pad_token_id=1)
encoder("modernbert", "ModernBert", pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=3, sep_token_id=4)  # fmt: skip
encoder("convbert", "ConvBert", embedding_size=48)
encoder("squeezebert", "SqueezeBert", embedding_size=48)
encoder("fnet", "FNet", "ForTokenClassification")
encoder(
    "deberta_v2",
    "DebertaV2",
    relative_attention=True,
    position_buckets=8,
    pos_att_type=["p2c", "c2p"],
    share_att_key=True,
    norm_rel_ebd="layer_norm",
)
language(
    "distilbert", "DistilBertForSequenceClassification", "DistilBertConfig",
    dim=48, n_layers=3, n_heads=4, hidden_dim=112, max_position_embeddings=40, num_labels=5,
)  # fmt: skip

# Decoders.
LLAMA = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 112,
    "max_position_embeddings": 40,
    "use_cache": False,
}
SMALL_HEADS = {**LLAMA, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}


def decoder(name: str, prefix: str, **settings: Any) -> None:
    settings = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **settings}
    language(name, f"{prefix}ForCausalLM", f"{prefix}Config", **settings)


decoder("llama_gqa", "Llama", **LLAMA)
decoder("llama_tied", "Llama", tie_word_embeddings=True, **LLAMA)
decoder("mistral", "Mistral", sliding_window=4, **LLAMA)
decoder("qwen2", "Qwen2", **LLAMA)
decoder("qwen3", "Qwen3", **SMALL_HEADS)
decoder("phi", "Phi", **{**LLAMA, "partial_rotary_factor": 0.5})
decoder("phi3", "Phi3", **LLAMA)
decoder("gemma2", "Gemma2", **SMALL_HEADS)
decoder("olmo2", "Olmo2", **LLAMA)
decoder("gpt_neox", "GPTNeoX", **{k: v for k, v in LLAMA.items() if k != "num_key_value_heads"})
language("gpt2", "GPT2LMHeadModel", "GPT2Config", n_embd=48, n_layer=2, n_head=4, n_positions=40,
         use_cache=False, bos_token_id=1, eos_token_id=2)  # fmt: skip
decoder(
    "gpt_neo", "GPTNeo", hidden_size=48, num_layers=2, num_heads=4, window_size=4,
    attention_types=[[["global", "local"], 1]], max_position_embeddings=40, use_cache=False,
)  # fmt: skip
decoder(
    "opt", "OPT", hidden_size=48, word_embed_proj_dim=48, ffn_dim=112, num_hidden_layers=2,
    num_attention_heads=4, max_position_embeddings=40, use_cache=False,
)  # fmt: skip
decoder("bloom", "Bloom", hidden_size=48, n_layer=2, n_head=4, use_cache=False)

# Encoder and decoder.
T5 = {"d_model": 48, "d_kv": 12, "d_ff": 112, "num_layers": 2, "num_heads": 4, "use_cache": False}
language("t5", "T5ForConditionalGeneration", "T5Config", text_pair, **T5)
language(
    "t5_gated", "T5ForConditionalGeneration", "T5Config", text_pair,
    feed_forward_proj="gated-gelu", tie_word_embeddings=False, **T5,
)  # fmt: skip
BART = {
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 112,
    "decoder_ffn_dim": 112,
    "use_cache": False,
}
language("bart", "BartForConditionalGeneration", "BartConfig", text_pair,
         max_position_embeddings=40, **BART)  # fmt: skip


# Speech.
def mel_and_text() -> Inputs:
    ids = torch.randint(5, VOCABULARY, (2, 7))
    return {"input_features": torch.randn(2, 20, 32), "decoder_input_ids": ids}


language(
    "whisper", "WhisperForConditionalGeneration", "WhisperConfig", mel_and_text,
    num_mel_bins=20, max_source_positions=16, max_target_positions=20,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, **BART,
)  # fmt: skip
WAV = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 112,
    "conv_dim": (32, 32, 48),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}


def waveform() -> Inputs:
    return {"input_values": torch.randn(2, 800)}


language("wav2vec2", "Wav2Vec2ForCTC", "Wav2Vec2Config", waveform, **WAV)
language("hubert", "HubertForCTC", "HubertConfig", waveform, **WAV)


def spectrogram_transformer() -> torch.nn.Module:
    config = hf.ASTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=112,
        max_length=48, num_mel_bins=32, num_labels=5,
    )  # fmt: skip
    return hf.ASTForAudioClassification(config)


add("hf_ast", spectrogram_transformer, lambda: {"input_values": torch.randn(2, 48, 32)})


# Two towers.
TOWER = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 112,
}


IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def clip() -> torch.nn.Module:
    words = {**TOWER, "vocab_size": VOCABULARY, "max_position_embeddings": 20, **IDS}
    picture = {**TOWER, "image_size": 32, "patch_size": 8}
    config = hf.CLIPConfig(text_config=words, vision_config=picture, projection_dim=32)
    return hf.CLIPModel(config)


def siglip() -> torch.nn.Module:
    words = {**TOWER, "vocab_size": VOCABULARY, "max_position_embeddings": 20, **IDS}
    picture = {**TOWER, "image_size": 32, "patch_size": 8}
    return hf.SiglipModel(hf.SiglipConfig(text_config=words, vision_config=picture))


def picture_and_text() -> Inputs:
    return {**text(), "pixel_values": torch.randn(2, 3, 32, 32)}


add("hf_clip", clip, picture_and_text)
add("hf_siglip", siglip, picture_and_text)
