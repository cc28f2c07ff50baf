# By the Makefile's own recipe; docs/machines.md has the lines to build and to run it with.
#
#   docker build -t minimind .                              CPU
#   docker build -t minimind --build-arg TORCH_FLAGS= .     CUDA: torch's build on PyPI brings its own CUDA

FROM python:3.12-slim

# g++: DeepSpeed's offload compiles one operator at first use, torch.compile its kernels. git: a run records a revision.
RUN apt-get update && apt-get install -y --no-install-recommends g++ git make && rm -rf /var/lib/apt/lists/*

ARG TORCH_FLAGS="--index-url https://download.pytorch.org/whl/cpu"
ARG EXTRAS=data,serve,hub

WORKDIR /opt/minimind
COPY . .
RUN make setup TORCH_FLAGS="$TORCH_FLAGS" EXTRAS="$EXTRAS" PIP_FLAGS=--no-cache-dir

ENV PATH=/opt/minimind/.venv/bin:$PATH MINIMIND_CACHE=/data/cache
VOLUME /data
CMD ["minimind", "doctor"]
