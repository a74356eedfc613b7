#!/usr/bin/env bash
# Builds for Linux on aarch64 with a cross compiler, and runs the result under qemu-user. Needs Debian 12 on x86-64, and
# Linux 6.7 or newer (bazel/cross_run.sh).
#   bazel/cross.sh aarch64 test [TARGETS]    C++ tests; default: those of the components without torch
#   bazel/cross.sh aarch64 build TARGETS     any arguments of `bazel build`
#   bazel/cross.sh aarch64 run COMMAND       a command in which programs for aarch64 run, for example a worker from bazel-out
#   bazel/cross.sh aarch64 sessions [--only PART...]    clients and workers, each with each (tests/package/cross_sessions.py)
#   bazel/cross.sh aarch64 sysroot           only prepares what the build needs
# The first call downloads packages (1 GB) into ~/.cache/torch-remote/sysroot/aarch64, which takes 2.1 GB. Nothing else of
# the machine changes, except that two packages are installed: the compiler and qemu-user.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
cd "$root"
die() { echo "cross.sh: $*" >&2; exit 1; }
[[ ${1:-} == aarch64 && $# -ge 2 ]] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
command=$2
shift 2
sysroot=${XDG_CACHE_HOME:-$HOME/.cache}/torch-remote/sysroot/aarch64

# What the build links, then what programs and Python need at run time.
debian=(
  llvm-19-dev libmlir-19-dev libgtest-dev libasio-dev libssl-dev libspdlog-dev libfmt-dev libflatbuffers-dev libcli11-dev
  nlohmann-json3-dev libzstd-dev zlib1g-dev libpython3.11-dev
  libc6 libstdc++6 libgcc-s1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libexpat1 zlib1g libffi8
  libbz2-1.0 liblzma5 libssl3 libcrypt1 libuuid1 libsqlite3-0
)
# Of torch, CUDA's libraries are left out. `cuda_stubs` makes empty ones in their place.
pinned() { sed -n "s/^\($1==[^ ]*\).*/\1/p" requirements/torch.txt requirements/run.lock; }
python=(
  "$(pinned torch)" "$(pinned numpy)" "$(pinned scipy)" "$(pinned scikit-learn)" nvidia-cuda-runtime==13.0.96
  typing_extensions "$(pinned sympy)" mpmath networkx jinja2 MarkupSafe fsspec filelock joblib threadpoolctl
  cloudpickle expecttest narwhals tqdm "$(pinned setuptools)"
)

install_tools() {
  local missing=() package
  for package in g++-aarch64-linux-gnu qemu-user; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q ^ii || missing+=("$package")
  done
  ((${#missing[@]} == 0)) && return
  DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=900 install -y --no-install-recommends "${missing[@]}" >&2 ||
    die "apt-get could not install: ${missing[*]}"
}

# Unpacks Debian's packages for arm64. apt gets state of its own, so the machine's architectures stay as they are.
unpack_debian() {
  local state file
  state=$(mktemp -d)
  mkdir -p "$state"/{lists/partial,cache/archives/partial,debs}
  touch "$state/status"
  local archive='[arch=arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org'
  printf '%s\n' "deb $archive/debian bookworm main" "deb $archive/debian bookworm-updates main" \
    "deb $archive/debian-security bookworm-security main" > "$state/sources.list"
  local apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$state"
    -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" -o Dir::Etc::sourcelist="$state/sources.list"
    -o Dir::Etc::sourceparts=/nonexistent -o APT::Sandbox::User=root)
  "${apt[@]}" update >&2 || die "the package lists for arm64 could not be downloaded"
  (cd "$state/debs" && "${apt[@]}" download "${debian[@]}" >&2) || die "packages for arm64 could not be downloaded"
  for file in "$state"/debs/*.deb; do dpkg-deb -x "$file" "$1"; done
  rm -rf "$state"
}

# Libraries of empty functions in place of CUDA's. torch starts without a GPU if it finds their names, their versions, and
# the symbols whose addresses it stores. Its wheel has NVIDIA's BLAS and LAPACK for CPUs (NVPL), whose names are similar.
cuda_stubs() {
  local folder=$1 name
  for name in $(readelf -d "$folder"/torch/lib/*.so* | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sort -u); do
    [[ -e $folder/torch/lib/$name ]] && continue
    case $name in
      libcudart.so*) cp "$(find "$folder/nvidia" -name "$name" | head -1)" "$folder/torch/lib/" ;;
      libcu* | libnv* | libnccl*) cuda_stub "$folder/torch/lib" "$name" ;;
    esac
  done
}
cuda_stub() {
  local folder=$1 name=$2 version script
  script=$(mktemp)
  for version in $(readelf -VW "$folder"/*.so* |
    awk -v "file=$name" '/^$/ { on = 0 } / File: / { on = index($0, " File: " file " ") } on && / Name: / { print $3 }' | sort -u); do
    readelf --dyn-syms -W "$folder"/*.so* | awk -v "version=$version" '
      BEGIN { print version " {" }
      $7 == "UND" && split($8, parts, "@") == 2 && parts[2] == version && !seen[parts[1]]++ { print parts[1] ";" }
      END { print "};" }' >> "$script"
  done
  # A library without versions gets the functions of all such libraries.
  [[ -s $script ]] || readelf --dyn-syms -W "$folder"/*.so* | awk '
    BEGIN { print "{" }
    $7 == "UND" && $8 ~ /^(cu|nv|nccl)[A-Za-z0-9_]*$/ && $8 !~ /^nvpl/ && !seen[$8]++ { print $8 ";" }
    END { print "};" }' > "$script"
  sed -n 's/^\(.*[^}]\);$/long \1(void) { return 1; }/p' "$script" | aarch64-linux-gnu-gcc -shared -nostdlib -x c - \
    -Wl,--version-script="$script" -Wl,-soname,"$name" -o "$folder/$name"
  rm "$script"
}

unpack_python() {
  local folder=$1/python
  .venv/bin/python -m pip install -q --disable-pip-version-check --no-deps --only-binary=:all: --target "$folder" \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64 \
    --platform manylinux_2_17_aarch64 --implementation cp --python-version 3.11 "${python[@]}" >&2 ||
    die "Python packages for aarch64 could not be installed"
  cuda_stubs "$folder"
}

make_sysroot() {
  local stamp
  stamp=$(printf '%s\n' "${debian[@]}" "${python[@]}" "$(declare -f unpack_debian cuda_stubs cuda_stub unpack_python)" | sha256sum)
  [[ -f $sysroot/stamp && $(<"$sysroot/stamp") == "$stamp" ]] && return
  echo "cross.sh: making $sysroot" >&2
  rm -rf "$sysroot"
  mkdir -p "$sysroot"
  unpack_debian "$sysroot"
  unpack_python "$sysroot"
  # The kernel starts programs for aarch64 with this (bazel/cross_run.sh).
  printf '#!/bin/sh\nprogram=$1 name=$2\nshift 2\nexec qemu-aarch64 -L %q -0 "$name" "$program" "$@"\n' "$sysroot" > "$sysroot/qemu"
  chmod +x "$sysroot/qemu"
  echo "$stamp" > "$sysroot/stamp"
}

install_tools
[[ -x .venv/bin/python ]] || ./bazelw info workspace >/dev/null
make_sysroot
bazel_for_aarch64() { ./bazelw "$1" --config=aarch64 --run_under="$root/bazel/cross_run.sh" "${@:2}"; }
case $command in
  sysroot) echo "$sysroot" ;;
  build) bazel_for_aarch64 build "$@" ;;
  test)
    # The emulated GPU makes code for x86-64, and NVIDIA's library that assembles PTX is that of this machine.
    (($# > 0)) || set -- //ir/... //passes/... //remote/... //codegen/... -//codegen/gpu/... //worker/... -//worker/targets/cuda/...
    bazel_for_aarch64 test --build_tests_only --test_tag_filters=-torch --build_tag_filters=-torch \
      --test_env=CROSS_RUN_SYSROOT="$sysroot" --test_timeout=600,1800,3600,7200 -- "$@"
    ;;
  run) bazel/cross_run.sh "$@" ;;
  sessions)
    package=//python/torch_remote
    minor=$(pinned torch | sed 's/torch==\([0-9]*\.[0-9]*\).*/\1/')
    targets=(
      "$package:cpu/bin/torch-remote-worker" "$package:cpu_codegen_library" "$package:cpu_python_process"
      //python:entry_points "$package:built_for" "$package:torch$minor/_C.so" "$package:torch$minor/libaten_plugin.so"
    )
    ./bazelw build -- "${targets[@]}"
    bazel_for_aarch64 build -- "${targets[@]}"
    CROSS_RUN_SYSROOT=$sysroot bazel/cross_run.sh .venv/bin/python tests/package/cross_sessions.py "$sysroot" "$@"
    ;;
  *) die "there is no command '$command'" ;;
esac
