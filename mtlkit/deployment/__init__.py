"""After training: load a run, fuse and export its network, predict and evaluate new samples."""
