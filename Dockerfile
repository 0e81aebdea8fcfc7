# Coordinator, dashboard and site agent in one image; GPUs are handed in by docker-compose.gpu.yml.
FROM python:3.11-slim

RUN useradd --create-home --uid 10001 mammofed \
    && install -d -o mammofed -g mammofed /var/lib/mammofed /federation /handed-over
WORKDIR /app
COPY requirements.lock ./
RUN pip install --no-cache-dir -r requirements.lock
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

USER mammofed
ENV MAMMOFED_HOME=/var/lib/mammofed PYTHONUNBUFFERED=1
VOLUME ["/var/lib/mammofed"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8400/readyz', timeout=4)"]
ENTRYPOINT ["mammofed"]
CMD ["coordinator"]
