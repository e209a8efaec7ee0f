# The service in a container. Two targets, `cuda` (the default) and `cpu`:
#
#   docker build -t headrace .
#   docker build -t headrace:cpu --target cpu .
#
# torch's wheels carry CUDA and triton's an assembler, so a plain Python image is base enough. The model that comes
# with Headrace is inside; the weights of all others are mounted.
#
# By digest, so that the same files are built on: 3.12.14 on Debian 13. A newer one: `docker buildx imagetools inspect
# python:3.12-slim` tells its digest.
ARG BASE=python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

FROM ${BASE} AS build
WORKDIR /build
RUN python3 -m venv /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# The dependencies first, and alone: layers of gigabytes, which a change of the code leaves as they are. Exact versions
# and hashes: `make lock` writes them. Without Triton, which is for GPUs and takes 1 GB.
FROM build AS cpu-dependencies
# Of torch without CUDA. Empty: from where everything else comes.
ARG CPU_TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY deploy/image/cpu-torch.txt deploy/image/cpu.txt ./
RUN pip install --no-deps --require-hashes -r cpu-torch.txt ${CPU_TORCH_INDEX:+--index-url ${CPU_TORCH_INDEX}} \
    && pip install --no-deps --require-hashes -r cpu.txt

FROM build AS cuda-dependencies
COPY deploy/image/cuda.txt ./
RUN pip install --no-deps --require-hashes -r cuda.txt

# What builds the wheel is no part of the image.
FROM build AS wheel
COPY deploy/image/build.txt ./
COPY pyproject.toml README.md LICENSE ./
COPY service service
COPY kernels kernels
COPY loadtest loadtest
RUN pip install --no-deps --require-hashes -r build.txt \
    && pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .

# What both targets are when they run.
FROM ${BASE} AS run
RUN useradd --uid 1000 --create-home headrace \
    && mkdir -p /models /data /cache/triton /cache/huggingface \
    && chown -R headrace /cache /data
COPY deploy/healthcheck.py /opt/healthcheck.py
# Another port: by HEADRACE_PORT, which the health check reads too.
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/cache/huggingface \
    TRITON_CACHE_DIR=/cache/triton \
    NUMBA_CACHE_DIR=/cache/triton/numba \
    HEADRACE_DATA_DIR=/data \
    HEADRACE_HOST=0.0.0.0 \
    HEADRACE_PORT=8000
VOLUME ["/cache/triton", "/cache/huggingface", "/data"]
WORKDIR /models
EXPOSE 8000
STOPSIGNAL SIGTERM
# Unhealthy for half a minute: an iteration is stuck, or the event loop. Loading a large model may take minutes.
HEALTHCHECK --start-period=15m --interval=10s --timeout=5s --retries=3 \
    CMD ["python", "/opt/healthcheck.py"]
# What follows the image's name are the arguments of `headrace serve`: none serves the model that comes with Headrace.
ENTRYPOINT ["headrace", "serve"]

FROM run AS cpu
COPY --from=cpu-dependencies /opt/headrace /opt/headrace
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels pip install --no-cache-dir --no-index --no-deps /wheels/*.whl
USER 1000

FROM run AS cuda
# Triton compiles a kernel's launcher, in C, when the kernel is first used. Which compiler does not matter.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=cuda-dependencies /opt/headrace /opt/headrace
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels pip install --no-cache-dir --no-index --no-deps /wheels/*.whl
USER 1000
