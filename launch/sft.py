"""Fine-tune on conversations: `deepspeed launch/sft.py --deepspeed_config ds_configs/sft_bf16.json --model RUN`."""

from minimind.training.main import main

if __name__ == "__main__":
    main("sft")
