"""trainstone: how fast this machine trains vision models, with an error bar, and what limits it."""

__version__ = "0.1.0"
