"""Collectives, point-to-point and meshes, behind one contract for every backend."""

from shardlab.comm.communicator import MAX, MIN, SUM, Communicator, Pending, ReduceOp
from shardlab.comm.dry import dry_mesh
from shardlab.comm.errors import BufferInFlightError, CommError, DeadlockError, DivergedError, RankLeftError
from shardlab.comm.guard import agree
from shardlab.comm.mesh import Mesh
from shardlab.comm.process import init
from shardlab.comm.protocols import GradSink, Handlers, HasPieces, Key, ShardStore
from shardlab.comm.ranks import run_ranks
from shardlab.comm.record import Label, Recorder, recording
from shardlab.comm.values import host_list, host_value

__all__ = [
    # start
    "init",
    "run_ranks",
    "dry_mesh",
    # the contract
    "Communicator",
    "Mesh",
    "Pending",
    "ReduceOp",
    "SUM",
    "MAX",
    "MIN",
    "agree",
    "host_list",
    "host_value",
    # what was posted
    "Label",
    "Recorder",
    "recording",
    # errors
    "BufferInFlightError",
    "CommError",
    "DeadlockError",
    "DivergedError",
    "RankLeftError",
    # what packages know of each other
    "GradSink",
    "Handlers",
    "HasPieces",
    "Key",
    "ShardStore",
]
