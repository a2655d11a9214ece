#!/bin/sh
# Install what the image of disagg holds, into the system that this runs in (Debian 12).
#
#   sh install.sh system             what programs of the image need from Debian
#   sh install.sh tools              what the installation needs besides, in a stage of its own
#   sh install.sh build SRC [cuda]   /opt/disagg: the packages of SRC/infra/image/requirements*.txt,
#                                    disagg from SRC, lists of components and licences
#
# infra/Dockerfile and infra/image/rootfs.sh both call it, so that the tests run in what the image holds.
# VERSION in the environment is the version that `disagg --version` prints and run.json records.
set -eu
prefix=/opt/disagg

debian() {
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -q --yes --no-install-recommends "$@"
  rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
}

case "${1:-}" in
system)
  # GDAL inside rasterio's wheel needs the system's expat.
  debian ca-certificates libexpat1 python3
  ;;
tools)
  debian python3-venv
  ;;
build)
  src=${2:?"error: no source given; run sh $0 build SRC [cuda]"}
  list=requirements${3:+-$3}.txt
  python3 -m venv "$prefix"
  pip="$prefix/bin/python -m pip --disable-pip-version-check --no-cache-dir"
  $pip install -q --no-deps --only-binary :all: --require-hashes -r "$src/infra/image/$list"
  # A copy: the build writes beside its sources.
  work=$(mktemp -d)
  for name in pyproject.toml README.md geo models pipeline flows; do cp -R "$src/$name" "$work"; done
  if [ -n "${VERSION:-}" ]; then
    sed -i "s/^version = .*/version = \"$VERSION\"/" "$work/pyproject.toml"
  fi
  $pip install -q --no-deps --no-build-isolation "$work"
  rm -rf "$work"
  $pip check
  mkdir -p "$prefix/share"
  "$prefix/bin/python" "$src/infra/image/components.py" "$prefix/share"
  cp "$src/infra/image/entry.sh" "$prefix/bin/entry"
  cp "$src/infra/image/map.sh" "$prefix/bin/disagg-map"
  chmod 755 "$prefix/bin/entry" "$prefix/bin/disagg-map"
  # Nothing is installed in a running image, and nobody runs the tests of its packages there.
  $pip uninstall -q --yes pip setuptools
  site=$("$prefix/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  for package in matplotlib numba numpy pandas pyarrow scipy sklearn; do
    find "$site/$package" -type d -name tests -prune -exec rm -rf {} +
  done
  rm -rf "$site/pyarrow/include" "$site/numpy/_core/include"
  # The root file system is read-only, so that compiled modules must be there already.
  "$prefix/bin/python" -m compileall -q -j 0 "$site" || true
  ;;
*)
  echo "error: say system, tools or build; the head of $0 explains them" >&2
  exit 2
  ;;
esac
