#!/bin/sh
# Make the root file system of the image without a container engine, as root on Debian or Ubuntu:
#
#   sh infra/image/rootfs.sh DIRECTORY [cuda]
#
# debootstrap stands in for the base image; everything else comes from install.sh, as in the image.
# `sh infra/image/enter.sh DIRECTORY DATA COMMAND...` runs a command in it.
set -eu
if [ $# -lt 1 ]; then
  echo "error: no directory given; run sh $0 DIRECTORY [cuda]" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
for tool in debootstrap chroot; do
  command -v "$tool" >/dev/null || { echo "error: $tool is not installed; apt-get install debootstrap" >&2; exit 2; }
done
root=$1
build=$root.build
trap 'rm -rf "$build"' EXIT

in_root() { # ROOT COMMAND...
  where=$1
  shift
  # The machine's names and certificates: behind a proxy the packages come with its own.
  cp -L /etc/resolv.conf "$where/etc/resolv.conf"
  if [ -e "$where/etc/ssl/certs/ca-certificates.crt" ]; then
    cp -L /etc/ssl/certs/ca-certificates.crt "$where/etc/ssl/certs/ca-certificates.crt"
  fi
  chroot "$where" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root VERSION="${VERSION:-}" \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" "$@"
}

[ -d "$root/usr" ] || debootstrap --variant=minbase bookworm "$root" >/dev/null
cp "$here/install.sh" "$root/tmp/install.sh"
in_root "$root" sh /tmp/install.sh system
rm -rf "$build"
cp -a "$root" "$build"
in_root "$build" sh /tmp/install.sh tools
mkdir -p "$build/src"
for name in pyproject.toml README.md geo models pipeline flows infra; do
  cp -R "$top/$name" "$build/src/$name"
done
in_root "$build" sh /tmp/install.sh build /src ${2:+"$2"}
rm -rf "$root/opt/disagg" "$root/tmp/install.sh"
mv "$build/opt/disagg" "$root/opt/disagg"
mkdir -p "$root/data"
echo "$root holds the image's root file system"
