"""Code that several methods share: options per task, functions of the losses, weights on the simplex."""
