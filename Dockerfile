# Serves a run folder, mounted at /model:
#   docker build -t hpgmn .
#   docker run --user "$(id -u)" -p 127.0.0.1:8000:8000 -v "$PWD/runs/bank:/model" -e HPGMN_TOKEN hpgmn
FROM python:3.11-slim-bookworm

# The index of CPU wheels of torch; those of PyPI for Linux bring several gigabytes of CUDA.
# Empty: pip's own index.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# LightGBM links to libgomp. Debian removes old versions, so none is pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 hpgmn

WORKDIR /app
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src src
# Versions are pinned in constraints.txt.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --no-deps -c constraints.txt \
        ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && pip install --no-cache-dir -c constraints.txt '.[serve]'

# The root file system may be read-only: caches go to /tmp.
ENV XDG_CACHE_HOME=/tmp/cache MPLCONFIGDIR=/tmp/matplotlib NUMBA_CACHE_DIR=/tmp/numba
USER 10001
VOLUME /model
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
CMD ["hpgmn", "serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
