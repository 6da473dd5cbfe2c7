"""mtlkit's methods inside the training loops of other packages, which are imported only when used."""
