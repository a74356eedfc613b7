# Builds the project on a fresh machine of the kind that it supports.
#   docker build -t torch-remote . && docker run --rm torch-remote
FROM debian:12

RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /torch-remote
COPY . .

# Packages of Debian and PyPI have their own layer.
RUN ./bazelw build --nobuild //...

CMD ["./bazelw", "test", "//..."]
