#!/bin/sh
# Print the version of this checkout: that of pyproject.toml, the commit, and whether files differ from it.
set -eu
cd "$(dirname "$0")/../.."
number=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
commit=$(git describe --always --abbrev=7 --match 'no tag' --dirty=.dirty)
echo "$number+g$commit"
