#!/bin/bash
# The proof of the engine, its kernels and its bindings on a machine with a CUDA
# device, which needs neither Go nor a network. Usage: h200.sh BIN OUT [PART ...]
#
# BIN holds cuda.test, executor.test, server.test, parity.test (go test -c -ldflags='-s -w'),
# steptime and sluice (go build) and plain (ascendrt/cuda/testdata/plain.c), those that the
# parts need. OUT gets log.txt, the output of every part, steps.csv, grid.csv and table.txt,
# which is printed last. Without PARTs those of the line `default` run.
#
#   cuda       tests of ascendrt/cuda on the device
#   executor   tests of the executor on the device
#   server     the table of equal answers, over HTTP, on the device
#   parity     against transformers: small shapes
#   big        the same: the shapes of Qwen3-0.6B and of a Llama of 1.2 billion parameters
#   memcheck   compute-sanitizer memcheck over all kernels
#   racecheck  compute-sanitizer racecheck over the fused kernels, small sizes
#   steps      steptime of qwen3-0.6b
#   steps8b    steptime of llama3-8b
#   grid       single steps of qwen3-0.6b for the simulator, in grid.csv
#   grid8b     single steps of llama3-8b
#   arms       sluice bench --preset append-prefill-gpu with the flags in ARMS, in arms.jsonl
#   tails      sluice bench --preset tails with the flags in TAILS, in tails.jsonl
#   torch      the same decoders as plain torch operators
#   gate       abi.h against the vendor's headers
#   doctor     what sluice says of the machine
#   plain      the bindings against plain C, in turns
#
# PART_SECONDS, e.g. cuda_SECONDS=90, changes the time that a part may take. big, steps, steps8b,
# grid, grid8b, arms and tails go on where an earlier run ended: FROM=DIR names its OUT, a copy of
# which may lie anywhere. TYPES=bf16 or fp32 limits big to one storage type. SHARE=50 gives
# each process that percentage of the multiprocessors, by MPS, as for arms on one device;
# COMMIT names the commit of sluice, if its build did not record it.
# shellcheck disable=SC2016 # what stands in single quotes is for another shell
default="cuda executor server parity memcheck racecheck steps steps8b"
[ $# -ge 2 ] || { sed -n '2,32s/^# \{0,1\}//p' "$0"; exit 2; }
bin=$(realpath "$1") && mkdir -p "$2" && out=$(realpath "$2") || exit 2
shift 2
parts=${*:-$default}
root=$(realpath "$(dirname "$0")/../..")
tmp=$(mktemp -d)
trap '[ -z "${SHARE:-}" ] || echo quit | nvidia-cuda-mps-control > /dev/null; rm -rf "$tmp"' EXIT
export SLUICE_DEVICE=${SLUICE_DEVICE:-cuda}
types=${TYPES:+-$TYPES}
from=${FROM:-}
[ -z "$from" ] || [ -d "$from" ] || { echo "h200.sh: FROM=$from is no folder" >&2; exit 2; }
for f in log.txt table.txt; do : > "$out/$f"; done
for f in steps.csv grid.csv arms.jsonl tails.jsonl done.txt; do
	if [ -n "$from" ] && [ -e "$from/$f" ]; then
		[ "$from/$f" -ef "$out/$f" ] || cp "$from/$f" "$out/$f" && chmod u+w "$out/$f"
	else
		: > "$out/$f"
	fi
done

# Libraries that the loader does not find by itself are looked for beside CUDA and torch.
site=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null)
for v in SLUICE_NCCL_LIB=libnccl.so.2 SLUICE_CUBLASLT_LIB=libcublasLt.so.13 SLUICE_NVRTC_LIB=libnvrtc.so.13; do
	[ -n "$(printenv "${v%%=*}")" ] && continue
	ldconfig -p | grep -q "${v#*=}" && continue
	for d in /usr/local/cuda/targets/*/lib /usr/local/cuda/lib64 "$site"/nvidia/*/lib; do
		[ -e "$d/${v#*=}" ] && { export "${v%%=*}=$d/${v#*=}"; break; }
	done
done

if [ -n "${SHARE:-}" ]; then
	export CUDA_MPS_PIPE_DIRECTORY=$tmp/mps CUDA_MPS_LOG_DIRECTORY=$tmp/mps CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$SHARE
	mkdir "$tmp/mps" && nvidia-cuda-mps-control -d || { echo "h200.sh: no MPS for SHARE=$SHARE" >&2; exit 2; }
fi

row() { printf '%-11s %-9s %6s  %s\n' "$@" >> "$out/table.txt"; }

# part NAME SECONDS COMMAND runs it and notes what came of it; what it printed is in $log.
part() {
	local name=$1 rc begun=$SECONDS own=${1//[^a-z0-9]/_}_SECONDS limit=${1%%-*}_SECONDS
	limit=${!own:-${!limit:-$2}}
	shift 2
	log=$tmp/$name.log
	echo "$name: at most $limit s"
	timeout -k 5 "$limit" "$@" > "$log" 2>&1
	rc=$?
	{ echo "==== $name: $*: exit $rc"; cat "$log"; } >> "$out/log.txt"
	took=$((SECONDS - begun))s
	case $rc in 0) verdict=ok ;; 124 | 137) verdict="time out" ;; *) verdict="FAILED $rc" ;; esac
}

# finished UNIT reports whether an earlier run has done a unit of a part, and says so.
finished() { grep -qx "$1" "$out/done.txt" && row "$1" "ok before" - "in $from"; }

# finish UNIT notes that it is done.
finish() { [ "$verdict" != ok ] || echo "$1" >> "$out/done.txt"; }

count() { grep -cE "^ *--- $1" "$log"; }

# A part in which no test ran proves nothing.
verdict_of_tests() { [ "$verdict" != ok ] || [ "$(count PASS)" != 0 ] || verdict="FAILED: nothing ran"; }

# gotest NAME SECONDS FOLDER BINARY ARGUMENTS: a test binary, in its package's folder.
gotest() {
	local name=$1 limit=$2 dir=$3 binary=$4
	shift 4
	part "$name" "$limit" bash -c 'cd "$0" && exec "$@"' "$root/$dir" "$bin/$binary" -test.v -test.count=1 "$@"
	grep -E '^ *--- FAIL' "$log" | head -20
	verdict_of_tests
	row "$name" "$verdict" "$took" "$(count PASS) passed, $(count FAIL) failed, $(count SKIP) skipped"
}

# sanitize TOOL SECONDS PATTERN: runs under a tool, one process.
sanitize() {
	local tool=$1 limit=$2 pattern=$3
	command -v compute-sanitizer > /dev/null || { row "$tool" "left out" 0s "no compute-sanitizer"; return; }
	part "$tool" "$limit" bash -c 'cd "$0" && exec "$@"' "$root/ascendrt/cuda" compute-sanitizer --tool "$tool" --report-api-errors no \
		--target-processes application-only --kernel-name-exclude kernel_substring=nvjet --error-exitcode 9 "$bin/cuda.test" -test.v -test.count=1 -test.run "$pattern"
	grep -E '^========= .*(Invalid|Error:|Race|Uninit|hazard)' "$log" | sort | uniq -c | sort -rn | head -12
	verdict_of_tests
	row "$tool" "$verdict" "$took" "$(count PASS) passed, $(count FAIL) failed; $(grep -E 'SUMMARY' "$log" | tail -1 | sed 's/^=* *//')"
}

# checkpoints NAME FLAG ...: what transformers computes, made aside while tests run.
checkpoints() {
	local name=$1
	shift
	(cd "$root/internal/engine/parity" && exec timeout -k 5 "${make_SECONDS:-240}" python3 make.py --out "$tmp/$name" "$@") > "$tmp/make-$name" 2>&1
}

has() { case " $parts " in *" $1 "*) return 0 ;; esac; return 1; }
for p in $parts; do
	case $p in
	cuda | executor | server | parity | big | memcheck | racecheck | steps | steps8b | grid | grid8b | arms | tails | torch | gate | doctor | plain) ;;
	*) echo "h200.sh: no part $p" >&2; exit 2 ;;
	esac
done

# compare NAME PID SECONDS: a folder of checkpoints whose making is that process.
compare() {
	wait "$2"
	local rc=$?
	{ echo "==== make.py for $1: exit $rc"; cat "$tmp/make-$1"; } >> "$out/log.txt"
	SLUICE_PARITY=$tmp/$1 gotest "$1" "$3" internal/engine/parity parity.test -test.run TestAgainstTransformers
	[ $rc = 0 ] || { verdict="FAILED $rc"; row "$1" "$verdict" - "make.py: $(tail -1 "$tmp/make-$1" | cut -c1-120)"; }
	sed -n 's/^ *parity_test.go:[0-9]*: \(.* on .*: logits .*\)/  \1/p' "$log" >> "$out/table.txt"
	rm -rf "${tmp:?}/$1"
}

# steps NAME MODEL SECONDS: decodes first, then each prompt, so that a run that is cut
# short goes on.
steps() {
	local unit prompt
	for prompt in "" ${PREFILL-1024 4096 12288}; do
		unit=$1${prompt:+-$prompt}
		finished "$unit" && continue
		if [ -z "$prompt" ]; then
			part "$unit" "$3" "$bin/steptime" --device "$SLUICE_DEVICE" --model "$2" --modes "${MODES:-FULL}" --repeat "${REPEAT:-3}" --prefill ""
		else
			part "$unit" "$3" "$bin/steptime" --device "$SLUICE_DEVICE" --model "$2" --modes "" --repeat "${REPEAT:-3}" --prefill "$prompt"
		fi
		[ "$verdict" != ok ] || grep -E '^#|^[a-z0-9.-]+,(decode|host[a-z-]*|prefill),' "$log" >> "$out/steps.csv"
		finish "$unit"
		row "$unit" "$verdict" "$took" "$2: $(grep -cE ',(decode|host|prefill),' "$log") figures"
		awk -F, '$2 == "decode" || $2 ~ /^host/ || $2 == "prefill" { printf "  %-12s %-23s %6s %-10s %10s %s\n", $1, $2, $3, $4, $5, $6 }' "$log" >> "$out/table.txt"
	done
}

# grid NAME MODEL SECONDS: steptime itself goes on where grid.csv ends, and stops before
# its time is over.
grid() {
	local limit=$1_SECONDS left
	limit=${!limit:-$3}
	local "$1_SECONDS=" # the time of its steps; the part has a little more
	part "$1" $((limit + 30)) "$bin/steptime" --grid --device "$SLUICE_DEVICE" --model "$2" --append "$out/grid.csv" --time-limit "${limit}s" --repeat "${REPEAT:-3}"
	left=$(grep -oE '[0-9]+ of [0-9]+ steps are left' "$log")
	row "$1" "$verdict" "$took" "$2: $(grep -cE "^$2,step," "$out/grid.csv") steps in grid.csv${left:+, $left}"
}

# bench NAME PRESET SECONDS FLAGS: sluice itself goes on where NAME.jsonl ends.
bench() {
	local name=$1 preset=$2 limit=$1_SECONDS results=$out/$1.jsonl
	limit=${!limit:-$3}
	local "${name}_SECONDS=" # the time of its points; the part has a little more
	# shellcheck disable=SC2086 # flags are words
	part "$name" $((limit + 30)) "$bin/sluice" bench --preset "$preset" --device "$SLUICE_DEVICE" --dir "$tmp/$name" --results "$results" --time-limit "${limit}s" ${COMMIT:+--commit "$COMMIT"} $4
	row "$name" "$verdict" "$took" "$(grep -c . "$results") points in $name.jsonl$(grep -oE ', [0-9]+ left' "$log")"
	"$bin/sluice" bench --preset "$preset" --results "$results" --show >> "$out/table.txt" 2>&1
}

gate() {
	local inc=/usr/local/cuda/include
	[ -e $inc/cudaTypedefs.h ] || inc=$(dirname "$(printf '%s\n' "$site"/nvidia/*/include/cudaTypedefs.h | head -1)")
	part gate 60 gcc -std=gnu11 -fsyntax-only -I"$inc" -I"$root/ascendrt/cuda" "$root/ascendrt/cuda/testdata/gate.c"
	row gate "$verdict" "$took" "$(grep -c error "$log") signatures differ from $inc"
}

plain() {
	local i
	part plain "${ROUNDS_SECONDS:-300}" bash -c '
		cd "$0" || exit
		for i in $(seq "$2"); do
			SLUICE_CUDA_MEASURE="$3/empty.cubin" timeout 60 "$1/cuda.test" -test.run "^TestMeasure\$" | grep "^go" | sed "s/^/$i /"
			timeout 60 "$1/plain" "$3/empty.cubin" | sed "s/^/$i /"
		done' "$root/ascendrt/cuda" "$bin" "${ROUNDS:-3}" "$tmp"
	i=$(grep -cE '^[0-9]+ ' "$log")
	[ "$verdict" != ok ] || [ "$i" != 0 ] || verdict="FAILED: nothing ran"
	cp "$log" "$out/measure.txt"
	row plain "$verdict" "$took" "$i figures, in measure.txt"
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm --format=csv,noheader 2>/dev/null | tee -a "$out/table.txt"
if has parity; then checkpoints parity & small=$!; fi
has gate && gate
has cuda && gotest cuda 120 ascendrt/cuda cuda.test
has executor && gotest executor 60 internal/engine/executor executor.test -test.run OnDevice
has server && gotest server 180 internal/engine/server server.test -test.run 'OnDevice|NaN'
has parity && compare parity "$small" 90
declare -A making
if has big; then
	for m in qwen3-0.6b llama-1b; do
		finished "big-$m$types" || { checkpoints "big-$m$types" --only "$m" ${TYPES:+--types "$TYPES"} & making[$m]=$!; }
	done
fi
has memcheck && sanitize memcheck 200 "${MEMCHECK:-TestConformance/(named|a_decoder)|TestFusedLinear/(256|1024_to_48|512|1024$)|TestFusedRotate|TestFusedAttention|TestFusedPick}"
has racecheck && SLUICE_CUDA_OPTIONS=-DEVERY_LANE sanitize racecheck 150 "${RACECHECK:-TestFusedLinear/1024_to_48/.*/^(3|16|31|32|per_row_17|per_row_65)\$|TestFusedRotate|TestFusedAttention/(11|13|14|15)/|TestFusedPick}"
for m in qwen3-0.6b llama-1b; do
	[ -n "${making[$m]:-}" ] || continue
	compare "big-$m$types" "${making[$m]}" 120
	finish "big-$m$types"
done
has steps && steps steps qwen3-0.6b 60
has steps8b && steps steps8b llama3-8b 90
has grid && grid grid qwen3-0.6b 210
has grid8b && grid grid8b llama3-8b 210
has arms && bench arms append-prefill-gpu 210 "${ARMS:-}"
has tails && bench tails tails 210 "${TAILS:-}"
has doctor && { part doctor 60 bash -c '"$0" devices; "$0" doctor' "$bin/sluice"; cat "$log"; row doctor "$verdict" "$took" ""; }
has plain && plain
if has torch; then
	part torch 120 python3 "$root/internal/engine/parity/graph.py" --model "${TORCH:-qwen3-0.6b,llama3-8b}"
	grep -E '^[a-z0-9.-]+,torch' "$log" >> "$out/steps.csv"
	row torch "$verdict" "$took" "$(grep -cE ',torch' "$log") figures, in steps.csv"
fi
echo
cat "$out/table.txt"
! grep -qE ' (FAILED|time out)' "$out/table.txt"
