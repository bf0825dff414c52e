"""Small models with their data and their loss, by name, so that a rank in another process can make the same."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

VOCABULARY = 33
Batch = tuple[Tensor, Tensor]


class MLP(nn.Module):
    """Three layers of odd widths; one without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 9, bias=False), nn.GELU(), nn.Linear(9, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ConvNet(nn.Module):
    """Two convolutions and a head; BatchNorm between them, or nothing."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6) if norm else nn.Identity()
        self.second = nn.Conv2d(6, 4, 3)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.head(torch.relu(self.second(x)).mean((2, 3)))


class Block(nn.Module):
    """A pre-norm transformer block of width 12 with 2 heads."""

    def __init__(self, width: int = 12, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.ln1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.proj(mixed)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    """A decoder whose output layer is its token embedding; ``checkpointing`` recomputes whole blocks."""

    def __init__(self, layers: int = 3, width: int = 12) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCABULARY, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, VOCABULARY, bias=False)
        self.out.weight = self.tok.weight
        self.checkpointing: str | None = None

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            if self.checkpointing is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.checkpointing == "reentrant")
        return self.out(self.norm(x))


def hf_gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    options: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    options |= {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": VOCABULARY, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **options))


def hf_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_LLAMA_LIKE, tie_word_embeddings=False))


def hf_qwen2() -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_LLAMA_LIKE, tie_word_embeddings=True))


_LLAMA_LIKE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 16,
}


def _numbers(shape: tuple[int, ...]) -> Callable[[torch.Generator], Batch]:
    def draw(generator: torch.Generator) -> Batch:
        x = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
        return x, torch.randint(0, 5, (3,), generator=generator)

    return draw


def _tokens(generator: torch.Generator) -> Batch:
    ids = torch.randint(0, VOCABULARY, (2, 9), generator=generator)
    return ids, ids


def _classes(model: nn.Module, batch: Batch) -> Tensor:
    x, labels = batch
    return F.cross_entropy(model(x), labels)


def _next_token(model: nn.Module, batch: Batch) -> Tensor:
    ids, _ = batch
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _hugging_face(model: nn.Module, batch: Batch) -> Tensor:
    """Its own loss; in fp64 one from its logits, since its own is computed in fp32."""
    ids, _ = batch
    output = model(input_ids=ids, labels=ids, use_cache=False)
    if output.logits.dtype is not torch.float64:
        return output.loss
    return F.cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@dataclass(frozen=True)
class Task:
    """A model, one rank's batch for it, and the mean loss of a batch."""

    make: Callable[[], nn.Module]
    draw: Callable[[torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]

    def build(self, dtype: torch.dtype = torch.float32, checkpointing: str | None = None) -> nn.Module:
        """The model with the same weights each time; ``checkpointing`` is None, "reentrant" or "non-reentrant"."""
        state = torch.get_rng_state()
        torch.manual_seed(11)
        model = self.make().to(dtype)
        torch.set_rng_state(state)
        if checkpointing is not None and isinstance(model, GPT):
            model.checkpointing = checkpointing
        elif checkpointing is not None:
            model.train()
            switch_on = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            switch_on({"use_reentrant": checkpointing == "reentrant"})
            if checkpointing == "reentrant":
                model.enable_input_require_grads()
        return model

    def batch(self, step: int, micro_batch: int, rank: int, dtype: torch.dtype = torch.float32) -> Batch:
        """What ``rank`` sees; the same each time."""
        generator = torch.Generator().manual_seed(10_000 * step + 100 * micro_batch + rank)
        x, y = self.draw(generator)
        return (x.to(dtype) if x.is_floating_point() else x), y


TASKS = {
    "mlp": Task(MLP, _numbers((7,)), _classes),
    "conv": Task(lambda: ConvNet(norm=False), _numbers((3, 6, 6)), _classes),
    "batchnorm": Task(lambda: ConvNet(norm=True), _numbers((3, 6, 6)), _classes),
    "gpt": Task(GPT, _tokens, _next_token),
    "gpt_deep": Task(lambda: GPT(layers=8), _tokens, _next_token),
    "hf_gpt2": Task(hf_gpt2, _tokens, _hugging_face),
    "hf_llama": Task(hf_llama, _tokens, _hugging_face),
    "hf_qwen2": Task(hf_qwen2, _tokens, _hugging_face),
}
