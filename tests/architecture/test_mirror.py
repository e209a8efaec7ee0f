"""Tests mirror code: `service/x/y.py` has `tests/x/test_y.py`, `kernels/y.py` has `tests/kernels/test_y.py`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]

WITHOUT_A_TWIN = {
    "service/config.py": "values only",
    "service/kvcache/borrower.py": "a Protocol only",
    "service/kvcache/kv_events.py": "a Protocol and its null object; tests/kv_events/test_publisher.py",
    "service/kvcache/prefix_entries.py": "tests/kvcache/test_prefix_cache.py",
    "service/doctor/finding.py": "values only",
    "service/ray_serve/application.py": "tests/deploy/test_ray_serve.py, where Ray is installed",
    "service/ray_serve/other_hosts.py": "tests/deploy/test_ray_serve.py, where Ray is installed",
    "service/ray_serve/prefix_router.py": "tests/deploy/test_ray_serve.py, where Ray is installed",
    "service/distributed/drawn_messages.py": "tests/distributed/test_stages.py",
    "service/distributed/late_launch.py": "tests/distributed/test_stages.py",
    "service/distributed/mask_messages.py": "tests/distributed/test_told_executor.py",
    "service/distributed/plan_follower.py": "tests/distributed/test_told_executor.py",
    "service/distributed/rank_model.py": "tests/e2e/test_tensor_parallel.py",
    "service/distributed/rank_life.py": "tests/distributed/test_rank_processes.py",
    "service/distributed/rank_task.py": "values only",
    "service/distributed/worker.py": "tests/distributed/test_rank_processes.py runs it",
    "service/hosts/member.py": "tests/hosts/test_head.py, by both sides",
    "service/hosts/one_host.py": "a Protocol and its null object; tests/composition/test_ranks.py",
    "service/composition/other_host.py": "tests/e2e/test_several_hosts.py",
    "service/settings/host_settings.py": "tests/settings/test_settings.py, by the whole",
    "service/layers/group_stage.py": "tests/equivalence/test_pipeline_parallel.py",
    "service/models/rank_division.py": "tests/models/test_registry.py",
    "service/settings/adapter_settings.py": "tests/settings/test_settings.py, by the whole",
    "service/settings/model_settings.py": "tests/settings/test_settings.py, by the whole",
    "service/settings/operation_settings.py": "tests/settings/test_settings.py, by the whole",
    "service/settings/scheduler_settings.py": "tests/settings/test_settings.py, by the whole",
    "service/settings/quickstart.py": "names only",
    "service/errors.py": "values only; tests/api/test_error_responses.py reads every class",
    "service/__main__.py": "tests/test_cli.py runs it",
    "service/main.py": "tests/e2e/test_serve.py starts the whole service",
    "service/engine/ports.py": "Protocols only",
    "service/engine/engine_watch.py": "tests/engine/test_engine_loop.py, test_ailment.py",
    "service/runner/step_inputs.py": "tests/runner/test_graph_inputs.py",
    "service/runner/pinned_memory.py": "tests/runner/test_staging.py",
    "service/runner/step_ways.py": "a Protocol only",
    "service/runner/replays.py": "tests/runner/test_cuda_graphs.py, test_recorded_steps.py",
    "service/runner/recorded_decodes.py": "tests/runner/test_recorded_steps.py",
    "service/runner/captured_sizes.py": "tests/runner/test_cuda_graphs.py",
    "service/runner/captured_step.py": "tests/runner/test_cuda_graphs.py",
    "service/runner/lane_decodes.py": "tests/runner/test_cuda_graphs.py, test_stage_step.py",
    "service/runner/graph_step.py": "tests/runner/test_cuda_graphs.py",
    "service/runner/graph_ways.py": "tests/runner/test_cuda_graphs.py",
    "service/engine/coalescing.py": "tests/engine/test_streams.py",
    "service/engine/idle_turns.py": "tests/engine/test_engine_loop.py",
    "service/engine/commands.py": "tests/engine/test_engine_loop.py",
    "service/engine/inbox.py": "tests/engine/test_engine_loop.py",
    "service/engine/failed_iterations.py": "tests/engine/test_engine.py, test_ailment.py",
    "service/engine/engine_snapshots.py": "tests/engine/test_engine.py",
    "service/engine/sequence_results.py": "tests/engine/test_result_applier.py",
    "service/scheduler/cached_tokens.py": "tests/scheduler/test_iteration_scheduler.py",
    "service/scheduler/group_end.py": "tests/engine/test_live_requests.py",
    "service/scheduler/training_plans.py": "tests/scheduler/test_training_turns.py",
    "service/scheduler/lane_scheduling.py": "tests/scheduler/test_iteration_scheduler.py",
    "service/sampling/sampling_extras.py": "tests/sampling/test_sampler.py",
    "service/http/direct_write.py": "tests/http/test_request_cycle.py, test_protocol.py",
    "service/http/http_1_0.py": "tests/http/test_request_cycle.py, test_protocol.py",
    "service/api/context.py": "values only",
    "service/api/http_exchange.py": "values; tests/api/test_request_log.py has what they are for",
    "service/core/events.py": "values only",
    "service/core/block_moves.py": "tests/core/test_iteration.py",
    "service/text/partial_call.py": "tests/text/test_json_call.py, tests/text/test_pythonic_call.py",
    "service/text/byte_detokenizer.py": "tests/text/test_detokenizer.py",
    "service/text/window_detokenizer.py": "tests/text/test_detokenizer.py",
    "service/core/log_fields.py": "a name only",
    "service/core/failed_launch.py": "tests/engine/test_engine.py, tests/distributed/test_told_executor.py",
    "service/api/answers/answer_form.py": "a Protocol only",
    "service/api/answers/frame_source.py": "a Protocol only",
    "service/api/answers/sse_frames.py": "tests/api/answers/test_sse.py",
    "service/api/answers/piece_frames.py": "tests/api/answers/test_frame_stream.py",
    "service/api/calls/chat_batch_call.py": "tests/api/endpoints/test_chat_batch.py",
    "service/api/calls/chat_call.py": "tests/api/endpoints/test_chat_completions.py",
    "service/api/calls/response_history.py": "tests/api/endpoints/test_stored_responses.py",
    "service/api/calls/compaction.py": "tests/api/endpoints/test_compaction.py",
    "service/protocol/compaction.py": "tests/api/endpoints/test_compaction.py",
    "service/api/answers/background.py": "tests/api/endpoints/test_stored_responses.py",
    "service/api/calls/embedding_call.py": "tests/api/endpoints/test_embeddings.py",
    "service/api/answers/embedding_answer.py": "tests/api/endpoints/test_embeddings.py",
    "service/protocol/embeddings.py": "tests/api/endpoints/test_embeddings.py",
    "service/api/calls/completion_call.py": "tests/api/endpoints/test_completions.py",
    "service/api/calls/file_form.py": "tests/api/endpoints/test_files.py",
    "service/api/answers/file_content.py": "tests/api/endpoints/test_files.py",
    "service/protocol/files.py": "tests/api/endpoints/test_files.py",
    "service/api/batch_calls.py": "tests/api/endpoints/test_batches.py",
    "service/protocol/batches.py": "tests/api/endpoints/test_batches.py",
    "service/batch_jobs/result_files.py": "tests/batch_jobs/test_batch_run.py",
    "service/chat_client/own_server.py": "tests/chat_client/test_batch_command.py",
    "service/storage/file_table.py": "tests/storage/test_file_store.py",
    "service/storage/listing.py": "tests/storage/test_file_store.py",
    "service/storage/storage.py": "tests/storage/test_file_store.py",
    "service/storage/upload.py": "tests/storage/test_file_store.py",
    "service/protocol/fine_tuning.py": "tests/api/endpoints/test_fine_tuning.py",
    "service/api/calls/fine_tuning_call.py": "tests/api/endpoints/test_fine_tuning.py",
    "service/api/answers/fine_tuning_objects.py": "tests/api/endpoints/test_fine_tuning.py",
    "service/finetune/fine_tuning.py": "values only",
    "service/finetune/served_base.py": "values only",
    "service/layers/activation.py": "names only",
    "service/layers/experts_config.py": "values only",
    "service/layers/rope_config.py": "values only; tests/layers/test_rotary.py",
    "service/core/grammar.py": "Protocols and values only",
    "service/core/sampling_params.py": "values only",
    "service/core/token_logprobs.py": "values only",
    "service/core/training.py": "Protocols and values only",
    "service/finetune/trained_block.py": "tests/finetune/test_trained_model.py",
    "service/models/transformers_backend/experts.py": "tests/equivalence/test_families.py",
    "service/layers/add_norm_fusion.py": "values only; tests/runner/choices/test_add_norm_rows.py",
    "service/scheduler/scheduling_policy.py": "a Protocol only",
    "service/scheduler/decision_tally.py": "values only",
    "service/scheduler/scheduler_policies.py": "values only",
    "loadtest/bench/dummy_training.py": "tests/loadtest/bench/test_training_steps.py",
    "loadtest/capacity/__main__.py": "tests/test_cli.py runs it",
    "loadtest/bench/__main__.py": "tests/loadtest/bench/test_cli.py runs it",
    "loadtest/parity/__main__.py": "tests/test_cli.py runs it",
    "loadtest/parity/headrace_side.py": "tests/loadtest/parity/test_command.py runs it",
    "loadtest/__main__.py": "tests/loadtest/test_cli.py runs it",
    "loadtest/facts/__main__.py": "a measurement of half an hour; its parts have tests",
    "loadtest/bench/all_reduce.py": "a benchmark",
    "loadtest/host_benchmark.py": "a benchmark",
    "loadtest/host_server.py": "what the benchmark measures",
    "loadtest/client_process.py": "tests/loadtest/test_runner.py runs it, in processes of its own",
    "loadtest/frame_cost.py": "a benchmark",
    "loadtest/scrape_cost.py": "a measurement",
    "loadtest/dashboard_run.py": "a run of minutes; tests/loadtest/test_dashboard_picture.py: what it draws",
    "loadtest/bench/ordered_attention.py": "a benchmark",
    "loadtest/bench/ordered_products.py": "a benchmark",
    "loadtest/bench/products.py": "a benchmark",
    "loadtest/bench/perplexity.py": "a measurement",
    "loadtest/speculation_gain.py": "a benchmark",
    "loadtest/stream_cost.py": "a benchmark",
    "loadtest/stub_server.py": "the other side in most of tests/loadtest",
    "loadtest/throughput_benchmark.py": "a benchmark",
    "loadtest/soak/__main__.py": "tests/e2e/test_soak.py runs it",
    "loadtest/soak/soak.py": "tests/e2e/test_soak.py runs it",
    "loadtest/soak/clients.py": "tests/e2e/test_soak.py runs it; tests/loadtest/test_answer_rules.py: what is a fault",
    "loadtest/soak/hostile_calls.py": "tests/e2e/test_soak.py sends them",
    "loadtest/soak/raw_connection.py": "tests/e2e/test_soak.py and test_raw_fuzz.py speak through it",
    "loadtest/soak/server_view.py": "tests/e2e/test_soak.py looks through it",
    "loadtest/fuzz/__main__.py": "tests/e2e/test_raw_fuzz.py runs it",
    "loadtest/fuzz/attacks.py": "tests/loadtest/fuzz/test_cases.py draws them",
    "loadtest/fuzz/fuzz.py": "tests/e2e/test_raw_fuzz.py runs it",
    "loadtest/baselines/iteration_log.py": "keeps values; tests/loadtest/baselines/test_engine_system.py reads them",
    "loadtest/offline/serving_system.py": "values and a Protocol; tests/loadtest/offline/test_replay.py",
    "loadtest/baselines/kv_pool.py": "values only",
    **{
        f"loadtest/scenarios/{file.name}": "tests/loadtest/scenarios/test_every_scenario.py draws it"
        for file in sorted((ROOT / "loadtest" / "scenarios").glob("*.py"))
        if file.name.startswith(("orca_", "pagedattention_", "fineinfer_", "adaptivellm_", "__main__"))
        and file.stem  # these have tests
        not in {"pagedattention_fig18", "pagedattention_fig19", "adaptivellm_fig8", "fineinfer_overhead"}
    },
}


def has_code(file: Path) -> bool:
    return any(not isinstance(node, ast.Expr) for node in ast.parse(file.read_text()).body)


def twin(file: Path) -> Path:
    relative = file.relative_to(ROOT)
    parts = relative.parts[1:] if relative.parts[0] == "service" else relative.parts
    return ROOT.joinpath("tests", *parts[:-1], f"test_{parts[-1]}")


def test_every_file_has_its_test():
    files = [f for top in ("service", "kernels", "loadtest") for f in sorted((ROOT / top).rglob("*.py"))]
    missing = [
        str(f.relative_to(ROOT)) for f in files if f.name != "__init__.py" and has_code(f) and not twin(f).exists()
    ]
    assert sorted(set(missing) - set(WITHOUT_A_TWIN)) == []
    assert sorted(set(WITHOUT_A_TWIN) - set(missing)) == [], "these have a test now, or are gone"


ABOUT_THE_WHOLE = {"architecture", "clients", "complexity", "deploy", "e2e", "equivalence", "faults"}
"""Folders whose tests have no single file as their subject."""

WITHOUT_A_SUBJECT = {
    "tests/api/endpoints/test_playground_in_a_browser.py": "service/api/playground, which is JavaScript",
    "tests/api/endpoints/test_playground_markdown_in_a_browser.py": "service/api/playground, which is JavaScript",
    "tests/distributed/test_stages.py": "stages of a toy model behind one engine, by the oracle",
    "tests/engine/test_device_time.py": "when the device worked, through engine and predictor",
    "tests/engine/test_pooled_prompts.py": "requests for embeddings, through engine and scheduler",
    "tests/engine/test_random_histories.py": "the engine under dense random traffic and settings of every kind",
    "tests/engine/test_dense_histories.py": "the tests of engine, scheduler and kvcache",
    "tests/distributed/test_seeded_message_faults.py": "what ranks are told of plans",
    "tests/engine/test_seeded_adapter_faults.py": "the tests of engine, scheduler and kvcache",
    "tests/engine/test_seeded_batch_faults.py": "the tests of engine, scheduler and kvcache",
    "tests/engine/test_seeded_chunk_faults.py": "the tests of engine, scheduler and kvcache",
    "tests/engine/test_seeded_draft_faults.py": "speculation, through engine and scheduler",
    "tests/engine/test_seeded_faults.py": "the tests of engine, scheduler and kvcache",
    "tests/engine/test_seeded_training_faults.py": "the tests of engine, scheduler and kvcache",
    "tests/engine/test_seeded_window_faults.py": "the tests of engine, scheduler and kvcache",
    "tests/runner/test_seeded_step_faults.py": "the tests of the runner's ways of computing a step",
    "tests/engine/test_small_scope.py": "every short history of three requests",
    "tests/kernels/test_sm90_compile.py": "what the compiler makes of the larger kernels",
    "tests/test_forked_workers.py": "the processes that run the tests",
    "tests/test_made_once.py": "what tests of several files share",
    "tests/test_examples.py": "how many examples the tests look at",
    "tests/loadtest/scenarios/test_every_scenario.py": "all of loadtest/scenarios",
}


def test_every_test_has_its_file():
    subjects = {twin(f) for top in ("service", "kernels", "loadtest") for f in (ROOT / top).rglob("*.py")}
    tests = [f for f in (ROOT / "tests").rglob("test_*.py") if f.relative_to(ROOT).parts[1] not in ABOUT_THE_WHOLE]
    strays = {str(f.relative_to(ROOT)) for f in tests if f not in subjects}
    assert sorted(strays - set(WITHOUT_A_SUBJECT)) == []
    assert sorted(set(WITHOUT_A_SUBJECT) - strays) == [], "these have a subject now, or are gone"


def test_every_test_folder_is_a_package():
    folders = [f for f in (ROOT / "tests").rglob("*") if f.is_dir() and any(f.glob("*.py"))]
    assert [str(f) for f in folders if not (f / "__init__.py").exists()] == []
