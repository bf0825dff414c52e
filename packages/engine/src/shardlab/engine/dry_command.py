"""`shardlab dry`: what one rank of N holds and sends, counted by running the real code on tensors without bytes."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import nn

    from shardlab.engine.dry import DryRun
    from shardlab.plan.model import ModelSpec
    from shardlab.plan.plan import Plan

__all__ = ["ASSUMPTIONS", "dry"]

_SCHEMA = "shardlab.dry/1"
_LONGEST_SEQ = 4096
_USAGE_OR_IO = 2
Flag = typer.Option

ASSUMPTIONS = (
    "kernels of the CPU: attention, norms and the loss of another device may save other bytes",
    "memory that a kernel allocates for itself is not seen, nor the allocator's rounding",
    "inputs and targets of one micro-batch are counted, the data loader is not",
    "every rank builds the whole model in fp32 before it is sharded: that is the memory at the start",
)


def dry(
    model: Annotated[
        str, Flag(help="Preset, config.json of a GPT-2- or Llama-like decoder, or package.module:function")
    ],
    gpus: Annotated[int, Flag(help="Number of ranks")],
    rank: Annotated[int, Flag(help="Which rank to be")] = 0,
    zero: Annotated[int, Flag(help="ZeRO stage: 0, 1, 2 or 3")] = 0,
    recompute: Annotated[str, Flag(help="none or full")] = "none",
    micro_batch: Annotated[int, Flag(help="Samples per rank and backward pass")] = 1,
    accumulation: Annotated[int, Flag(help="Backward passes per step")] = 1,
    seq: Annotated[int | None, Flag(help="Tokens per sample; the model's longest, at most 4096, if not given")] = None,
    precision: Annotated[str, Flag(help="fp32, bf16 or fp16")] = "bf16",
    optimizer: Annotated[str, Flag(help="adamw, adam, sgd, sgd-momentum, rmsprop or adagrad")] = "adamw",
    as_json: Annotated[bool, Flag("--json", help="One JSON object instead of text")] = False,
) -> None:
    """Run the real code for one rank of many, computing and sending nothing, and count.

    A function given as package.module:function takes no argument and returns a model that is called as
    model(ids, targets) and gives its loss, or a ModelSpec.
    """
    from shardlab.plan import MeshShape, Plan, Precision

    try:
        spec, make = _model(model)
        plan = Plan(
            model=spec,
            mesh=MeshShape({"dp": gpus}),
            zero=zero,
            precision=Precision.named(precision),
            optimizer=optimizer,
            micro_batch=micro_batch,
            accumulation=accumulation,
            seq=_seq(spec, make) if seq is None else seq,
            recompute=recompute,
        )
        if make is not None and recompute != "none":
            raise ValueError(f"--recompute {recompute}: {model} makes its own module, which has to recompute by itself")
        from shardlab.engine.dry import dry_run

        found = dry_run(plan, rank, make)
    except ValueError as error:
        print(f"shardlab dry: {error}", file=sys.stderr)
        raise typer.Exit(_USAGE_OR_IO) from None
    answer = _answer(plan, found, model)
    print(json.dumps(answer, indent=1) if as_json else "\n".join(_lines(answer)))


def _model(text: str) -> tuple[ModelSpec, Callable[[], nn.Module] | None]:
    """Read what the user names: a description, or with it a maker of a module."""
    from shardlab.plan import ModelSpec, count, load_model

    module, colon, function = text.partition(":")
    if not colon:
        return load_model(text), None
    try:
        made = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--model {text}: {error}; want package.module:function that can be imported") from None
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        first = made()
    if isinstance(first, ModelSpec):
        return first, None
    if not isinstance(first, nn.Module):
        raise ValueError(f"--model {text} returned {type(first).__name__}; want a torch.nn.Module or a ModelSpec")
    return count(sum(p.numel() for p in first.parameters()), name=text), made


def _seq(spec: ModelSpec, make: object) -> int:
    longest = spec.config.get("positions", 1 if make is None else _LONGEST_SEQ)
    return min(int(longest), _LONGEST_SEQ)


def _answer(plan: Plan, found: DryRun, model: str) -> dict[str, Any]:
    """Return the object from which text and JSON are printed."""
    return {
        "schema": _SCHEMA,
        "verdict": f"rank {found.rank} of {plan.mesh.size:,} ran one step of {model}",
        "inputs": {"plan": plan.to_dict(), "rank": found.rank},
        "result": found.to_dict(),
        "assumptions": list(ASSUMPTIONS),
    }


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    from shardlab.plan.units import format_bytes, format_gb

    result = answer["result"]
    yield answer["verdict"]
    yield ""
    yield "held between steps"
    for name, size in result["state"].items():
        yield f"  {name:<12} {format_bytes(size):>12}  {size:>20,} B"
    yield f"  {'pooled':<12} {format_bytes(result['pooled_bytes']):>12}  {result['pooled_bytes']:>20,} B"
    yield "alive at once"
    told = {"saved": "saved for backward", "peak": "during a step", "start": "while it is built and sharded"}
    for name, text in told.items():
        size = result[f"{name}_bytes"]
        yield f"  {name:<12} {format_bytes(size):>12}  {size:>20,} B  {text}"
    yield "sent to other ranks in a step"
    for name, call in result["calls"].items():
        yield f"  {name:<14} {format_gb(call['wire_bytes']):>10}  {call['wire_bytes']:>20,} B  {call['count']:,} calls"
    for axis, size in result["wire_bytes"].items():
        yield f"  over {axis:<9} {format_gb(size):>10}  {size:>20,} B"
    yield ""
    for assumption in answer["assumptions"]:
        yield f"assumed: {assumption}"
