# llama-router on top of llama.cpp's own server image, which brings llama-server and, where its tag says so, CUDA.
#
#   docker build -t llama-router .                                       NVIDIA GPUs
#   docker build -t llama-router --build-arg LLAMA_TAG=server .          CPU only
#   docker build -t llama-router --build-arg LLAMA_TAG=server-cuda-b11549 .   a build of your choice
ARG LLAMA_TAG=server-cuda

FROM ghcr.io/ggml-org/llama.cpp:${LLAMA_TAG} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY eventlog eventlog
COPY router router
COPY projections projections
COPY replay replay
COPY dashboard dashboard
RUN python3 -m venv /opt/llama-router \
    && /opt/llama-router/bin/pip install --no-cache-dir .

FROM ghcr.io/ggml-org/llama.cpp:${LLAMA_TAG}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 curl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --no-create-home --home-dir /webui --shell /usr/sbin/nologin llama-router \
    && install -d -o llama-router -g llama-router -m 0750 /webui \
    && install -d -o llama-router -g llama-router -m 0700 /run/llama-router \
    && install -d /models /configs
COPY --from=build /opt/llama-router /opt/llama-router

# /models and /configs are read, /webui is written: the event log, the dashboard's database, downloaded weights.
ENV PATH=/opt/llama-router/bin:$PATH \
    LLAMA_ROUTER_LLAMA_SERVER=/app/llama-server \
    ROUTER_CONFIG_PATH=/configs/config.json \
    LLAMA_PRESETS_PATH=/configs/presets.ini \
    ROUTER_HOST=0.0.0.0 \
    LLAMA_ROUTER_STATE_DIR=/webui \
    HISTORY_DB_PATH=/webui/history.duckdb \
    EVENT_LOG_DIR=/webui/events \
    RUN_DIR=/run/llama-router \
    XDG_CACHE_HOME=/webui/cache \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /webui
EXPOSE 11434
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:11434/health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["llama-router"]
CMD ["serve"]
