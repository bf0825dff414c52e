"""The weak oracle: a textbook loop over whole batches, which adds in another order and so is held to a tolerance."""

import torch
from torch import Tensor

from tests.oracle.recipe import Outcome, Recipe, copies


def full_batch(recipe: Recipe, ranks: int) -> Outcome:
    """Train on the batches of all ranks and micro-batches put together, with nothing but PyTorch."""
    model = recipe.build()
    optimizer = recipe.make_optimizer(model.parameters())
    outcome = Outcome()
    for step in range(recipe.steps):
        chunks = [recipe.batch(step, m, rank) for m in range(recipe.micro_batches) for rank in range(ranks)]
        x, y = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        optimizer.zero_grad()
        loss = recipe.task.loss(model, (x, y))
        loss.backward()
        outcome.losses.append(loss.item())
        if step == 0:
            outcome.grads = copies((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)
        if recipe.clip is not None:
            norm: Tensor = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            outcome.norms.append(norm.item())
        optimizer.step()
    outcome.params = copies(model.named_parameters())
    return outcome
