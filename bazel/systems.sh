#!/usr/bin/env bash
# Builds and tests HEAD on other systems, each from its own packages: bazel/systems.sh [--bind PATH]... SYSTEM... [-- TARGETS]
#   SYSTEM     debian:12, debian:13 or ubuntu:24.04
#   PATH       of a folder or file of this machine; the systems can read it under the same path (wheels, certificates)
#   TARGETS    for `bazel test`; default: those that depend most on the compiler, the C library and Python
# The systems are folders of ~/.cache/torch-remote/systems, made by debootstrap, which needs root. Each one gets a copy of
# HEAD and runs the two commands of README.md. Variables PIP_* apply there, too. Packages, .venv and the build are kept for
# the next time; delete the folder to begin from nothing.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
cd "$root"

cache=${XDG_CACHE_HOME:-$HOME/.cache}/torch-remote/systems

die() { echo "systems.sh: $*" >&2; exit 1; }

systems=() binds=()
while (($# > 0)) && [[ $1 != -- ]]; do
  case $1 in
    --bind) [[ -e ${2:-} ]] || die "--bind: there is no ${2:-path}"; binds+=("$(realpath -s "$2")"); shift ;;
    debian:12 | debian:13 | ubuntu:24.04) systems+=("$1") ;;
    *) die "'$1' is not a system; systems are debian:12, debian:13, ubuntu:24.04" ;;
  esac
  shift
done
[[ ${1:-} == -- ]] && shift
((${#systems[@]} > 0)) || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
targets=("$@")
((${#targets[@]} > 0)) || targets=(
  //bazel/... //frontend/... //ir/... //passes/... //remote/... //worker/session/... //worker/process/... //tests/package/...
  //tests/e2e/...
)
[[ $(id -u) == 0 ]] || die "debootstrap and chroot need root"
command -v debootstrap >/dev/null || die "debootstrap is missing: apt-get install debootstrap"

# Makes the folder of a system.
make_system() {
  local system=$1 folder=$2
  rm -rf "$folder"
  mkdir -p "$folder"
  case $system in
    debian:12) debian bookworm ca-certificates ;;
    debian:13) debian trixie ca-certificates,ubuntu-keyring ;;
    ubuntu:24.04) ubuntu noble ;;
  esac
  echo force-unsafe-io > "$folder/etc/dpkg/dpkg.cfg.d/fast" # dpkg does not wait for the disk
  mkdir "$folder/torch-remote" # made last: it marks the system as complete
}

debian() {
  debootstrap --variant=minbase --include="git,$2" "$1" "$folder" http://deb.debian.org/debian
}

ubuntu() {
  local keys=usr/share/keyrings/ubuntu-archive-keyring.gpg mirror=http://archive.ubuntu.com/ubuntu
  keys=$(find "/$keys" "$cache/debian-13/$keys" 2>/dev/null | head -n 1 || true)
  [[ -n $keys ]] || die "Ubuntu's keys are missing: install the package ubuntu-keyring, or make the system debian:13 first, which has it"
  debootstrap --variant=minbase --include=ca-certificates,git --components=main,universe --keyring="$keys" "$1" "$folder" "$mirror" gutsy
  printf "deb $mirror %s main universe\n" "$1" "$1-updates" > "$folder/etc/apt/sources.list"
}

# Runs a command in a system, with its own processes and mounts, which end with the command: enter FOLDER PATHS COMMAND...
enter() {
  local folder=$1 path
  mount --rbind "$folder" "$folder"
  mount -t proc proc "$folder/proc"
  mount --rbind /sys "$folder/sys"
  mount --rbind /dev "$folder/dev"
  mount -t tmpfs shm "$folder/dev/shm"
  while IFS= read -r path; do
    [[ -n $path ]] || continue
    if [[ -d $path ]]; then mkdir -p "$folder$path"; else mkdir -p "$folder${path%/*}" && touch "$folder$path"; fi
    mount --bind "$path" "$folder$path"
    mount -o remount,bind,ro "$folder$path"
  done <<< "$2"
  shift 2
  cd "$folder"
  # A process in a chroot could not make user namespaces, which Bazel's sandbox and the workers use.
  pivot_root . mnt
  umount -l /mnt
  cd /torch-remote
  exec "$@"
}

commit=$(git rev-parse HEAD)
pip=()
for name in "${!PIP_@}"; do pip+=("$name=${!name}"); done
failed=()
for system in "${systems[@]}"; do
  folder=$cache/${system/:/-}
  echo "== $system"
  [[ -d $folder/torch-remote ]] || make_system "$system" "$folder"
  cp -L /etc/resolv.conf /etc/hosts "$folder/etc/"
  find "$folder/torch-remote" -mindepth 1 -maxdepth 1 ! -name '.venv*' -exec rm -rf {} +
  git archive HEAD | tar -x -C "$folder/torch-remote"
  # shellcheck disable=SC2016
  unshare --mount --pid --ipc --fork --kill-child bash -euc "$(declare -f enter)"'; enter "$@"' - "$folder" \
    "$(printf '%s\n' "${binds[@]}")" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "${pip[@]}" bash -c '
      ./bazelw run --config=ci //examples:train_digits && ./bazelw test --config=ci "$@"' - \
    --test_env=TORCH_REMOTE_TEST_COMMIT="$commit" -- "${targets[@]}" < /dev/null || failed+=("$system")
done
((${#failed[@]} == 0)) || die "failed on ${failed[*]}"
