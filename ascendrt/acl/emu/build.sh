#!/bin/sh
# Builds the emulated Ascend libraries: build.sh OUT [FLAG...]. CXX names the
# compiler (c++). HIDE names symbols, apart by blanks, that the libraries shall
# not export, as older ones do not.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
mkdir -p "$out"
map=$out/hide.map
{
	echo '{ global: acl*; Hccl*; sluice_emu_*; local:'
	for s in ${HIDE:-}; do echo "  $s;"; done
	echo '  *; };'
} >"$map"
cd "$here"
link() {
	lib=$1
	shift
	# shellcheck disable=SC2086
	${CXX:-c++} -std=c++17 -O2 -g -Wall -Wextra -ffp-contract=off -fno-math-errno -fvisibility=hidden -fPIC -shared -Wl,--version-script="$map" \
		-Wl,-soname,"$lib" -Wl,-rpath,'$ORIGIN' "$@" -o "$out/$lib" -L"$out" -lpthread $flags
}
flags="$*"
link libascendcl.so device.cc memory.cc stream.cc event.cc graph.cc
link libnnopbase.so nnop.cc -l:libascendcl.so
[ -z "$(ls op_*.cc 2>/dev/null)" ] || link libopapi.so op_*.cc -l:libnnopbase.so -l:libascendcl.so
[ ! -f hccl.cc ] || link libhccl.so hccl.cc -l:libascendcl.so -lrt
