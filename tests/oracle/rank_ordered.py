"""The strong oracle: one plain process that adds the ranks' gradients in rank order.

It has no flat buffers, shards, units or communicators. It differs from a textbook loop in the two things that data
parallelism is: the batch comes in one chunk per rank, and each chunk has its own buffers (BatchNorm's statistics).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shardlab.zero.precision import torch_dtype
from tests.oracle.recipe import Outcome, Recipe, copies

Grads = dict[str, Tensor]


def rank_ordered(recipe: Recipe, ranks: int | Sequence[Sequence[int]]) -> list[Outcome]:
    """Train as ``ranks`` ranks would; what each of them ends with.

    Args:
        ranks: how many, or groups of them: sums are taken inside each group in order, then over the groups in order.
    """
    groups = [list(range(ranks))] if isinstance(ranks, int) else [list(group) for group in ranks]
    everyone = [rank for group in groups for rank in group]
    model, masters = _model_and_masters(recipe)
    optimizer = recipe.make_optimizer(masters.values())
    outcomes = {rank: Outcome(buffers=copies(model.named_buffers())) for rank in everyone}
    for step in range(recipe.steps):
        total: Grads = {}
        for micro_batch in range(recipe.micro_batches):
            local = {rank: _local(recipe, model, outcomes[rank], step, micro_batch, rank) for rank in everyone}
            summed = _in_order([_in_order([local[rank] for rank in group]) for group in groups])
            for name, grad in summed.items():
                # by a Python number, which is rounded to fp32 at least
                scaled = _accumulate_dtype(recipe, grad) * (1.0 / len(everyone))
                total[name] = total[name] + scaled if name in total else scaled
        for name, master in masters.items():
            master.grad = total[name].to(master.dtype) if name in total else None
        if step == 0:
            for outcome in outcomes.values():
                outcome.grads = copies(total.items())
        if recipe.clip is not None:
            norm = _clip(masters, recipe.clip)
            for outcome in outcomes.values():
                outcome.norms.append(norm)
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(masters[name])
    for outcome in outcomes.values():
        outcome.params = copies(model.named_parameters())
        if recipe.with_state:
            outcome.state = {
                name: copies((key, x) for key, x in optimizer.state[p].items() if isinstance(x, Tensor))
                for name, p in masters.items()
            }
    return [outcomes[rank] for rank in sorted(everyone)]


def _model_and_masters(recipe: Recipe) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """The model that computes, and the weights that learn: the same ones unless the precision says otherwise."""
    model, precision = recipe.build(), recipe.precision
    if precision is None:
        return model, dict(model.named_parameters())
    fp32 = {id(p) for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    masters = {}
    for name, p in model.named_parameters():
        masters[name] = nn.Parameter(p.detach().to(torch_dtype(precision.master), copy=True))
        if (
            precision.compute is not None and id(p) not in fp32
        ):  # torch wants BatchNorm in one dtype, statistics and all
            p.data = p.data.to(torch_dtype(precision.compute))
    return model, masters


def _local(recipe: Recipe, model: nn.Module, outcome: Outcome, step: int, micro_batch: int, rank: int) -> Grads:
    """One rank's gradients of one micro-batch, in the dtype in which they are summed; its buffers move on."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(outcome.buffers[name])
    model.zero_grad()
    x, y = recipe.batch(step, micro_batch, rank)
    precision = recipe.precision
    if precision is not None and precision.compute is not None and x.is_floating_point():
        x = x.to(torch_dtype(precision.compute))
    loss = recipe.loss(model, (x, y))
    loss.backward()
    outcome.losses.append(loss.item())
    outcome.buffers = copies(model.named_buffers())
    grads = copies((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
    if precision is None:
        return grads
    return {name: grad.to(torch_dtype(precision.reduce)) for name, grad in grads.items()}


def _in_order(parts: list[Grads]) -> Grads:
    """Sums of 16-bit gradients are taken in fp32 and rounded once."""
    total: Grads = {}
    for part in parts:
        for name, grad in part.items():
            wide = grad.float() if grad.dtype in (torch.bfloat16, torch.float16) else grad
            total[name] = total[name] + wide if name in total else wide
    dtypes = {name: grad.dtype for part in parts for name, grad in part.items()}
    return {name: grad.to(dtypes[name]) for name, grad in total.items()}


def _accumulate_dtype(recipe: Recipe, grad: Tensor) -> Tensor:
    return grad if recipe.precision is None else grad.to(torch_dtype(recipe.precision.accumulate))


def _clip(params: dict[str, nn.Parameter], max_norm: float) -> float:
    """Torch's own clipping, by a norm that does not depend on where a gradient is cut."""
    grads = [p.grad for p in params.values() if p.grad is not None]
    square = sum(grad.double().square().sum() for grad in grads)
    wide = any(grad.dtype is torch.float64 for grad in grads)
    norm = torch.as_tensor(square).sqrt().to(torch.float64 if wide else torch.float32)
    torch.nn.utils.clip_grads_with_norm_(params.values(), max_norm, norm)
    return norm.item()
