"""PagedAttention, figure 16: throughput if requests begin with a shared prefix.

Eight system prompts of 512 tokens before questions of 16 to 128 tokens, with the automatic prefix cache on and off.
"""

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, exact_limit, on_demand
from loadtest.offline.figures_of_merit import mean_batch_size, output_throughput, request_throughput
from loadtest.offline.replay import replay
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.stage import Stage

NAME = "pagedattention_fig16"
WORKLOAD = "shared-prefix"


def run(stage: Stage) -> Figure:
    """The figure. All requests are sent at once."""
    pool = stage.pool(block_size=16)
    requests = stage.trace(WORKLOAD, stage.num_requests(1000))
    rows: list[list[object]] = []
    rates: list[float] = []
    for name, caching in (("prefix cache off", False), ("prefix cache on", True)):
        policies = EnginePolicies(on_demand(pool), exact_limit, prefix_caching=caching)
        system = EngineSystem(name, pool, policies)
        outcome = replay(system, requests)
        hits = sum(i.prefix_hit_tokens for i in system.log.iterations)
        share = 100 * hits / sum(len(request.prompt_token_ids) for request in requests)
        rates.append(request_throughput(outcome))
        figures = (rates[-1], output_throughput(outcome), mean_batch_size(outcome), share, rates[-1] / rates[0])
        rows.append([name, *figures])
    columns = ["system", "requests/s", "output tokens/s", "sequences/iteration", "prompt tokens cached, %", "speed-up"]
    return Figure(
        NAME,
        "PagedAttention figure 16: throughput with a shared prefix",
        f"the offline engine on {stage.policy_device}",
        [Table(f"{len(requests)} requests at once, 8 prefixes of 512 tokens", columns, rows)],
        notes=["the paper's vLLM against ORCA (Oracle): 1.67x with one shared example, 3.58x with five"],
    )
