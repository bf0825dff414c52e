"""`zsim estimate`: does it fit, how fast is it, what does it rest on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shardlab.sim.cli.exits import Exit
from shardlab.sim.request import Request, choice, refuse_unbuilt

Flag = typer.Option


def estimate(
    model: Annotated[str, Flag(help="Preset, config.json of a GPT-2- or Llama-like decoder, or a count such as 7.5e9")],
    gpus: Annotated[int, Flag(help="Number of ranks")],
    device: Annotated[str, Flag(help="Device, such as h100-80g; `this` for the CPUs of this host; or a machine.json")],
    nodes: Annotated[int | None, Flag(help="Nodes; as few as hold the ranks if not given")] = None,
    zero: Annotated[int | None, Flag(help="ZeRO stage: 0, 1, 2 or 3")] = None,
    tp: Annotated[int, Flag(help="Tensor-parallel size (not built yet: 1)")] = 1,
    pp: Annotated[int, Flag(help="Pipeline stages (not built yet: 1)")] = 1,
    cp: Annotated[int, Flag(help="Context-parallel size (not built yet: 1)")] = 1,
    ep: Annotated[int, Flag(help="Expert-parallel size (not built yet: 1)")] = 1,
    virtual_stages: Annotated[int, Flag(help="Model chunks per pipeline stage (not built yet: 1)")] = 1,
    schedule: Annotated[str | None, Flag(help="Pipeline schedule (not built yet)")] = None,
    micro_batch: Annotated[int | None, Flag(help="Samples per rank and backward pass")] = None,
    global_batch: Annotated[int | None, Flag(help="Samples per step over all ranks")] = None,
    seq: Annotated[int | None, Flag(help="Tokens per sample")] = None,
    recompute: Annotated[str, Flag(help="none or full (selective is not built yet)")] = "none",
    sequence_parallel: Annotated[bool, Flag("--sequence-parallel", help="Not built yet")] = False,
    precision: Annotated[str | None, Flag(help="fp32, bf16 or fp16 (fp8 is not built yet)")] = None,
    optimizer: Annotated[str | None, Flag(help="adamw, adam, sgd, sgd-momentum, rmsprop or adagrad")] = None,
    offload_optimizer: Annotated[str, Flag(help="none (host and disk are not built yet)")] = "none",
    offload_params: Annotated[str, Flag(help="none (host and disk are not built yet)")] = "none",
    config: Annotated[Path | None, Flag(help="Configuration in DeepSpeed's JSON keys")] = None,
    as_json: Annotated[bool, Flag("--json", help="One JSON object instead of text")] = False,
) -> int:
    """Predict memory, communication and time of a training run, without running it.

    Exit code 0: it fits; 1: it does not; 2: the question is faulty.
    """
    from shardlab.sim.answer import answer

    for flag, value in (("--offload-optimizer", offload_optimizer), ("--offload-params", offload_params)):
        choice(flag, value, ("none", "host", "disk"))
    refuse_unbuilt(
        tp=(tp, 1),
        pp=(pp, 1),
        cp=(cp, 1),
        ep=(ep, 1),
        virtual_stages=(virtual_stages, 1),
        schedule=(schedule, None),
        sequence_parallel=(sequence_parallel, False),
        offload_optimizer=(offload_optimizer, "none"),
        offload_params=(offload_params, "none"),
    )
    sizes = (nodes, zero, micro_batch, global_batch, seq)
    found = answer(Request(model, gpus, device, *sizes, recompute, precision, optimizer, config))
    if as_json:
        print(json.dumps(found.to_dict(), indent=1))
    else:
        from shardlab.sim.render.estimate import render

        render(found.to_dict())
    return Exit.YES if found.fits else Exit.NO
