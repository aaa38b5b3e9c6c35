#!/bin/sh
# Builds the emulated Ascend libraries: build.sh OUT [FLAG...]. CXX names the
# compiler (c++). HIDE names symbols, apart by blanks, that the libraries shall
# not export, as older ones do not. OBJ is a folder with the objects of an earlier
# build, for another set of hidden symbols.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
flags="$*"
mkdir -p "$out/obj"
map=$out/exports.map
{
	echo '{ global: acl*; Hccl*; sluice_emu_*; local:'
	for s in ${HIDE:-}; do echo "  $s;"; done
	echo '  *; };'
} >"$map"
cd "$here"
runtime="device memory stream event graph"
operators=$(ls op_*.cc | sed 's/\.cc$//')
obj=${OBJ:-$out/obj}
if [ -z "${OBJ:-}" ]; then
	for f in $runtime nnop $operators hccl; do
		# shellcheck disable=SC2086
		${CXX:-c++} -std=c++17 -O2 -Wall -Wextra -ffp-contract=off -fno-math-errno -fvisibility=hidden -fPIC $flags -c "$f.cc" -o "$obj/$f.o" || exit 1 &
		wait_for="${wait_for:-} $!"
		[ "$(echo $wait_for | wc -w)" -lt "${JOBS:-2}" ] || { for p in $wait_for; do wait "$p"; done; wait_for=; }
	done
	for p in ${wait_for:-}; do wait "$p"; done
fi
objects() { for f in "$@"; do printf '%s ' "$obj/$f.o"; done; }
link() {
	lib=$1
	shift
	# shellcheck disable=SC2086
	${CXX:-c++} -shared -Wl,--version-script="$map" -Wl,-soname,"$lib" -Wl,-rpath,'$ORIGIN' $flags "$@" -o "$out/$lib" -L"$out" -lpthread
}
# shellcheck disable=SC2046
{
	link libascendcl.so $(objects $runtime)
	link libnnopbase.so $(objects nnop) -l:libascendcl.so
	link libopapi.so $(objects $operators) -l:libnnopbase.so -l:libascendcl.so
	link libhccl.so $(objects hccl) -l:libascendcl.so -lrt
}
