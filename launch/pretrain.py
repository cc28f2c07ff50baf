"""Pretrain from raw text: `deepspeed launch/pretrain.py --deepspeed_config ds_configs/bf16.json`."""

from minimind.training.process.start import start

if __name__ == "__main__":
    start("minimind.training.run.main", "pretrain")
