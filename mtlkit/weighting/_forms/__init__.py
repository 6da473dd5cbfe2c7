"""Forms that several methods share: a point on the simplex, a function of the losses."""
