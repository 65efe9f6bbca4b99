"""trainstone: a benchmark of vision training: speed with a confidence interval, and what limits it."""

__version__ = "0.1.0"
