"""Which test file covers a module that has none of its own name: test file -> modules, below tests/ and minimind/.

The other modules have theirs at the mirrored path. tests/test_architecture.py holds this against the folders.
"""

from __future__ import annotations

COVERED_BY = {
    "attacks/test_bombs.py": "interop/bombs",
    "attacks/test_mutations.py": "base/strict/json_text base/strict/yaml_text",
    "attacks/test_shared_cache.py": "data/store/cache data/store/rooms",
    "base/test_command_lines.py": "training/record/advice training/run/next_commands training/run/arguments",
    "base/test_display.py": "base/findings",
    "base/test_processor.py": "base/hardware",
    "benchmarks/test_gpu.py": "base/peaks",
    "cli/test_entry.py": "base/errors cli/__main__ cli/options cli/root cli/runs",
    "commands/launcher/test_survey.py": "commands/launcher/probe",
    "commands/test_plan.py": "config/memory",
    "config/test_deepspeed.py": (
        "base/problems config/deepspeed/agreement config/deepspeed/homes "
        "config/deepspeed/lint config/deepspeed/optimizer config/deepspeed/optimizers config/deepspeed/precision "
        "config/deepspeed/refusals config/deepspeed/resolve config/deepspeed/scheduler "
        "config/deepspeed/schema config/deepspeed/source config/deepspeed/zero"
    ),
    "config/test_run.py": (
        "config/model config/places config/run/load config/run/settings config/run/sources config/run/values "
        "config/run/wording"
    ),
    "config/yaml_names/test_hugging_face.py": (
        "config/yaml_names/frameworks config/yaml_names/json_homes config/yaml_names/meaning "
        "config/yaml_names/optimizers"
    ),
    "config/yaml_names/test_translate.py": "config/yaml_names/schedules config/yaml_names/words",
    "corpus/test_corpus.py": "corpus/conversations corpus/grammar corpus/questions corpus/stories corpus/words",
    "data/test_fetch.py": "commands/streaming data/http data/read/remote",
    "data/check/test_check.py": "data/check/report data/check/statistics data/check/view",
    "data/read/test_sources.py": "data/read/json_text data/read/streams",
    "data/records/test_conversations.py": (
        "data/records/calls data/records/exchanges data/records/formats data/records/turns data/records/values"
    ),
    "data/records/test_texts.py": "data/records/rejects",
    "data/store/test_prepare.py": "data/store/files",
    "inference/serving/test_openai_client.py": "inference/serving/replies",
    "inference/serving/test_requests.py": (
        "inference/serving/errors inference/serving/fields inference/serving/messages"
    ),
    "inference/test_batching.py": "inference/slots",
    "interop/test_model_card.py": "commands/facts",
    "interop/test_families.py": "interop/huggingface_config",
    "test_packaging.py": "base/shipped",
    "text/test_chat.py": "text/template text/turn",
    "text/test_huggingface_codec.py": "text/tokenizer_json",
    "text/test_marks.py": "text/messages",
    "text/test_sandbox.py": "text/metering",
    "text/test_tokenizer.py": "text/codec text/sentencepiece_codec text/sentencepiece_training",
    "training/checkpoint/test_nearby.py": "training/process/disks",
    "training/checkpoint/test_writer.py": "training/process/ranks",
    "training/engine/test_optimizers.py": "training/engine/muon training/engine/plain_optimizers",
    "training/engine/test_schedule.py": "config/schedules",
    "training/health/test_monitor.py": "config/health training/health/rules training/health/lr_bands",
    "training/health/test_trouble.py": "config/recovery",
    "training/process/test_run_lock.py": "training/process/ending",
    "training/process/heart/test_heartbeat.py": (
        "config/heartbeat training/process/heart/living training/process/heart/pulse"
    ),
    "training/process/heart/test_listener.py": "training/process/heart/beats training/process/heart/caller",
    "training/process/heart/test_roll.py": "training/process/attention training/process/heart/loss",
    "training/process/test_world.py": "training/process/starter/variables",
    "training/process/test_signals.py": "training/process/orphans training/process/start",
    "training/process/test_watchdog.py": "config/watchdog training/process/hang",
    "training/record/test_metrics.py": "training/record/console",
    "training/run/test_main.py": "training/run/directory training/run/held_out",
    "training/run/test_rescue.py": "training/health/culprits training/run/builder",
    "training/sweep/test_sweep.py": "training/sweep/options training/sweep/report",
}
