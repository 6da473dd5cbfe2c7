"""Time and memory of methods on a causal language model, beside the Trainer of Hugging Face alone."""
