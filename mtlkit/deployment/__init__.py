"""After training: load a run, fuse and export its network, predict on and evaluate new samples."""
