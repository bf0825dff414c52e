"""Not built yet: tiers of memory for parameters and optimizer state."""
