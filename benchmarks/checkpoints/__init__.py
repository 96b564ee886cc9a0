"""Checkpoints by different tools: how long they take, and how much disk their history takes."""
