"""Lowering passes: each only inserts actions, so erasing what it inserted gives its input back."""
