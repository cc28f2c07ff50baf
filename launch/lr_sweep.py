"""Find the learning rate: `deepspeed launch/lr_sweep.py --deepspeed_config F --learning-rates 3e-4,1e-3,3e-3`."""

from minimind.training.process.start import start

if __name__ == "__main__":
    start("minimind.training.sweep.sweep")
