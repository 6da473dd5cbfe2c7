"""Speed against the plain step and against the peers. Every module here has a ``run()``."""
