"""Boxes of many classified pictures in little memory."""

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trainstone.data.sample import Box, Edges


class BoxTable:
    """Boxes of samples by number, as one array and where each sample's begin."""

    def __init__(self, starts: NDArray[np.int64], edges: NDArray[np.float64]) -> None:
        self._starts = starts
        self._edges = edges  # (boxes, 4)

    @staticmethod
    def build(names: Sequence[str], boxes: Mapping[str, Sequence[Edges]]) -> "BoxTable":
        starts, edges = array("q", [0]), array("d")
        for name in names:
            stem = name.rpartition(".")[0]
            for box in boxes.get(stem) or boxes.get(stem.rpartition("/")[2], ()):
                edges.extend(box)
            starts.append(len(edges) // 4)
        return BoxTable(np.array(starts), np.array(edges).reshape(-1, 4))

    def get(self, index: int, label: int) -> tuple[Box, ...]:
        first, last = self._starts[index], self._starts[index + 1]
        return tuple(Box(label, *edges) for edges in self._edges[first:last].tolist())
