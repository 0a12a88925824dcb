# Two images from one file:
#
#   docker build --target cpu  -t numerate:cpu  .
#   docker build --target cuda -t numerate:cuda .
#
# CPU_INDEX and CUDA_INDEX name a wheel index of torch. What they should be for a machine and a driver is told on
# https://pytorch.org/get-started ; without them torch comes from wherever pip looks anyway, which on Linux x86-64 is
# usually a CUDA build (it also runs without a GPU, but is larger).
#
#   docker build --target cpu --build-arg CPU_INDEX=<the index named there for CPU> -t numerate:cpu .

FROM python:3.12-slim AS source
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1 MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /opt/numerate
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src

# One command installs everything, so that no other package chooses the build of torch.

FROM source AS cpu
ARG CPU_INDEX=""
RUN pip install ${CPU_INDEX:+--extra-index-url "$CPU_INDEX"} -c constraints.txt ".[tensorboard,wandb]"
ENV NUMERATE_RUNS=/runs
VOLUME /runs
WORKDIR /runs
ENTRYPOINT ["numerate"]
CMD ["--help"]

# The CUDA libraries come with the wheel of torch; the driver is the host's (--gpus all, NVIDIA Container Toolkit).
# torch.compile and flash-linear-attention build kernels with a C compiler.
FROM source AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ARG CUDA_INDEX=""
RUN pip install ${CUDA_INDEX:+--extra-index-url "$CUDA_INDEX"} -c constraints.txt ".[tensorboard,wandb]"
ENV NUMERATE_RUNS=/runs NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /runs
WORKDIR /runs
ENTRYPOINT ["numerate"]
CMD ["--help"]
