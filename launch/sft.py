"""Fine-tune on conversations: `deepspeed launch/sft.py --deepspeed_config ds_configs/sft_bf16.json --model RUN`."""

from minimind.training.process.start import start

if __name__ == "__main__":
    start("minimind.training.run.main", "sft")
