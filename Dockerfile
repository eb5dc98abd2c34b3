# The image of holdfast: every command, without root.
#
#   docker build -t holdfast .                                                       for CPUs
#   docker build -t holdfast --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#   docker build -t holdfast --build-arg EXTRAS=data,mlflow .                        more extras
#
# The wheels of torch for CUDA bring its libraries; only the driver comes from the host (--gpus all).
# docs/containers.md says how this file is tested.

FROM debian:bookworm-20250520-slim AS python
# Debian's archive keeps one version of a package, so pinning one would break later builds.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM python AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=data
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python3 -m venv /opt/holdfast \
    && /opt/holdfast/bin/pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" \
    --constraint constraints.txt ".[$EXTRAS]"

FROM python
RUN groupadd --gid 10001 holdfast \
    && useradd --uid 10001 --gid 10001 --create-home holdfast \
    && mkdir --parents /work/runs /work/token /work/metrics \
    && chown --recursive 10001:10001 /work
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:/usr/local/bin:/usr/bin:/bin \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /work
EXPOSE 50051 50052
ENTRYPOINT ["holdfast"]
CMD ["--help"]
