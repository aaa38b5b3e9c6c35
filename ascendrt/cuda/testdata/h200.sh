#!/bin/bash
# Runs the whole proof on a machine with a CUDA device: ABI gate, tests,
# measurements against plain C. Usage: h200.sh BIN OUT, where BIN holds
# cuda.test (go test -c) and plain (plain.c), from the folder ascendrt/cuda.
bin=$1 out=$2
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
cd "$(dirname "$0")/.." || exit 1
lib() { for d in /usr/local/cuda/targets/*/lib /usr/local/cuda/lib64 $(python3 -c 'import sysconfig,glob; print(*glob.glob(sysconfig.get_paths()["purelib"]+"/nvidia/*/lib"))'); do [ -e "$d/$1" ] && { echo "$d/$1"; return; }; done; }
ldd "$bin/cuda.test" | sed 's/ (.*//' > "$out/ldd.txt"
nvidia-smi --query-gpu=index,name,driver_version,uuid --format=csv,noheader | sed 's/GPU-.*/GPU-…/'
inc=/usr/local/cuda/include
[ -e $inc/cudaTypedefs.h ] || inc=$(python3 -c 'import sysconfig,glob; print((glob.glob(sysconfig.get_paths()["purelib"]+"/nvidia/*/include/cudaTypedefs.h")+[""])[0])' | xargs dirname)
if gcc -std=gnu11 -fsyntax-only -I"$inc" testdata/gate.c > "$out/gate.txt" 2>&1; then echo "gate: all signatures agree with $inc"; else echo "gate: FAILED"; grep error "$out/gate.txt" | head -20; fi
for v in SLUICE_NCCL_LIB=libnccl.so.2 SLUICE_CUBLASLT_LIB=libcublasLt.so.13 SLUICE_NVRTC_LIB=libnvrtc.so.13; do
	name=${v%%=*} p=$(lib "${v#*=}")
	ldconfig -p | grep -q "${v#*=}" || { [ -n "$p" ] && export "$name=$p"; }
	echo "$name: ${!name:-found by the loader} "
done
timeout ${TEST_SECONDS:-150} "$bin/cuda.test" -test.v ${TEST_ARGS:-} > "$out/test.log" 2>&1; echo "tests: exit $?"
grep -E "^\s*--- (FAIL|SKIP)" "$out/test.log" | head -40
grep -E "^\s*--- PASS" "$out/test.log" | wc -l
[ -x "$bin/sluice" ] && { "$bin/sluice" devices; "$bin/sluice" doctor; } > "$out/doctor.txt" 2>&1; cat "$out/doctor.txt"
for tool in ${SANITIZERS:-}; do
	timeout 100 compute-sanitizer --tool $tool --target-processes application-only "$bin/cuda.test" -test.run "${SANITIZE_TESTS:-TestConformance/a_decoder_layer}" > "$out/$tool.txt" 2>&1
	echo "compute-sanitizer $tool: exit $?"; grep -E "ERROR SUMMARY|RACECHECK SUMMARY|^========= (Invalid|Error|Race)|^(ok|PASS|FAIL)" "$out/$tool.txt" | sort | uniq -c | head -12
done
for i in $(seq ${ROUNDS:-3}); do
	SLUICE_CUDA_MEASURE=/tmp/empty.cubin timeout 60 "$bin/cuda.test" -test.run '^TestMeasure$' 2>&1 | grep '^go' | sed "s/^/$i /"
	timeout 60 "$bin/plain" /tmp/empty.cubin 2>&1 | sed "s/^/$i /"
done | tee "$out/measure.txt"
