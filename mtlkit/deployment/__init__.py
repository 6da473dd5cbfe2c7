"""After training: load a run, export its network, predict on new samples."""
