#!/usr/bin/env bash
# Tests and benchmarks torch_remote on a machine with an NVIDIA GPU and its driver. Takes at most 10 minutes, in addition
# to downloads.
#
#   tests/gpu/run.sh --wheel torch_remote-*.whl   installs the wheel and its dependencies in a temporary environment
#   tests/gpu/run.sh                              uses the torch_remote of `python3`
#
#   --python PYTHON     instead of python3
#   --torch cpu|cuda    with --wheel: the build of torch; cuda (2.7 GB, the default) adds torch's CUDA device to the table
#   --worker FILE       the worker's program in an unpacked //:worker_bundle; default: the package's
#   --out FILE          the page with the table; default: docs/gpu_benchmarks.md
#   --emulated WORKER   a worker with an emulated GPU: a few tests with tiny sizes; its measurements mean nothing
#   --only tests|bench  only the tests, or only the benchmarks
#   --dry-run yes       prints the builds that it would install for this machine's driver, then exits
#
# It begins with the worker's self-test, then runs the tests, and then the benchmarks. A failure does not stop later parts.
# cuda_builds.txt maps drivers to builds of torch and of NVIDIA's libraries.
#
# Exit status: 0 if all tests passed and every row of the table was measured.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wheel="" python=python3 torch=cuda out="$root/docs/gpu_benchmarks.md" emulated="" only="" worker="" dry=""
while [ $# -gt 0 ]; do
  case "$1" in
    --wheel) wheel=$(realpath "$2") ;;
    --python) python=$2 ;;
    --torch) torch=$2 ;;
    --out) out=$(realpath -m "$2") ;;
    --worker) worker=$(realpath "$2") ;;
    --emulated) emulated=$(realpath "$2") ;;
    --only) only=$2 ;;
    --dry-run) dry=$2 ;;
    *) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 64 ;;
  esac
  shift 2 || { echo "$1 needs a value" >&2; exit 64; }
done
began=$SECONDS
folder=$(mktemp -d)
workers=()
trap '[ ${#workers[@]} -eq 0 ] || kill "${workers[@]}" 2>/dev/null; rm -rf "$folder"' EXIT
say() { printf '\n== %s (%d s)\n' "$*" "$((SECONDS - began))"; }

# Prints the wheel index of torch and the extra of torch_remote for this machine's driver.
cuda_build() {
  local driver oldest index extra
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
  [ -n "$driver" ] || { echo "nvidia-smi reports no driver; install NVIDIA's driver 525.60 or later" >&2; return 2; }
  while read -r oldest index extra; do
    if [ "${driver%%.*}" -ge "$oldest" ]; then
      echo "$index $extra"
      return
    fi
  done < <(grep -v '^#' "$root/tests/gpu/cuda_builds.txt")
  echo "NVIDIA's driver $driver is too old; install 525.60 or later" >&2
  return 2
}

if [ -n "$dry" ]; then
  cuda_build
  exit
fi

if [ -n "$wheel" ]; then
  build=$(cuda_build)
  read -r index extra <<<"$build"
  [ "$torch" = cpu ] && index=https://download.pytorch.org/whl/cpu
  say "installing $(basename "$wheel") with torch for $torch"
  "$python" -m venv "$folder/env"
  python="$folder/env/bin/python"
  "$python" -m pip install --quiet --index-url "$index" 'torch==2.13.*'
  "$python" -m pip install --quiet "$wheel[$extra]" pytest numpy hypothesis transformers
fi

export PYTHONPATH="$root/tests/random_programs:$root/tests/models:$root/tests/gpu/emulated:$root/tests${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "$emulated" ]; then
  worker=$emulated
elif [ -z "$worker" ]; then
  worker=$("$python" -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("torch_remote").origin))')/bin/torch-remote-worker
fi

say "GPUs, driver and libraries"
status=0
[ -n "$emulated" ] || nvidia-smi 2>/dev/null || true
"$worker" --probe || status=$?
[ $status -ne 127 ] || { echo "the worker does not start: install the libraries that it names, or use --worker" >&2; exit 1; }
[ $status -le 1 ] || { echo "there is no GPU to test on" >&2; exit 2; }
"$worker" --probe --json >"$folder/probe.json" || true

failed=0
say "self-test"
timeout 120 "$worker" --probe --self-test >"$folder/self_test.txt" 2>&1 || failed=1
if [ $failed = 1 ]; then
  # Each launch then ends before the next one begins, so the row names the kernel that failed.
  echo "With CUDA_LAUNCH_BLOCKING=1:" >>"$folder/self_test.txt"
  CUDA_LAUNCH_BLOCKING=1 timeout 60 "$worker" --probe --self-test >>"$folder/self_test.txt" 2>&1 || true
fi
cat "$folder/self_test.txt"
[ $failed = 0 ] || echo "torch-remote doctor --gpu writes gpu-report.tar.gz for a report"
if [ -z "$emulated" ] && command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    say "compute-sanitizer, $tool"
    timeout 60 compute-sanitizer --tool "$tool" --error-exitcode 1 "$worker" --probe --self-test \
      >"$folder/sanitizer.txt" 2>&1 && continue
    failed=1
    echo "compute-sanitizer $tool reported errors, or time ran out" >>"$folder/failed.txt"
    tail -n 40 "$folder/sanitizer.txt"
  done
fi

# All tests connect to one worker, which gives each client its own session.
"$worker" --device cuda:0 --listen "unix://$folder/worker.sock" 2>"$folder/worker.log" &
workers+=($!)
until [ -S "$folder/worker.sock" ]; do
  kill -0 "${workers[0]}" 2>/dev/null || { cat "$folder/worker.log" >&2; exit 1; }
  sleep 0.1
done
export TORCH_REMOTE_WORKER="unix://$folder/worker.sock"

# Seconds that remain of ten minutes, without `$1` seconds for later parts; at least 10.
remaining() {
  local left=$((600 - (SECONDS - began) - $1))
  echo $((left > 10 ? left : 10))
}
for_bench=240
[ "$only" != tests ] || for_bench=0
if [ "$only" != bench ]; then
  suites=(test_emulated_gpu test_hand_written_kernels test_convolutions test_images test_recurrent test_reductions
    test_searches test_programs_on_gpu)
  choice=()
  if [ -n "$emulated" ]; then
    suites=(test_emulated_gpu)
    choice=(-k "pointwise or sizes_change")
  fi
  for fusion in 1 0; do
    [ -n "$emulated" ] && [ $fusion = 0 ] && continue
    for suite in "${suites[@]}"; do
      say "$suite$([ $fusion = 1 ] || echo ', op by op')"
      TORCH_REMOTE_FUSION=$fusion timeout "$(remaining $for_bench)" "$python" -m pytest -q -p no:cacheprovider \
        --rootdir "$root/tests" "${choice[@]}" "$root/tests/gpu/emulated/$suite.py" && continue
      failed=1
      echo "$suite failed, or time ran out (fusion $fusion)" >>"$folder/failed.txt"
    done
  done
fi
if [ "$only" != tests ]; then
  say "benchmarks"
  timeout "$(remaining 0)" "$python" "$root/tests/gpu/bench.py" --probe "$folder/probe.json" --worker "$worker" --out "$out" \
    ${emulated:+--emulated} || failed=1
  # The page has what is known, even if the benchmarks did not finish.
  {
    printf '\n## Self-test\n\n```\n'
    cat "$folder/self_test.txt"
    printf '```\n'
    [ ! -f "$folder/failed.txt" ] || { printf '\n## Failed tests\n\n'; sed 's/^/- /' "$folder/failed.txt"; }
  } >>"$out"
  say "$out"
fi
say "$([ $failed = 0 ] && echo 'everything passed' || echo 'something failed')"
exit $failed
