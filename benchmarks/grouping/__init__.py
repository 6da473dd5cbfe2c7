"""Whether ``mtlkit diagnose`` finds planted groups of tasks, and no groups where there are none."""
