"""Pretrain from raw text: `deepspeed launch/pretrain.py --deepspeed_config ds_configs/bf16.json`."""

from minimind.training.main import main

if __name__ == "__main__":
    main("pretrain")
