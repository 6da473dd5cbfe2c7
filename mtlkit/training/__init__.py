"""Trainer, tasks, checkpoints and monitor."""
