"""Activation checkpoints in both nestings: around a unit's call, and inside it, where a recompute calls no hooks."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.zero.plain import Task, check, numbers, tokens


class Block(nn.Module):
    """One layer; ``inside`` checkpoints its own forward, as transformers 5 does."""

    def __init__(self, inside: bool | None) -> None:
        super().__init__()
        self.up, self.down, self.inside = nn.Linear(6, 9), nn.Linear(9, 6), inside

    def forward(self, x: Tensor) -> Tensor:
        if self.inside is None:
            return self._run(x)
        return checkpoint(self._run, x, use_reentrant=self.inside)

    def _run(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    """Blocks between an embedding-like layer and a head, with checkpoints where the test says."""

    def __init__(self, around: bool | None, inside: bool | None, frozen: bool, twice: bool) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Block(inside) for _ in range(3))
        self.head = nn.Linear(6, 2)
        self.around, self.twice = around, twice
        if frozen:
            for p in self.blocks[1].parameters():
                p.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in [*self.blocks, *self.blocks[: int(self.twice)]]:
            x = block(x) if self.around is None else checkpoint(block, x, use_reentrant=self.around)
        return self.head(x)


def loss(model: nn.Module, step: int, rank: int) -> Tensor:
    return model(numbers(3, 6, step=step, rank=rank)).square().mean()


def trained_only(params: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in params if p.requires_grad], lr=1e-2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("nesting", ["around", "inside", "both"])
@pytest.mark.parametrize("frozen", [False, True])
def test_both_nestings(nesting: str, reentrant: bool, frozen: bool) -> None:
    around = reentrant if nesting != "inside" else None
    inside = reentrant if nesting != "around" else None
    check(Task(lambda: Net(around, inside, frozen, False), loss, trained_only), stages=(0, 2, 3))


@pytest.mark.parametrize("nesting", ["around", "inside"])
def test_a_checkpointed_block_called_twice(nesting: str) -> None:
    around, inside = (False, None) if nesting == "around" else (None, False)
    check(Task(lambda: Net(around, inside, False, True), loss))


@pytest.mark.parametrize("nesting", ["around", "inside"])
def test_a_block_called_twice_under_reentrant_checkpoints_is_reduced_in_two_parts(nesting: str) -> None:
    """Such a checkpoint accumulates each call's gradient by itself, so sums are associated otherwise."""
    around, inside = (True, None) if nesting == "around" else (None, True)
    task = Task(lambda: Net(around, inside, False, True), loss, lambda p: torch.optim.SGD(p, lr=0.1))
    check(
        task, within=1e-6, lost=None
    )  # freed at the first gradient of the second call, while its graph still points there


def test_a_checkpoint_around_the_whole_model() -> None:
    def whole(reentrant: bool) -> Callable[[nn.Module, int, int], Tensor]:
        def run(model: nn.Module, step: int, rank: int) -> Tensor:
            x = numbers(3, 6, step=step, rank=rank).requires_grad_(reentrant)
            return checkpoint(model, x, use_reentrant=reentrant).square().mean()

        return run

    for reentrant in (False, True):
        check(Task(lambda: Net(None, None, False, False), whole(reentrant)))


def test_a_model_under_a_checkpoint_keeps_no_activations() -> None:
    """Hooks pushed over those of a checkpoint would switch it off without a word: its forward would run once."""
    from shardlab.comm import Mesh, run_ranks
    from shardlab.zero import shard

    def body(mesh: Mesh) -> int:
        model = Net(False, None, False, False)
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        model.blocks[1].register_forward_pre_hook(count)  # a recompute stops early, before forward hooks
        model, _ = shard(model, lambda p: torch.optim.SGD(p, lr=0.1), mesh["dp"], stage=3)
        loss(model, 0, 0).backward()
        return calls

    torch.manual_seed(0)
    assert run_ranks({"dp": 1}, body) == [2]


def gpt2() -> nn.Module:
    config = GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=31, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return GPT2LMHeadModel(config)


def llama(tied: bool) -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=31,
            tie_word_embeddings=tied,
        )
    )


def hf_loss(model: nn.Module, step: int, rank: int) -> Tensor:
    ids = tokens(31, 2, 7, step=step, rank=rank)
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def checkpointing(reentrant: bool) -> Callable[[nn.Module], None]:
    def prepare(model: nn.Module) -> None:
        model.train()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # transformers renames it
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        if reentrant:
            model.enable_input_require_grads()

    return prepare


@pytest.mark.parametrize("make", [gpt2, lambda: llama(True), lambda: llama(False)], ids=["gpt2", "tied", "llama"])
@pytest.mark.parametrize("kind", ["none", "reentrant", "non-reentrant"])
def test_hugging_face(make: Callable[[], nn.Module], kind: str) -> None:
    prepare = (lambda model: None) if kind == "none" else checkpointing(kind == "reentrant")
    check(Task(make, hf_loss, steps=2, prepare=prepare), stages=(1, 3))
