"""One backward pass of K tasks: autograd nodes, Gram matrix, reductions, random draws."""
