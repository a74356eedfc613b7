#!/usr/bin/env bash
# Runs a command so that programs for aarch64, also those that it starts, run under qemu-user: cross_run.sh COMMAND...
# The kernel is told about qemu in a user namespace of its own (Linux 6.7 or newer), so the rest of the machine does not
# change. `bazel test` starts tests for aarch64 with this script (bazel/cross.sh).
set -euo pipefail
if [[ -z ${CROSS_RUN_INSIDE:-} ]]; then
  export CROSS_RUN_INSIDE=1
  exec unshare --user --map-root-user --mount "$0" "$@"
fi
sysroot=${CROSS_RUN_SYSROOT:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/torch-remote/sysroot/aarch64}
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc ||
  { echo "cross_run.sh: this kernel does not offer binfmt_misc in user namespaces (Linux 6.7 does)" >&2; exit 1; }
# The first 20 bytes of a program for aarch64, and which of their bits count. P: argv[0] is passed, too.
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
printf '%s' ":aarch64:M::$magic:$mask:$sysroot/qemu:P" > /proc/sys/fs/binfmt_misc/register
# qemu-user shows programs the machine's own /proc/cpuinfo, in which torch's cpuinfo finds no core. These are Neoverse N1.
cores=$(nproc --all)
for ((i = 0; i < cores; ++i)); do
  printf '%s\n' "processor : $i" "BogoMIPS : 50.00" \
    "Features : fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp" \
    "CPU implementer : 0x41" "CPU architecture: 8" "CPU variant : 0x3" "CPU part : 0xd0c" "CPU revision : 1" ""
done > "$sysroot/cpuinfo.$$"
mv "$sysroot/cpuinfo.$$" "$sysroot/cpuinfo"  # at once, because other calls may read it
mount --bind "$sysroot/cpuinfo" /proc/cpuinfo
# The command starts programs for aarch64 in this namespace, too; it needs no further one.
unset CROSS_RUN_INSIDE CROSS_RUN_SYSROOT
exec "$@"
