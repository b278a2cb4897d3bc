"""All-MiniLM-L6-v2 on Reuters: find the news that belongs to a title."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from data import reuters
from quant_peers import quietly
from torch import Tensor, nn
from weights import minilm


class Embedder(nn.Module):
    """A transformer with the mean over its tokens, normalized to length one."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        states = self.transformer(input_ids=tokens, attention_mask=mask).last_hidden_state
        share = mask.unsqueeze(-1).to(states.dtype)
        return F.normalize((states * share).sum(1) / share.sum(1), dim=-1)


def load_embedder() -> tuple[nn.Module, Any]:
    """Return MiniLM and its tokenizer."""
    with quietly():
        from transformers import AutoTokenizer, BertModel

        transformer = BertModel.from_pretrained(minilm(), add_pooling_layer=False)
        return Embedder(transformer).eval(), AutoTokenizer.from_pretrained(minilm())


class Retrieval:
    """Titles and bodies of news, as tokens; a title has to find its own body among all of its set."""

    def __init__(self, tokenizer: Any, pairs: int, sets: int, seed: int) -> None:
        news = list({title: body for title, body in reuters()[:9000] if len(body) > 300}.items())
        order = torch.randperm(len(news), generator=torch.Generator().manual_seed(seed))
        chosen = [news[i] for i in order.tolist()]
        self.pairs, total = pairs, pairs * sets
        if total + 32 > len(news):
            raise SystemExit(f"there are {len(news)} news: take fewer --pairs or --sets.")
        texts: list[str] = []
        for start in range(0, total, self.pairs):
            titles, bodies = zip(*chosen[start : start + self.pairs], strict=True)
            texts += titles + bodies
        self.inputs = tokens(tokenizer, texts, padding="max_length")
        others = [text for pair in chosen[total : total + 32] for text in pair]
        # One by one, without padding, so that ranges are those of real tokens.
        self.calibration = [tokens(tokenizer, [text]) for text in others]
        padded = tokens(tokenizer, others, padding="max_length")
        self.padded = list(zip(*(x.split(16) for x in padded), strict=True))

    def first_set(self) -> tuple[Tensor, ...]:
        return tuple(x[: 2 * self.pairs] for x in self.inputs)

    def found(self, embeddings: Tensor) -> Tensor:
        """Return whether the nearest body of each title is its own."""
        titles, bodies = embeddings.unflatten(0, (-1, 2, self.pairs)).unbind(1)
        nearest = (titles @ bodies.transpose(1, 2)).argmax(2)
        return (nearest == torch.arange(self.pairs)).flatten()


def tokens(tokenizer: Any, texts: list[str], padding: str | bool = False) -> tuple[Tensor, Tensor]:
    form = {"padding": padding, "truncation": True, "max_length": 128, "return_tensors": "pt"}
    encoded = tokenizer(texts, **form)
    return encoded["input_ids"], encoded["attention_mask"]
