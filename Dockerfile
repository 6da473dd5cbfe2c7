# docker build --tag mtlkit .                                              on CPUs
# docker build --tag mtlkit --build-arg BASE=nvidia/cuda:12.6.3-runtime-ubuntu24.04 \
#     --build-arg TORCH=https://download.pytorch.org/whl/cu126 .           on GPUs
ARG BASE=python:3.12-slim
FROM ${BASE}
# for images without Python
RUN command -v python3 >/dev/null && python3 -m venv --help >/dev/null 2>&1 || \
    (apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*)
RUN python3 -m venv /opt/mtlkit
ENV PATH=/opt/mtlkit/bin:$PATH
# PyTorch first, from where its builds for this device are: PyPI's come with gigabytes for GPUs
ARG TORCH=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url ${TORCH} torch torchvision
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY mtlkit mtlkit
RUN pip install --no-cache-dir '.[bench]' && mtlkit doctor
WORKDIR /work
ENTRYPOINT ["mtlkit"]
CMD ["--help"]
