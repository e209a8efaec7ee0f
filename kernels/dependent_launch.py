"""Programmatic dependent launch: a kernel's programs take their places while the kernel before it still runs.

A decode step is hundreds of small kernels, and between two of them the device stands still for about a microsecond.
A kernel that calls `wait_for_inputs(PDL)`, and is launched with `**dependent_launch(device)`, is already on the device
by then: it says that the next kernel may come too, and waits until all that ran before it is complete and visible.
Nothing may be written before that call, and everything may after it. Kernels of others between ours order
themselves as always. Hopper and later; elsewhere, and in the interpreter, nothing changes.

Before the call, after `start_dependents(PDL)`, a kernel may read what was complete before the last kernel that was
launched without this, or the last copy, began: weights, or lengths that a copy brings.
Arithmetic between the two, as for addresses, is hidden too.
Several of our kernels may stand waiting at once, so one further back in the same row may not have run yet.

A kernel that calls `wait_then_start_dependents(PDL)` instead, and nothing before, lets the next one come only when all
that ran before both is complete. So a kernel behind it that reads nothing of it need not wait for it before it ends
and the two run side by side. It has to wait by then, or whatever comes next would not.

Asking for weights, or for keys and values, before the wait (to L2, by cp.async.bulk.prefetch, prefetch or plain loads)
gains nothing on an H200 (loadtest/log/kernels.md), where the programs before leave no room for those that would ask
early. Large copies of few programs gain a little: kernels/fp8_units.py.
"""

from __future__ import annotations

from functools import cache
from typing import no_type_check

import torch

from kernels.optional_triton import gdc_launch_dependents, gdc_wait, tl, triton


@triton.jit
@no_type_check
def start_dependents(PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()


@triton.jit
@no_type_check
def wait_for_inputs(PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
@no_type_check
def wait_alone(PDL: tl.constexpr):
    """For a kernel that starts dependents later on."""
    if PDL:
        gdc_wait()


@triton.jit
@no_type_check
def wait_then_start_dependents(PDL: tl.constexpr):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@cache
def dependent_launch(device: torch.device) -> dict[str, bool]:
    """What to launch such a kernel with."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}
