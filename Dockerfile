# The machine that the build is made for, from nothing.
#   docker build -t torch-remote . && docker run --rm torch-remote
FROM debian:12

RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /torch-remote
COPY . .

# What the build needs of Debian and PyPI: a layer of its own.
RUN ./bazelw version

CMD ["./bazelw", "test", "//..."]
