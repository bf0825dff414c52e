"""Schedules: which compute actions run in which order; pure functions."""
