"""Programmatic dependent launch (PDL): a kernel's programs start while the previous kernel still runs.

A decode step is hundreds of small kernels, and between two of them the device is idle for about a microsecond. A kernel
that calls `wait_for_inputs(PDL)`, and is launched with `**dependent_launch(device)`, is already on the device by then.
The call lets the next kernel start too, and waits until everything before this kernel is complete and visible. Write
nothing before the call; after it, anything goes. Kernels without PDL are ordered as always. Hopper and later; on other
devices and in the interpreter nothing changes.

Before the call, after `start_dependents(PDL)`, a kernel may read only what was complete before the last launch without
PDL, or the last copy, began: weights, or lengths that a copy brings. Computing addresses there is hidden too. Several
of our kernels may be waiting at once, so an earlier one of them may not have run yet.

A kernel that calls `wait_then_start_dependents(PDL)` first, and nothing before it, lets the next kernel start only when
everything before both is complete. So a next kernel that reads none of its results need not wait for it until its own
end, and the two run side by side. It must wait by its end; otherwise the kernel after it would not be ordered behind
this one. The same holds of a kernel that is launched without PDL and calls `start_dependents(PDL)`: attention of
prompts, beside which decodes run (kernels/paged_attention_decode.py).

Prefetching weights or keys and values before the wait (to L2, with cp.async.bulk.prefetch, prefetch or plain loads)
gains nothing on an H200 (loadtest/log/kernels.md): the running programs leave no room for those that would prefetch.
Large copies by few programs gain a little: kernels/fp8_units.py.
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
    """For a kernel that starts its dependents later."""
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
    """Launch options for such a kernel."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}
