"""What `shard` refuses before it touches anything: models that could not be trained right, each by name."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from shardlab.comm.communicator import Communicator
from shardlab.comm.mesh import Mesh
from shardlab.comm.protocols import ShardStore

__all__ = ["MARK", "check_arguments"]

MARK = "shardlab_unit"
"""Attribute of a sharded parameter: the name of its unit."""


def check_arguments(model: nn.Module, comm: Communicator, stage: int, store: ShardStore | None) -> None:
    """Refuse what cannot be sharded.

    Raises:
        TypeError: a mesh, or something else, stands where one of its groups should.
        ValueError: names the argument or the first parameter that is wrong, and says what would be right.
    """
    if isinstance(comm, Mesh):
        raise TypeError('comm is a Mesh; give one of its groups, such as mesh["dp"]')
    if not hasattr(comm, "start_all_gather"):
        raise TypeError(f'comm is {type(comm).__name__}; give a communicator, such as shardlab.comm.init()["dp"]')
    if stage not in range(4):
        raise ValueError(f"stage is {stage!r}, valid are 0, 1, 2, 3")
    if store is not None:
        raise ValueError("store: keeping shards elsewhere is not built yet; leave it out")
    params = dict(model.named_parameters())
    if not params:
        raise ValueError(f"{type(model).__name__} has no parameters to shard")
    for name, p in params.items():
        _check_parameter(name, p)
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise ValueError(
                f"module {name!r} has max_norm={module.max_norm}: forward rescales its weight, on each rank by the "
                "tokens of that rank, so that ranks would part. Leave max_norm out and rescale after the step, inside "
                "gathered(model, ..., write_from=0)"
            )
    _check_memory(model)


def _check_parameter(name: str, p: nn.Parameter) -> None:
    if MARK in p.__dict__:
        raise ValueError(f"parameter {name!r} is already sharded; shard the whole model once")
    if isinstance(p, UninitializedParameter):
        raise ValueError(f"parameter {name!r} is not initialised: run one forward of the lazy module before shard")
    if p.is_meta:
        raise ValueError(
            f"parameter {name!r} is on the meta device and holds no values: materialise and initialise the model "
            "before shard"
        )
    if p.is_complex() and p.requires_grad:
        raise ValueError(f"parameter {name!r} is {p.dtype}: train its torch.view_as_real instead")
    if p.grad is not None:
        raise ValueError(f"parameter {name!r} has a gradient, which would be lost: call zero_grad() before shard")


def _check_memory(model: nn.Module) -> None:
    """Two tensors over one memory change together; in a flat buffer they would part without a word."""
    last: dict[tuple[int, bool], tuple[int, str]] = {}  # storage, is it a parameter -> furthest end so far, and whose
    for storage, start, _, end, is_param, name in sorted(_ranges(model)):
        for other_is_param in (True, False) if is_param else (True,):
            reached, other = last.get((storage, other_is_param), (0, ""))
            if start < reached:
                first, second = (other, name) if other_is_param else (name, other)
                raise ValueError(
                    f"parameter {first!r} and {second!r} share memory but are two objects, so that they would part: "
                    "tie them by giving both modules one nn.Parameter, or clone one of them"
                )
        if end > last.get((storage, is_param), (0, ""))[0]:
            last[storage, is_param] = (end, name)


def _ranges(model: nn.Module) -> Iterator[tuple[int, int, int, int, bool, str]]:
    """Bytes that each dense parameter and buffer covers: (storage, start, number, end, is it a parameter, name)."""
    named: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    for number, (name, x) in enumerate(named):
        if x.layout is not torch.strided or not x.numel():
            continue
        span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        if span == x.numel():
            start = int(x.storage_offset()) * x.element_size()
            end = start + x.numel() * x.element_size()
            yield x.untyped_storage()._cdata, start, number, end, isinstance(x, nn.Parameter), name
