"""The decodes that graphs computed last, to compute them again one token further: one batch of them for each lane.

Lanes take turns (service/scheduler/lanes.py), and those of about the same size use the same graph. Then the decodes of
one overwrite another's in the graph's inputs; those are put aside first, and brought back when it is their turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from service.runner.batch_columns import Array
from service.runner.captured_step import CapturedStep
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import PaddedStep


@dataclass(slots=True)
class LastDecodes:
    """Decodes, and the graph that computed them. order: on a pipeline stage, their `flat_order`. has_filters: as in
    `StepGraphs.run`. aside: their columns, if the graph's inputs hold other decodes now."""

    padded: PaddedStep
    captured: CapturedStep
    order: Tensor | None
    has_filters: bool
    aside: Mapping[str, Array] | None = None


class LaneDecodes:
    """Engine thread. last: by the version of their plan's ScheduledDecodes, the one replayed longest ago first."""

    def __init__(self, num_lanes: int) -> None:
        self._num_lanes = num_lanes
        self.last: OrderedDict[int, LastDecodes] = OrderedDict()

    def note(self, decodes: LastDecodes, version: int | None) -> None:
        """These are about to be filled into their graph's inputs. version: None if they will not be replayed again."""
        self._put_aside(decodes.captured.inputs)
        if version is not None:
            self.last[version] = decodes
            if len(self.last) > self._num_lanes:
                self.last.popitem(last=False)

    def bring_back(self, decodes: LastDecodes, version: int) -> None:
        """Fill in these, which were put aside, again."""
        assert decodes.aside is not None
        inputs = decodes.captured.inputs
        self._put_aside(inputs)
        inputs.bring_back(decodes.aside, version)
        decodes.aside = None

    def _put_aside(self, inputs: GraphInputs) -> None:
        """Before other decodes overwrite `inputs`: save those held there if they are a lane's, which will run again."""
        held = None if self._num_lanes == 1 or inputs.version is None else self.last.get(inputs.version)
        if held is not None and held.captured.inputs is inputs:
            held.aside = inputs.aside()
