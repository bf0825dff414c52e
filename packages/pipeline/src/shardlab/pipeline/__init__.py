"""Not built yet: a runtime for pipeline schedules that are data."""
