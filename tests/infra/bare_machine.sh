#!/bin/sh
# A bare machine in a directory: what debootstrap makes, and a user, `engineer`, with a clone of this repository.
#
#   sh tests/infra/bare_machine.sh make ROOT        # as root, once
#   sh tests/infra/bare_machine.sh type ROOT USER   # commands are read from standard input
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
root=${2:?"error: no directory given; the head of $0 explains it"}
home=/home/engineer
case "$1" in
make)
  debootstrap --variant=minbase bookworm "$root"
  mkdir -p "$root/etc/ssl/certs"
  chroot "$root" useradd --create-home --shell /bin/bash engineer
  git clone --quiet --bare "$top" "$root/srv/disagg.git"
  git clone --quiet "$root/srv/disagg.git" "$root$home/disagg"
  git -C "$root$home/disagg" remote set-url origin /srv/disagg.git
  chroot "$root" chown -R engineer:engineer "$home/disagg" /srv/disagg.git
  ;;
type)
  user=${3:?"error: no user given; the head of $0 explains it"}
  # The names, and the certificates of a proxy where there is one: those of this machine, also where
  # a package has put its own there.
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  if [ "$user" = root ]; then directory=/root; else directory=$home/disagg; fi
  # shellcheck disable=SC2016  # the inner shell expands them
  exec unshare --mount --pid --ipc --fork --kill-child sh -euc '
    mount --make-rprivate /
    mount -t proc proc "$1/proc"
    mount --bind /dev "$1/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
    # No variable of this machine but the address of its proxy.
    exec chroot "$1" /usr/bin/env -i -C "$3" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 HOME="${3%/disagg}" \
      PIP_CERT=/etc/ssl/certs/ca-certificates.crt http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" \
      setpriv --reuid "$2" --regid "$2" --clear-groups bash -eux -o pipefail
  ' type "$root" "$user" "$directory"
  ;;
*)
  echo "error: say make or type; the head of $0 explains it" >&2
  exit 2
  ;;
esac
