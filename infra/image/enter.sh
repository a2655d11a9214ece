#!/bin/sh
# Run a command as the image would: nobody, a read-only root, one writable volume, no network.
#
#   sh infra/image/enter.sh ROOT DATA COMMAND...      # as root; ROOT is of rootfs.sh, DATA is /data in it
#   NETWORK=host sh infra/image/enter.sh ...          # with the network of this machine
#
# Variables named DISAGG_*, AWS_* and PREFECT_* are passed on, as `docker run --env` would.
set -eu
if [ $# -lt 3 ]; then
  echo "error: say what to run; the head of $0 has examples" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
if [ "${NETWORK:-none}" = none ]; then alone=--net; else alone=; fi
export ENTER_ROOT="$1" ENTER_DATA="$2" ENTER_FILE="$here/../Dockerfile"
shift 2
# shellcheck disable=SC2016,SC2086  # the inner shell expands them; no option, no word
exec unshare --mount --pid --fork --kill-child --ipc $alone sh -eu -c '
  mount --make-rprivate /
  root=$ENTER_ROOT
  mount --bind "$root" "$root"
  mount --bind "$ENTER_DATA" "$root/data"
  mount -t proc proc "$root/proc"
  mount -t tmpfs -o size=1m,mode=755 tmpfs "$root/dev"
  for name in null zero random urandom; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
  done
  ln -s /proc/self/fd "$root/dev/fd"
  mkdir "$root/dev/shm"
  mount -t tmpfs -o size=64m,mode=1777 tmpfs "$root/dev/shm"
  # One level: /data, /proc and /dev below it stay as they are.
  mount -o remount,bind,ro "$root"
  if command -v ip >/dev/null; then ip link set lo up; fi
  set -- $(sed -n "s/^ENV //p" "$ENTER_FILE") -- "$@"
  given=$(env | sed -n "/^\(DISAGG\|AWS\|PREFECT\)_[A-Z_]*=/p" | tr "\n" " ")
  for each in $given; do set -- "$each" "$@"; done
  all=
  while [ "$1" != -- ]; do all="$all $1"; shift; done
  shift
  cd /
  exec chroot --userspec=65534:65534 --groups= "$root" /usr/bin/env -i -C /srv $all /opt/disagg/bin/entry "$@"
' enter "$@"
