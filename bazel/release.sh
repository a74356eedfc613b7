#!/usr/bin/env bash
# Builds and tests what a release consists of, and writes it to a folder. Publishes nothing: .github/workflows/release.yml
# does that with the folder.
#   bazel/release.sh TAG [OPTION ...]         a release: TAG (v0.2.0) must be HEAD's, and CHANGELOG.md must have its date
#   bazel/release.sh --dry-run [OPTION ...]   the same without a tag, for the version of python/torch_remote/version.py
#   bazel/release.sh --notes TAG              prints the part of CHANGELOG.md about the version
#   bazel/release.sh --draft TAG FOLDER       makes a draft of the release's page at GitHub, with the folder's files
# Options:
#   --out FOLDER     default: .cache/release; files in it are deleted
#   --wheel-only     without the worker bundle, which does not depend on Python
#   --offline        installs no torch from a package index; the wheel is still tested with the torch of .venv
# TORCH_REMOTE_TORCH is as for ./bazelw, but the default is all supported versions; TORCH_REMOTE_PYTHON chooses the Python.
# REPOSITORY_URL (https://github.com/owner/name) adds the links of the package's page.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
cd "$root"
export TORCH_REMOTE_TORCH=${TORCH_REMOTE_TORCH-2.14.1,2.15.0}
max_size=$((100 << 20)) # PyPI refuses larger files

die() { echo "release.sh: $*" >&2; exit 1; }
usage() { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
step() { echo "== $*"; }

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' python/torch_remote/version.py)
[[ -n $version ]] || die "python/torch_remote/version.py has no version"

notes() { awk -v "head=## [$version]" 'index($0, "## [") == 1 { inside = index($0, head) == 1; next } inside' CHANGELOG.md; }

check_tag() {
  [[ $1 == "v$version" ]] || die "the tag is $1, but python/torch_remote/version.py has $version"
  [[ $(git rev-parse -q --verify "$1^{commit}") == $(git rev-parse HEAD) ]] || die "HEAD is not at $1; git checkout $1"
  [[ -z $(git status --porcelain --untracked-files=no) ]] || die "files differ from $1: git status"
  grep -Eq "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
    die "CHANGELOG.md has no line '## [$version] - YYYY-MM-DD'"
}

tag='' out=$root/.cache/release wheel_only='' offline=''
(($# > 0)) || usage
while (($# > 0)); do
  case $1 in
    --dry-run) tag=${tag:-dry-run} ;;
    --notes | --draft)
      [[ ${2:-} == "v$version" ]] || die "the tag of this version is v$version, not '${2:-}'"
      [[ $1 == --draft ]] || { notes; exit; }
      [[ -d ${3:-} ]] || die "--draft needs a folder"
      notes | gh release create "$2" "$3"/* --draft --verify-tag --title "$2" --notes-file -
      exit
      ;;
    --out) [[ -n ${2:-} ]] || usage; out=$(realpath -m "$2"); shift ;;
    --wheel-only) wheel_only=1 ;;
    --offline) offline=1 ;;
    v*) tag=$1 ;;
    *) usage ;;
  esac
  shift
done
[[ -n $tag ]] || usage
[[ $tag == dry-run ]] || check_tag "$tag"
[[ -n $(notes) ]] || die "CHANGELOG.md has no section of $version"

targets=(//:wheel)
tests=(//tests/package:wheel_test //tests/package:version_test //tests/package:metadata_test)
[[ -n $wheel_only ]] || { targets+=(//:worker_bundle); tests+=(//tests/package:bundle_test); }
step "build of ${targets[*]} $version for torch of .venv${TORCH_REMOTE_TORCH:+, $TORCH_REMOTE_TORCH}"
built=bazel-bin/python/torch_remote
./bazelw build --config=release "${targets[@]}"
python=$root/.venv/bin/python
mkdir -p "$out"
rm -f "$out"/*.whl "$out"/*.tar.gz "$out"/*.cdx.json
install -m 644 $built/torch_remote-"$version"-"$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')"-*.whl "$out"
[[ -n $wheel_only ]] || install -m 644 $built/torch-remote-worker-"$version"-*.tar.gz "$out"
wheel=$(echo "$out"/*.whl)

step "tests of the files"
./bazelw test --config=release "${tests[@]}"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

step "metadata"
"$python" -m venv "$scratch/tools"
"$scratch/tools/bin/pip" install -q --disable-pip-version-check twine==6.2.0 trove-classifiers
"$scratch/tools/bin/twine" check --strict "$wheel"
"$scratch/tools/bin/python" -c 'import sys, tomllib, trove_classifiers
with open("pyproject.toml", "rb") as file:
    unknown = set(tomllib.load(file)["project"]["classifiers"]) - trove_classifiers.classifiers
sys.exit(f"unknown classifiers: {unknown}" if unknown else 0)'
for file in "$out"/*; do
  (($(stat -c %s "$file") < max_size)) || die "$file is larger than $max_size bytes, which is PyPI's limit"
done
"$python" -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    (name,) = [name for name in wheel.namelist() if name.endswith(".cdx.json")]
    open(sys.argv[2], "wb").write(wheel.read(name))' "$wheel" "$out/$(basename "$wheel" .whl).cdx.json"

if [[ -z $offline ]]; then
  for torch in $(sed -n 's/^torch==//p' requirements/torch.txt) ${TORCH_REMOTE_TORCH//,/ }; do
    step "a new environment with torch $torch"
    "$python" -m venv "$scratch/env"
    "$scratch/env/bin/pip" install -q --disable-pip-version-check "torch==$torch" "$wheel"
    # In another folder and without variables, so that nothing of the checkout is used.
    (cd "$scratch" && env -u TORCH_REMOTE_TORCH -u TORCH_REMOTE_PYTHON -u PYTHONPATH env/bin/python "$root/tests/package/smoke.py")
    (cd "$scratch" && env -u TORCH_REMOTE_TORCH -u TORCH_REMOTE_PYTHON -u PYTHONPATH env/bin/torch-remote doctor)
    rm -rf "$scratch/env"
  done
else
  step "no torch from a package index: --offline"
fi

step "in $out"
(cd "$out" && sha256sum -- *)
