"""stories15M, a Llama of 15 million float32 weights with a tied head, and stories as test data."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from data import book
from quant_peers import quietly
from torch import Tensor, nn
from weights import Stories, stories15m

BEGIN = 1  # the token before every text


def load_stories() -> nn.Module:
    """Return the model as ``LlamaForCausalLM``, without a cache of keys and values."""
    with quietly():
        from transformers import LlamaConfig, LlamaForCausalLM

        held = stories15m()
        sizes = held.sizes
        config = LlamaConfig(
            vocab_size=sizes["vocabulary"],
            hidden_size=sizes["dim"],
            intermediate_size=sizes["hidden"],
            num_hidden_layers=sizes["layers"],
            num_attention_heads=sizes["heads"],
            num_key_value_heads=sizes["kv_heads"],
            max_position_embeddings=sizes["length"],
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            use_cache=False,
        )
        model = LlamaForCausalLM(config).eval()
        model.load_state_dict(stories_state(held), strict=False)  # the tied head has one tensor
        model.tie_weights()
    return model


def stories_state(held: Stories) -> dict[str, Tensor]:
    """Return the tensors under their names in transformers."""
    tensors = {name: torch.from_numpy(values) for name, values in held.tensors.items()}
    state = {
        "model.embed_tokens.weight": tensors["embedding"],
        "lm_head.weight": tensors["embedding"],
        "model.norm.weight": tensors["rms_final"],
    }
    names = {
        "rms_att": "input_layernorm",
        "wv": "self_attn.v_proj",
        "wo": "self_attn.o_proj",
        "rms_ffn": "post_attention_layernorm",
        "w1": "mlp.gate_proj",
        "w2": "mlp.down_proj",
        "w3": "mlp.up_proj",
    }
    for layer in range(held.sizes["layers"]):
        place = f"model.layers.{layer}"
        for name, theirs in names.items():
            state[f"{place}.{theirs}.weight"] = tensors[name][layer]
        for name, theirs in {"wq": "q_proj", "wk": "k_proj"}.items():
            rotated = in_halves(tensors[name][layer], held.sizes["heads"])
            state[f"{place}.self_attn.{theirs}.weight"] = rotated
    return state


def in_halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder the rows of a projection: llama2.c rotates neighbours, transformers rotates halves."""
    rows, width = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, width)
    return pairs.transpose(1, 2).reshape(rows, width).contiguous()


def encode(text: str) -> list[int]:
    """Return the tokens of a text: single letters, merged by the best score."""
    vocabulary = stories15m().vocabulary
    index = {token: i for i, (token, _) in enumerate(vocabulary)}
    tokens = []
    for word in f" {text}".replace(" ", "\0 ").split("\0")[1:]:
        tokens += merged(word, index, [score for _, score in vocabulary])
    return tokens


def merged(word: str, index: dict[bytes, int], scores: list[float]) -> list[int]:
    """Return the tokens of one word; a letter that is not a token is spelled in bytes (from token 3)."""
    pieces: list[bytes] = []
    for letter in word:
        held = letter.encode()
        pieces += [held] if held in index else [bytes([byte]) for byte in held]
    while True:
        pairs = [(pieces[i] + pieces[i + 1], i) for i in range(len(pieces) - 1)]
        known = [(scores[index[pair]], -i) for pair, i in pairs if pair in index]
        if not known:
            return [index[piece] if piece in index else piece[0] + 3 for piece in pieces]
        place = -max(known)[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


def windows(count: int, length: int, start: int = 20_000) -> Tensor:
    """Return ``count`` windows of ``length`` tokens of Bryant's stories, each after its own start token."""
    text = " ".join(book("bryant-stories")[start:].split())
    tokens = encode(text[: 8 * count * length])
    found = np.array(tokens[: count * (length - 1)]).reshape(count, length - 1)
    return torch.from_numpy(np.insert(found, 0, BEGIN, axis=1))


def perplexity(logits: Tensor, tokens: Tensor) -> float:
    """Return the perplexity of each next token."""
    flat = logits[:, :-1].flatten(0, 1)
    return float(F.cross_entropy(flat, tokens[:, 1:].flatten()).exp())
