"""Where the host's time goes: seconds per part since the process started, as in FineInfer's table 1 (section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class HostTimes:
    """Each field is written by one thread: the first six by the engine's, the others by the event loop's.

    schedule, apply: deciding iterations and applying their results. launch: the host's part of the forward pass. wait:
    for the device. device: duration of iterations on the device, as seen from the host. commands: adding and removing
    requests. tokenize: templates and tokenization, including what runs in other threads. detokenize: ids to text, stop
    strings and tool calls. sse: building event frames and writing them to the socket.
    """

    schedule: float = 0.0
    launch: float = 0.0
    wait: float = 0.0
    apply: float = 0.0
    device: float = 0.0
    commands: float = 0.0
    tokenize: float = 0.0
    detokenize: float = 0.0
    sse: float = 0.0

    def by_part(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def host_table(times: HostTimes, process_s: float, wall_s: float, num_tokens: int) -> str:
    """FineInfer's table 1 as text, with the device's time on its own. process_s: CPU seconds of the whole process.

    Parts are elapsed times. Waiting for the interpreter lock lengthens them, and so shortens `other`.
    """
    step = times.schedule + times.launch + times.wait + times.apply
    parts = times.schedule + times.launch + times.apply + times.commands
    parts += times.tokenize + times.detokenize + times.sse
    rows = {
        "engine_step": step,
        "generation_step": times.schedule + times.apply,
        "forward (host)": times.launch,
        "forward (device)": times.device,
        "add/remove requests": times.commands,
        "tokenization": times.tokenize,
        "detokenization": times.detokenize,
        "SSE": times.sse,
        "other (CPU)": max(0.0, process_s - parts),
    }
    lines = [f"host profile of {wall_s:.1f} s, {process_s:.1f} s of CPU, {num_tokens} tokens generated"]
    lines.append(f"{'part':<20} {'seconds':>9} {'% of time':>9} {'us/token':>9}")
    for name, seconds in rows.items():
        per_token = f"{seconds / num_tokens * 1e6:9.2f}" if num_tokens else f"{'':>9}"
        lines.append(f"{name:<20} {seconds:9.3f} {seconds / wall_s:9.1%} {per_token}")
    return "\n".join(lines)
