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
#
# Exit status: 0 if all tests passed and every row of the table was measured.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wheel="" python=python3 torch=cuda out="$root/docs/gpu_benchmarks.md" emulated="" only="" worker=""
while [ $# -gt 0 ]; do
  case "$1" in
    --wheel) wheel=$(realpath "$2") ;;
    --python) python=$2 ;;
    --torch) torch=$2 ;;
    --out) out=$(realpath -m "$2") ;;
    --worker) worker=$(realpath "$2") ;;
    --emulated) emulated=$(realpath "$2") ;;
    --only) only=$2 ;;
    *) sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 64 ;;
  esac
  shift 2 || { echo "$1 needs a value" >&2; exit 64; }
done
began=$SECONDS
folder=$(mktemp -d)
workers=()
trap '[ ${#workers[@]} -eq 0 ] || kill "${workers[@]}" 2>/dev/null; rm -rf "$folder"' EXIT
say() { printf '\n== %s (%d s)\n' "$*" "$((SECONDS - began))"; }

if [ -n "$wheel" ]; then
  say "installing $(basename "$wheel") with torch for $torch"
  "$python" -m venv "$folder/env"
  python="$folder/env/bin/python"
  index=()
  [ "$torch" = cpu ] && index=(--index-url https://download.pytorch.org/whl/cpu)
  "$python" -m pip install --quiet "${index[@]}" 'torch==2.13.*'
  "$python" -m pip install --quiet "$wheel[cuda]" pytest numpy hypothesis transformers
fi

export PYTHONPATH="$root/tests/random_programs:$root/tests/models:$root/tests/gpu/emulated:$root/tests${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "$emulated" ]; then
  worker=$emulated
elif [ -z "$worker" ]; then
  worker=$("$python" -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("torch_remote").origin))')/bin/torch-remote-worker
fi

say "GPUs, driver and libraries"
status=0
"$worker" --probe || status=$?
[ $status -ne 127 ] || { echo "the worker does not start: install the libraries that it names, or use --worker" >&2; exit 1; }
[ $status -le 1 ] || { echo "there is no GPU to test on" >&2; exit 2; }
"$worker" --probe --json >"$folder/probe.json" || true

# All tests connect to one worker, which gives each client its own session.
"$worker" --device cuda:0 --listen "unix://$folder/worker.sock" 2>"$folder/worker.log" &
workers+=($!)
until [ -S "$folder/worker.sock" ]; do
  kill -0 "${workers[0]}" 2>/dev/null || { cat "$folder/worker.log" >&2; exit 1; }
  sleep 0.1
done
export TORCH_REMOTE_WORKER="unix://$folder/worker.sock"

failed=0
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
      TORCH_REMOTE_FUSION=$fusion "$python" -m pytest -q -p no:cacheprovider --rootdir "$root/tests" \
        "${choice[@]}" "$root/tests/gpu/emulated/$suite.py" || failed=1
    done
  done
fi
if [ "$only" != tests ]; then
  say "benchmarks"
  "$python" "$root/tests/gpu/bench.py" --probe "$folder/probe.json" --worker "$worker" --out "$out" \
    ${emulated:+--emulated} || failed=1
  [ ! -f "$out" ] || say "$out"
fi
say "$([ $failed = 0 ] && echo 'everything passed' || echo 'something failed')"
exit $failed
