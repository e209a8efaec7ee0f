"""Where the host's time goes: seconds since the process began, by part, after FineInfer's table 1 (section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class HostTimes:
    """Each field has one writing thread: the engine's for the first six, the event loop's for the others.

    schedule, apply: deciding iterations and applying their results. launch: the forward pass as far as the host does
    it. wait: for the device. device: what the iterations took there, as far as the host sees it. commands: adding and
    removing requests. tokenize: templates and prompts to ids, in threads too. detokenize: ids to text, stop strings and
    tool calls. sse: frames, and their way into the socket.
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
    """FineInfer's table 1, with the device's time told apart. process_s: CPU seconds of the whole process.

    The parts are elapsed times: one that had to wait for the interpreter seems longer, and `other` shorter.
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
