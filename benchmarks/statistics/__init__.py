"""Simulations that choose the rule by which comparisons are judged."""
