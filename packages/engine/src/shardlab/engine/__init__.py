"""The front door: build a model, launch ranks, train, report.

Importing this package imports neither torch nor MPI, because the command `shardlab` lives in it and has to answer on a
machine where they are broken. What needs them is imported from its own module.
"""
