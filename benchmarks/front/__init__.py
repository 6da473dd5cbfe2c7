"""The front of one training with preferences against twenty trainings of weighted sums."""
