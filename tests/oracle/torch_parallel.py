"""Outside judges: PyTorch's own data parallelism, plain and fully sharded, over gloo in processes of their own.

    judged(folder, ranks, jobs) -- python -m tests.oracle.torch_parallel FOLDER RANK RANKS --> FOLDER/RANK.out

The processes end without destroying the process group: that hangs now and then, with the interpreter's lock held.
"""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.models import GPT
from tests.oracle.recipe import Outcome, Recipe, copies

Job = tuple[str, Recipe]  # "ddp" or "fsdp2"


def judged(folder: Path, ranks: int, jobs: list[Job], limit_s: float = 120) -> list[list[Outcome]]:
    """Train each job on ``ranks`` processes; outcomes by job and rank."""
    (folder / "jobs").write_bytes(pickle.dumps(jobs))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "tests.oracle.torch_parallel", str(folder)]
    started = [subprocess.Popen([*command, str(rank), str(ranks)], env=env) for rank in range(ranks)]
    try:
        assert [process.wait(limit_s) for process in started] == [0] * ranks
    finally:
        for process in started:
            process.kill()
            process.wait()
    by_rank = [pickle.loads((folder / f"{rank}.out").read_bytes()) for rank in range(ranks)]
    return [list(outcomes) for outcomes in zip(*by_rank, strict=True)]


def _train(job: Job, rank: int) -> Outcome:
    kind, recipe = job
    bare = recipe.build()
    model: nn.Module = _fully_sharded(bare) if kind == "fsdp2" else DistributedDataParallel(bare)
    optimizer = recipe.make_optimizer(model.parameters())
    outcome = Outcome()
    for step in range(recipe.steps):
        for micro_batch in range(recipe.micro_batches):
            recipe.loss(model, recipe.batch(step, micro_batch, rank)).backward()
        if step == 0:
            outcome.grads = {name: _whole(p.grad) for name, p in bare.named_parameters() if p.grad is not None}
        if recipe.clip is not None:
            outcome.norms.append(_whole(torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)).item())
        optimizer.step()
        optimizer.zero_grad()
    outcome.params = copies((name, _whole(p)) for name, p in bare.named_parameters())
    return outcome


def _fully_sharded(model: nn.Module) -> nn.Module:
    if isinstance(model, GPT):
        for block in model.blocks:
            fully_shard(block)
    return fully_shard(model)


def _whole(x: Tensor) -> Tensor:
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


def main(folder: Path, rank: int, ranks: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), ranks), rank=rank, world_size=ranks)
    jobs = pickle.loads((folder / "jobs").read_bytes())
    (folder / f"{rank}.out").write_bytes(pickle.dumps([_train(job, rank) for job in jobs]))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
