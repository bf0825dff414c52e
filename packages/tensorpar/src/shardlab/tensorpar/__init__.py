"""Not built yet: tensor, sequence and context parallelism."""
