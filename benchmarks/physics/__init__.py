"""Physics-informed networks: methods beside the plain sum on a case where the sum fails."""
