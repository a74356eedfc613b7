#!/usr/bin/env bash
# Runs tests with other versions of torch, and each client on each worker: bazel/versions.sh VERSION... [-- TARGETS]
#   VERSION    of torch, for example 2.14.1; it is downloaded, which takes gigabytes
#   TARGETS    for `bazel test`; default: those that depend on torch's behavior
# Each version gets a checkout of HEAD in ~/.cache/torch-remote/versions, whose requirements/torch.txt names it. So the
# build, the tests and their Python use it. Its environment and build are kept for the next time.
set -uo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
cd "$root" || exit 1
versions=()
while (($# > 0)) && [[ $1 != -- ]]; do versions+=("$1"); shift; done
[[ ${1:-} == -- ]] && shift
((${#versions[@]} > 0)) || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
targets=("$@")
((${#targets[@]} > 0)) || targets=(
  //frontend/... //worker/targets/aten/... //tests/ops/... //tests/op_table_facts/... //tests/e2e/... //tests/compile/...
  //tests/random_programs/... //tests/integrations/... //tests/package/... -//tests/e2e:test_docs_tools
)

# torchvision is built for one version of torch, and exists for CUDA's builds of it.
declare -A torchvision=([2.14.1]=0.29.1)

failed=() pythons=(.venv/bin/python)
for version in "${versions[@]}"; do
  folder=${XDG_CACHE_HOME:-$HOME/.cache}/torch-remote/versions/$version
  if [[ -e $folder/.git ]]; then
    git -C "$folder" checkout -q --force --detach "$(git rev-parse HEAD)" || exit 1
  else
    git worktree prune
    git worktree add -q --detach "$folder" HEAD || exit 1
  fi
  sed -i "s/^torch==.*/torch==$version/" "$folder/requirements/torch.txt"
  [[ -z ${torchvision[$version]:-} ]] || echo "torchvision==${torchvision[$version]}" >> "$folder/requirements/torch.txt"
  echo "== torch $version"
  its_targets=("${targets[@]}")
  [[ -z ${torchvision[$version]:-} ]] || its_targets+=(//tests/integrations:test_torchvision)
  (cd "$folder" && ./bazelw test --config=ci --test_env=TORCH_REMOTE_TEST_COMMIT="$(git rev-parse HEAD)" -- "${its_targets[@]}") ||
    failed+=("$version")
  (cd "$folder" && bazel shutdown)
  pythons+=("$folder/.venv/bin/python")
done
# Each client on each worker, this checkout's version included, from one wheel.
package_version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' python/torch_remote/version.py)
TORCH_REMOTE_TORCH=$(IFS=,; echo "${versions[*]}") ./bazelw build //:wheel &&
  python3 tests/package/pairs.py bazel-bin/python/torch_remote/torch_remote-"$package_version"-*.whl "${pythons[@]}" ||
  failed+=("in pairs")
((${#failed[@]} == 0)) || { echo "versions.sh: tests fail with torch ${failed[*]}" >&2; exit 1; }
