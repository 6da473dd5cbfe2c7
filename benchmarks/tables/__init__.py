"""Networks beside ridge regression, random forests and boosted trees on five tables."""
