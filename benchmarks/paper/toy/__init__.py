"""The paper's illustrative problems."""
