"""The workloads by name."""

from trainstone.workloads.classify import CLASSIFY
from trainstone.workloads.detect import DETECT

WORKLOADS = {"classify": CLASSIFY, "detect": DETECT}
