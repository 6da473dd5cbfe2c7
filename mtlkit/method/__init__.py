"""What a method is: its parts, their state, and the training step over them."""
