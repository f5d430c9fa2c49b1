FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /weir ./cmd/weir && /weir version
RUN mkdir -p /folders/archive /folders/lexicons /folders/tmp

# The binary, the certificates for TLS and empty folders, and nothing else: no shell, and a numeric user. A volume takes
# its owner from the folder at its place.
FROM scratch
COPY --from=build --chown=65532:65532 /folders/ /
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /weir /usr/local/bin/weir
USER 65532:65532
EXPOSE 8080
# Checks the operators' listener on the container's loopback.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["/usr/local/bin/weir", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/weir"]
CMD ["serve"]
