"""Text made of the same objects as the JSON."""
