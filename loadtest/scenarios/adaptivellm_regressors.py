"""AdaptiveLLM, tables 5 and 6: eight regressors with polynomial features of five degrees, beside the service's.

Uses our own timings: every iteration while the measured model serves requests of three data sets, first all at once,
then at 0.7 of that rate, so that batch sizes vary. A random fifth is predicted from the others.
"""

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, on_demand, unfitted_cost
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.preemption_judge import TimedLedger, Timing
from loadtest.offline.replay import replay
from loadtest.scenarios.adaptivellm_table5 import SHARE, at_rate
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.stage import LOADED_TOKENS, Stage

NAME = "adaptivellm_regressors"
WORKLOADS = ("chatbot", "alpaca", "summary")
LONGEST_OUTPUT = 64


def run(stage: Stage) -> Figure:
    """The figure."""
    from loadtest.baselines.regressors import DEGREES, REGRESSORS, Split  # scikit-learn takes a second

    num_tokens = min(LOADED_TOKENS, stage.form.max_num_seqs * stage.form.max_model_len) // 2
    pool = stage.model_pool(num_tokens)
    split = Split.of({name: _timings(stage, pool, name) for name in WORKLOADS})
    errors = {
        name: {degree: split.regressor_errors(make, degree) for degree in DEGREES} for name, make in REGRESSORS.items()
    }
    means = {
        name: {degree: split.mean_error(one) for degree, one in by_degree.items()} for name, by_degree in errors.items()
    }
    best = {name: min(by_degree, key=by_degree.__getitem__) for name, by_degree in means.items()}
    by_service = split.predictor_errors(pool.padded_size)
    rows = [[name, best[name], *(errors[name][best[name]][each] for each in WORKLOADS)] for name in REGRESSORS]
    return Figure(
        NAME,
        "AdaptiveLLM tables 5 and 6: regressors of an iteration's time",
        "the offline engine",
        [
            Table(
                "Mean absolute error in % of the measured time, by degree",
                ["regressor", *map(str, DEGREES)],
                [[name, *by_degree.values()] for name, by_degree in means.items()],
            ),
            Table(
                "By workload, each at its best degree",
                ["predictor", "degree", *WORKLOADS],
                [*rows, ["the service's", None, *by_service.values()]],
            ),
        ],
        notes=[
            f"{len(split.fitted)} iterations to fit, {sum(map(len, split.held_out.values()))} to predict",
            "the regressors know tokens and sequences, as in the paper; the service's predictor also the context",
            f"the service's predictor over all: {split.mean_error(by_service):.2g} %; the paper's best, a random forest"
            " of degree 2: 1.76 % (OPT), 1.30 % (Llama)",
        ],
    )


def _timings(stage: Stage, pool: KvPool, workload: str) -> list[Timing]:
    """Timings of all iterations that serve the workload's requests."""
    longest = stage.form.max_model_len - LONGEST_OUTPUT
    num = 100 if workload == "summary" else 400
    num_requests = stage.num_requests(num) if stage.form.models_policies else num
    at_once = stage.cut_trace(workload, num_requests, longest, LONGEST_OUTPUT)
    ledger = TimedLedger(unfitted_cost(pool))
    policies = EnginePolicies(on_demand(pool), ledger=ledger)
    outcome = replay(EngineSystem(workload, pool, policies), at_once)
    seconds = sum(iteration.seconds for iteration in outcome.iterations)
    replay(EngineSystem(workload, pool, policies), at_rate(at_once, SHARE * len(at_once) / seconds))
    return ledger.timings
