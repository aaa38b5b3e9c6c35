#!/bin/sh
# build.sh DEST: libsluice below DEST, as it is installed:
#
#   DEST/include/sluice.h
#   DEST/lib/libsluice.so    -> libsluice.so.1
#   DEST/lib/libsluice.so.1
#   DEST/lib/libsluice.a
#   DEST/lib/pkgconfig/sluice.pc
#
# Both libraries export what sluice.h declares and nothing else.
#
#   PREFIX   the place that sluice.pc names; DEST by default
#   ONLY     "shared" or "static" builds one of the two
#   GO, CC, LD, OBJCOPY, AR   the tools
set -eu

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/include" "$1/lib/pkgconfig"
dest=$(cd "$1" && pwd)
abi=$(sed -n 's/^#define SLUICE_ABI_VERSION \([0-9]*\)$/\1/p' "$here/include/sluice.h")
so="libsluice.so.$abi"
cd "$here"

cp include/sluice.h "$dest/include/sluice.h"
sed -e "s|@PREFIX@|${PREFIX:-$dest}|" -e "s|@VERSION@|$abi.0.0|" sluice.pc.in >"$dest/lib/pkgconfig/sluice.pc"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ "${ONLY:-shared}" = shared ]; then
  ${GO:-go} build -buildmode=c-shared -trimpath -o "$work/$so" \
    -ldflags="-s -w -extldflags '-Wl,--version-script=$here/libsluice.map -Wl,-soname,$so'" .
  cp "$work/$so" "$dest/lib/$so.new"
  mv "$dest/lib/$so.new" "$dest/lib/$so"
  ln -sf "$so" "$dest/lib/libsluice.so"
fi

if [ "${ONLY:-static}" = static ]; then
  ${GO:-go} build -buildmode=c-archive -trimpath -ldflags="-s -w" -o "$work/go.a" .
  # One object, so that what its parts call each other by can be made local;
  # -d gives common symbols a place, as objcopy leaves those without one alone.
  ${LD:-ld} -r -d --whole-archive -o "$work/libsluice.o" "$work/go.a"
  ${OBJCOPY:-objcopy} --wildcard --keep-global-symbol='sluice_*' "$work/libsluice.o"
  rm -f "$work/libsluice.a"
  ${AR:-ar} rcs "$work/libsluice.a" "$work/libsluice.o"
  mv "$work/libsluice.a" "$dest/lib/libsluice.a"
fi
