#!/bin/sh
# Build the image from a commit, on a base image that its digest names:
#
#   BASE=debian:bookworm-slim@sha256:... sh infra/image/build.sh NAME[:TAG] [cuda]
#
# The digest of the base image today, to be written down and reviewed with the next change:
#
#   docker buildx imagetools inspect debian:bookworm-slim --format '{{.Manifest.Digest}}'
set -eu
if [ $# -lt 1 ]; then
  echo "error: no name given; run BASE=... sh $0 NAME[:TAG] [cuda]" >&2
  exit 2
fi
case "${BASE:-}" in
*@sha256:????????????????????????????????????????????????????????????????) ;;
*)
  echo "error: BASE: '${BASE:-}' names no digest; give BASE=debian:bookworm-slim@sha256:..., from" >&2
  echo "  docker buildx imagetools inspect debian:bookworm-slim --format '{{.Manifest.Digest}}'" >&2
  exit 2
  ;;
esac
cd "$(dirname "$0")/../.."
# The wheel's version: 0.1.0+g1a2b3c4, and .dirty where files differ from the commit.
version=$(sh infra/image/version.sh)
exec docker build -f infra/Dockerfile -t "$1" --build-arg BASE="$BASE" --build-arg VARIANT="${2:-}" \
  --build-arg VERSION="$version" --build-arg REVISION="$(git rev-parse HEAD)" .
