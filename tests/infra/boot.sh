#!/bin/sh
# Start systemd as the first process of namespaces of its own, on a root of its own.
#   unshare --pid --fork --mount --uts --ipc --net --cgroup sh boot.sh ROOT FROM:TO...
# ROOT/etc has the units; the directories FROM here are inside, as TO.
set -eu
root=$1
shift
mount --make-rprivate /
mount --bind "$root" "$root"
for place in /usr:/usr "$@"; do
  mkdir -p "$root${place#*:}"
  mount --rbind "${place%:*}" "$root${place#*:}"
done
cd "$root"
mkdir -p proc sys dev run tmp var/log old
for link in bin sbin lib lib64; do ln -sf "usr/$link" "$link"; done
mount -t proc proc proc
mount --rbind /dev dev
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs run
mount -t cgroup2 cgroup2 sys/fs/cgroup
pivot_root . old
cd /
umount -l /old
exec env -i container=other PATH=/usr/bin:/bin /lib/systemd/systemd --system --unit=default.target \
  --log-target=console --show-status=no
