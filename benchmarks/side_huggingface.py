"""Hugging Face Trainer as a competent user would set it up: LlamaForCausalLM, the job's precision, dynamic padding,
fused AdamW.

``hf_deepspeed`` gives it a DeepSpeed JSON (the same ZeRO stage and precision as ours; the optimizer and its settings
come from TrainingArguments, so both of its forms have the same). A callback lets the parent pace it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama import documents, documents_per_step, held_out, new_llama
from benchmarks.memory_use import Peak
from benchmarks.workers import Commands, Job
from minimind.text.tokenizer import PAD_ID

IGNORE = -100


class Padder:
    """DataCollatorForLanguageModeling(mlm=False) for documents that are tokenised already: pads to the longest of the
    batch, labels -100 on padding. Counts trained tokens, as the loss does: all labels but each row's first."""

    def __init__(self) -> None:
        self.tokens: list[int] = []  # by batch, in order

    def __call__(self, features: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(feature["input_ids"]) for feature in features)
        ids = torch.full((len(features), longest), PAD_ID)
        for row, feature in zip(ids, features, strict=True):
            row[: len(feature["input_ids"])] = torch.tensor(feature["input_ids"])
        mask = ids != PAD_ID
        labels = ids.masked_fill(~mask, IGNORE)
        self.tokens.append(int((labels[:, 1:] != IGNORE).sum()))
        return {"input_ids": ids, "attention_mask": mask.long(), "labels": labels}


def serve(job: Job, commands: Commands) -> None:
    """Answer the parent until it says quit."""
    if job.side == "hf_deepspeed":
        from minimind.training.engine.engine import start_processes

        start_processes()  # on a CPU: no kernel is compiled at start
    with tempfile.TemporaryDirectory() as directory:
        texts = documents(job, job.row_length)
        padder, peak = Padder(), Peak()
        trainer = _trainer(job, directory, texts, padder, commands)
        commands.evaluate = lambda: held_out(trainer.model, job)  # never the compiled or wrapped one
        commands.extra = lambda: {"peak": peak.bytes()}
        assert trainer.is_deepspeed_enabled == (job.side == "hf_deepspeed")
        trainer.train()


def _trainer(job: Job, directory: str, texts: list[list[int]], padder: Padder, commands: Commands) -> Any:
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": ids} for ids in texts]
    arguments = TrainingArguments(
        output_dir=directory,
        per_device_train_batch_size=documents_per_step(job, texts),
        max_steps=job.total_steps,
        learning_rate=job.peak_rate,
        weight_decay=0.01,
        max_grad_norm=1.0,
        warmup_steps=-(-job.total_steps // 50),
        lr_scheduler_type="cosine",
        optim="adamw_torch_fused",
        bf16=job.precision == "bf16",
        fp16=job.precision == "fp16",
        torch_compile=job.compile,
        use_cpu=not torch.cuda.is_available(),
        deepspeed=_deepspeed(job, directory) if job.side == "hf_deepspeed" else None,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
    )
    callbacks = [_pace(padder, commands)]
    return Trainer(model=new_llama(job), args=arguments, train_dataset=rows, data_collator=padder, callbacks=callbacks)


def _deepspeed(job: Job, directory: str) -> str:
    """The job's JSON without optimizer: TrainingArguments has it; batch sizes are "auto", as Trainer wants them."""
    values = json.loads(Path(job.deepspeed_config).read_text(encoding="utf-8"))
    values.pop("optimizer", None)
    values |= {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    values |= {"gradient_clipping": "auto"}
    values["zero_optimization"] = values.get("zero_optimization", {}) | {
        "reduce_bucket_size": 30_000_000,
        "allgather_bucket_size": 30_000_000,
    }
    path = Path(directory) / "deepspeed.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return str(path)


def _pace(padder: Padder, commands: Commands) -> Any:
    from transformers import TrainerCallback

    class Pace(TrainerCallback):  # type: ignore[misc]
        """Waits for the parent before the first step and after the last one of each round."""

        left: int | None = 0
        done = 0  # steps so far: the loader is a batch ahead, so the padder's list is cut by them

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if self.left == 0 and self.done == 0:
                self.left = commands.next()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            assert self.left is not None
            self.left -= 1
            self.done += 1
            if self.left > 0:
                return
            commands.done(sum(padder.tokens[: self.done]))
            padder.tokens, self.done = padder.tokens[self.done :], 0
            self.left = commands.next()
            if self.left is None:
                control.should_training_stop = True

    return Pace()
