"""What can go wrong between ranks, one class per cause."""

__all__ = ["BufferInFlightError", "CommError", "DeadlockError", "DivergedError", "RankLeftError"]


class CommError(RuntimeError):
    """A communication could not be carried out."""


class RankLeftError(CommError):
    """A rank ended before it took part in an operation that others wait for."""


class DeadlockError(CommError):
    """Every live rank waits and no wait can be met; the message says what each waits for."""


class DivergedError(CommError):
    """Ranks of one group called different operations, or the same one with different sizes."""


class BufferInFlightError(CommError):
    """A buffer was written (input) or written by others (output) between start_ and wait."""
