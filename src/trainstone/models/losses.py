"""Cross-entropy with the two conventions of label smoothing that the benchmarks trainstone replaces disagree about."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor


def cross_entropy(
    logits: Tensor, labels: Tensor, *, smoothing: float = 0.0, over: Literal["all", "others"] = "all"
) -> Tensor:
    """Return the batch's mean in fp32. A share `smoothing` of the target is taken from the true class and spread evenly
    over all classes, itself included, or over the others."""
    logits = logits.float()  # (batch, classes)
    if over == "all" or not smoothing:
        return F.cross_entropy(logits, labels, label_smoothing=smoothing)
    share = smoothing / max(1, logits.shape[1] - 1)
    log_p = F.log_softmax(logits, dim=1)
    true = log_p.gather(1, labels[:, None]).squeeze(1)
    return -((1 - smoothing - share) * true + share * log_p.sum(1)).mean()
