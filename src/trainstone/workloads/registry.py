"""The workloads by name."""

from trainstone.workloads.classify import CLASSIFY

WORKLOADS = {"classify": CLASSIFY}
